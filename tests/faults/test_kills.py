"""kill -9 of the flow, the engine or both, in every stage: resumed, the run is the one that was never disturbed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from crl.audit.verify import verify
from tests.faults.killing import KilledRun, killed_run
from tests.recipe_runs import OTHERS
from tests.tiny_run import ROUNDS, digests, leftovers

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("CRL_KILL_SEED", "20260317"))
KILLS = 30
KILLS_OF_OTHERS = 6
VICTIMS = ("flow", "engine", "both")


AFTER = {
    "erl": ("collect", "reflect", "credit"),
    "dreamgym": ("explore", "update_experience", "collect"),
    "importance_replay": ("credit", "update_actor", "probe_after"),
}
"""Stages right after which a run of a recipe is killed, in round 1, beside random moments."""


def _kill_and_finish(
    run: KilledRun,
    targets: Sequence[str],
    prefect: set[int],
    shards: Sequence[int],
    victims: Sequence[str] = (),
    manners: Sequence[str | None] = (),
) -> None:
    """Kill in each of the targets in turn, `victims` or whom chance picks, at moments of these `manners`, or at random
    ones; then let it finish, and compare."""
    for number, key in enumerate(targets):
        if not run.alive:
            run.start(prefect=number in prefect, shards=run.random.choice(shards))
        whom = victims[number] if victims else run.random.choice(VICTIMS)
        if not run.kill_in(key, whom=whom, manner=manners[number] if manners else None):
            break
    run.finish()
    assert digests(run.path) == run.expected
    assert leftovers(run.path) == []
    assert verify(run.path) == []
    run.check_journal()


@pytest.mark.slow  # one kill and resume with the same digests is in tests/outside
def test_killed_thirty_times_in_all_stages(finished: Path, tmp_path: Path) -> None:
    with killed_run(tmp_path / "runs", finished, rounds=ROUNDS, seed=SEED + 1) as run:
        targets = [run.stages[number * len(run.stages) // KILLS] for number in range(KILLS)]
        assert set(targets) == set(run.stages), "every stage is a target"
        _kill_and_finish(run, targets, prefect={4, 12, 20, 27}, shards=[1, 1, 2])
        # A stage may be over before its random moment comes; the last one then leaves nothing to kill.
        assert len(run.kills) >= KILLS - 2
        assert len({kill.split()[0] for kill in run.kills}) == len(run.stages)


@pytest.mark.parametrize("recipe", OTHERS)
def test_other_recipes_killed_at_random_moments_of_two_rounds_and_after_chosen_stages(
    run_of: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    with killed_run(tmp_path / "runs", run_of(recipe), rounds=ROUNDS, seed=SEED + 6, recipe=recipe) as run:
        # One stage of each sixth of the run, round 2 as much as round 1; each kind of victim twice, in any order.
        bounds = [number * len(run.stages) // KILLS_OF_OTHERS for number in range(KILLS_OF_OTHERS + 1)]
        targets = [run.random.choice(run.stages[first:last]) for first, last in itertools.pairwise(bounds)]
        victims = run.random.sample(VICTIMS, KILLS_OF_OTHERS, counts=[KILLS_OF_OTHERS // len(VICTIMS)] * len(VICTIMS))
        due: list[tuple[str, str, str | None]] = [(key, whom, None) for key, whom in zip(targets, victims, strict=True)]
        due += [(f"0001/{stage}", "flow", "committed") for stage in AFTER[recipe]]
        due.sort(key=lambda each: run.stages.index(each[0]))
        keys, whoms, manners = zip(*due, strict=True)
        _kill_and_finish(run, keys, prefect={3}, shards=[1, 1, 2], victims=whoms, manners=manners)
        assert len(run.kills) >= len(due) - 1, "a stage may be over before its moment comes"
        assert any(kill.endswith(("engine", "both")) for kill in run.kills), "an engine was there to be killed"


@pytest.mark.parametrize("whom", ["flow", "both"])
def test_a_killed_flow_of_prefect_leaves_no_process_behind(finished: Path, tmp_path: Path, whom: str) -> None:
    with killed_run(tmp_path / "runs", finished, rounds=1, seed=SEED) as run:
        run.start(prefect=True)
        assert run.kill_in("0000/evaluate_base", whom=whom)
        run.finish()
        assert digests(run.path) == run.expected
