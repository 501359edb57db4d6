"""Prefect flows: thin. They run the stages of a recipe in order and know no stage by name."""
