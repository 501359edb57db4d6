"""kill -9 of the flow, the engine or both, in every stage: resumed, the run is the one that was never disturbed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from crl.run.verify import verify
from tests.faults.killing import KilledRun, killed_run
from tests.recipe_runs import OTHERS
from tests.tiny_run import ROUNDS, digests, leftovers

SEED = int(os.environ.get("CRL_KILL_SEED", "20260317"))
KILLS = 30
KILLS_OF_OTHERS = 6
VICTIMS = ("flow", "engine", "both")


def _kill_and_finish(
    run: KilledRun, targets: Sequence[str], prefect: set[int], shards: Sequence[int], victims: Sequence[str] = ()
) -> None:
    """Kill in each of the targets in turn, `victims` or whom chance picks; then let it finish, and compare."""
    for number, key in enumerate(targets):
        if not run.alive:
            run.start(prefect=number in prefect, shards=run.random.choice(shards))
        if not run.kill_in(key, whom=victims[number] if victims else run.random.choice(VICTIMS)):
            break
    run.finish()
    assert digests(run.path) == run.expected
    assert leftovers(run.path) == []
    assert verify(run.path) == []
    run.check_journal()


@pytest.mark.slow  # one kill and resume with the same digests is in tests/outside
def test_killed_in_preparation_rollout_and_update(finished: Path, tmp_path: Path) -> None:
    targets = ["0000/warm_start_extractor", "0001/collect", "0001/update_actor"]
    with killed_run(tmp_path / "runs", finished, rounds=1, seed=SEED) as run:
        _kill_and_finish(run, targets, prefect=set(), shards=[1])
        assert len(run.kills) >= len(targets) - 1


@pytest.mark.slow
def test_killed_thirty_times_in_all_stages(finished: Path, tmp_path: Path) -> None:
    with killed_run(tmp_path / "runs", finished, rounds=ROUNDS, seed=SEED + 1) as run:
        targets = [run.stages[number * len(run.stages) // KILLS] for number in range(KILLS)]
        assert set(targets) == set(run.stages), "every stage is a target"
        _kill_and_finish(run, targets, prefect={4, 12, 20, 27}, shards=[1, 1, 2])
        # A stage may be over before its random moment comes; the last one then leaves nothing to kill.
        assert len(run.kills) >= KILLS - 2
        assert len({kill.split()[0] for kill in run.kills}) == len(run.stages)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_other_recipes_killed_at_random_moments_of_two_rounds(
    run_of: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    with killed_run(tmp_path / "runs", run_of(recipe), rounds=ROUNDS, seed=SEED + 6, recipe=recipe) as run:
        # One stage of each sixth of the run, round 2 as much as round 1; each kind of victim twice, in any order.
        bounds = [number * len(run.stages) // KILLS_OF_OTHERS for number in range(KILLS_OF_OTHERS + 1)]
        targets = [run.random.choice(run.stages[first:last]) for first, last in itertools.pairwise(bounds)]
        victims = run.random.sample(VICTIMS, KILLS_OF_OTHERS, counts=[KILLS_OF_OTHERS // len(VICTIMS)] * len(VICTIMS))
        _kill_and_finish(run, targets, prefect={3}, shards=[1, 1, 2], victims=victims)
        assert len(run.kills) >= KILLS_OF_OTHERS - 1, "a stage may be over before its moment comes"
        assert any(kill.endswith(("engine", "both")) for kill in run.kills), "an engine was there to be killed"


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["flow", "both"])
def test_a_killed_flow_of_prefect_leaves_no_process_behind(finished: Path, tmp_path: Path, whom: str) -> None:
    with killed_run(tmp_path / "runs", finished, rounds=1, seed=SEED) as run:
        run.start(prefect=True)
        assert run.kill_in("0000/evaluate_base", whom=whom)
        run.finish()
        assert digests(run.path) == run.expected
