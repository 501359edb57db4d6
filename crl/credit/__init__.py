"""Credit: what outputs and episodes earned, and the samples made of that (eq. 3, 5, 7). Rows in, rows out; no torch.

Suffixes of arrays name their shapes, `advantages_G`: G rollouts of a group (K in the paper), K of one stream among them
(K_c), N rollouts of several groups. A rollout counts once, however many sequences it has.
"""
