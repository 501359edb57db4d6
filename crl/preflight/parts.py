"""How far the games of a round can be spread over shards."""

from __future__ import annotations

from collections import Counter

from crl.config import Method
from crl.rounds.waves import together


def collecting_parts(method: Method) -> int:
    """Waves of a round's games: the parts of `collect`. (Synthetic games have waves of their own.)"""
    first_of = together(method)
    groups: Counter[str] = Counter()
    for family in method.families:
        groups[first_of[family.name]] += family.groups
    return sum(-(-count // method.rollout.wave_groups) for count in groups.values())
