"""A task that changes in a round: that round is the first one collected and evaluated with the new settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.records import Episode, Evaluation
from tests.unit.recipes.played import SETTINGS, Played, experiment

pytestmark = pytest.mark.slow


def test_rounds_from_the_change_on_are_played_and_evaluated_with_it(tmp_path: Path) -> None:
    lake = SETTINGS["method.families.0.environment"]
    family = {
        "name": "lake", "environment": lake, "groups": 4, "evaluation_seeds": {"start": 1_000_000, "count": 8},
        "changes": [{"round": 2, "environment": {"max_turns": 3}}],
    }  # fmt: skip
    made = experiment(method__families=[family], method__evaluation__every=1)
    played = Played(tmp_path, made, 2)
    # Whoever waits does so to the turn limit: the longest episode says which limit there was.
    collected = [max(row.turns for row in played.rows(Episode, "collect", number)) for number in (1, 2)]
    assert collected == [lake["max_turns"], 3]
    evaluated = [max(row.turns for row in played.rows(Evaluation, "evaluate", number)) for number in (0, 1, 2)]
    assert evaluated == [lake["max_turns"], lake["max_turns"], 3]
