"""What a recipe says of the outputs of a round, against the rounds that it plays: the disk is counted with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from crl.records import Generation
from tests.recipes.dreamgym import dreamgym_played
from tests.recipes.erl import erl_played
from tests.recipes.importance_replay import replay_played
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow


def sampled(run: Played, number: int = 1) -> Counter[str]:
    """Outputs by role of all stages of a round but its evaluations."""
    stages = [each for each in run.run.complete_stages(number) if not each.startswith("evaluate")]
    return Counter(row.role for stage in stages for row in run.rows(Generation, stage, number))


def test_erl_plays_and_reflects_on_every_attempt_where_nothing_passes_the_gate(tmp_path: Path) -> None:
    run = erl_played.played(tmp_path, 1, method__recipe__gate=None, method__recipe__revisions=2)
    found = sampled(run)
    assert run.method.recipe.outputs(run.method) == found
    assert found["actor"] == 3 * run.method.episodes and found["reflector"] == 2 * run.method.episodes


def test_dreamgym_asks_its_model_once_per_turn_at_most(tmp_path: Path) -> None:
    run = dreamgym_played.played(tmp_path, 1)
    found, said = sampled(run), run.method.recipe.outputs(run.method)
    assert found["actor"] and found["experience"]
    assert all(count <= said[role] for role, count in found.items()), (found, said)


def test_replay_plays_its_probes_before_and_after(tmp_path: Path) -> None:
    run = replay_played.played(tmp_path, 1)
    assert sampled(run) == run.method.recipe.outputs(run.method)
    uniform = replay_played.experiment(method__recipe__weighting="uniform").method
    assert uniform.recipe.outputs(uniform) == {"actor": uniform.episodes}
