"""What a recipe says of the outputs of a round, against the rounds that it plays: estimates count with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from crl.preflight.estimate import evaluated_of, outputs_of
from crl.records import Evaluation, Generation, Sample
from tests.recipes.dreamgym import dreamgym_played
from tests.recipes.erl import erl_played
from tests.recipes.importance_replay import replay_played
from tests.unit.recipes.played import Played, experiment


def sampled(run: Played, number: int = 1) -> Counter[str]:
    """Outputs by role of all stages of a round but its evaluations."""
    stages = [each for each in run.run.complete_stages(number) if not each.startswith("evaluate")]
    return Counter(row.role for stage in stages for row in run.rows(Generation, stage, number))


def learned(run: Played, number: int = 1) -> int:
    """Sequences that updates are given."""
    return sum(len(run.rows(Sample, stage, number)) for stage in run.run.complete_stages(number))


def test_erl_plays_and_reflects_on_every_attempt_where_nothing_passes_the_gate(tmp_path: Path) -> None:
    run = erl_played.played(tmp_path, 1, method__recipe__gate=None, method__recipe__revisions=2)
    found, said = sampled(run), outputs_of(run.method)
    assert {role: each.sampled for role, each in said.items()} == found
    assert found["actor"] == 3 * run.method.episodes and found["reflector"] == 2 * run.method.episodes
    assert learned(run) <= sum(each.trained for each in said.values())


def test_dreamgym_asks_its_model_once_per_turn_at_most(tmp_path: Path) -> None:
    run = dreamgym_played.played(tmp_path, 1)
    found, said = sampled(run), outputs_of(run.method)
    assert found["actor"] and found["experience"]
    assert all(count <= said[role].sampled for role, count in found.items()), (found, said)
    assert learned(run) <= sum(each.trained for each in said.values())


def test_replay_plays_its_probes_before_and_after(tmp_path: Path) -> None:
    run = replay_played.played(tmp_path, 1)
    assert sampled(run) == {"actor": outputs_of(run.method)["actor"].sampled}
    uniform = replay_played.experiment(method__recipe__weighting="uniform").method
    assert outputs_of(uniform)["actor"].sampled == uniform.episodes


def test_every_arm_plays_every_held_out_task_once(tmp_path: Path) -> None:
    for run in (
        Played(tmp_path / "bank", experiment(), 1),
        Played(tmp_path / "none", experiment(method__recipe__kind="baseline"), 1),
        erl_played.played(tmp_path / "erl", 1),
        replay_played.played(tmp_path / "replay", 1),
        dreamgym_played.played(tmp_path / "dreamgym", 1),
    ):
        last = run.rows(Evaluation, "evaluate", 1)
        assert last and evaluated_of(run.method, "actor") == (len(last), 1)
        others = set(run.method.recipe.roles()) - {"actor"}
        assert {evaluated_of(run.method, role) for role in others} <= {(0, 0)}
    assert evaluated_of(experiment(method__evaluation__every=0).method, "actor") == (0, 0)
