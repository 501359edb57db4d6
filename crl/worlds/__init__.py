"""Worlds: environments that come as guests, a folder each, named by an entry point. Nothing else knows them."""
