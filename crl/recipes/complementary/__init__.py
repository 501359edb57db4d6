"""Complementary RL and the ablations of its paper: `config.py` what can be set, `round.py` what a round is made of."""
