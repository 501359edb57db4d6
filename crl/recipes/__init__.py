"""Recipes: which stages a round is made of. The rooms of `crl` meet only here, through rows."""
