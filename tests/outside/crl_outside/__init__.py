"""A package that extends Complementary RL from outside: a world, a recipe, a role, an objective, rows."""
