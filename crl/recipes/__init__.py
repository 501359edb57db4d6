"""Recipes: what a round is made of. The paper's is `complementary`; the others are guests."""
