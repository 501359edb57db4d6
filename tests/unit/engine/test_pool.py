"""The engines of a track: which have to free their models, and which have to end, before another one works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crl.engine.driver import Track
from crl.engine.jobs import Job, JobKind
from crl.engine.pool import EnginePool
from crl.engine.supervisor import Engine
from crl.recipes.complementary.round import build
from tests.processes import PATIENCE_SECONDS
from tests.unit.engine.harness import make_driver, make_experiment
from tests.unit.engine.test_nodes import nodes_of

FREE = Job(JobKind.release, run_path="", round=0, stage="", token=0)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Has a method of engines do nothing; gives the names of those it was called of."""

    def replace(method: str) -> list[str]:
        names: list[str] = []
        monkeypatch.setattr(Engine, method, lambda engine: names.append(engine.name))
        return names

    return replace


def test_engines_that_sample_keep_their_models_until_something_is_trained(called: Callable[[str], list[str]]) -> None:
    released, pool = called("release"), EnginePool({}, print)
    main, _, _ = pool.shard(0), pool.shard(1), pool.ranks(2)
    pool.release_others(main, to_train=False)
    assert released == ["ranks-2"], "a trainer of several ranks is made anew anyway"
    released.clear()
    pool.release_others(main, to_train=True)
    assert released == ["shard-1", "ranks-2"]


def test_what_updates_weights_or_warms_them_up_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_experiment(
        recipe={"kind": "complementary", "warm_start": {"actor_episodes": 4, "extractor_episodes": 4}}
    )
    trains: list[bool] = []

    def release_others(pool: EnginePool, kept: Engine, *, to_train: bool) -> None:
        trains.append(to_train)
        raise KeyboardInterrupt

    monkeypatch.setattr(EnginePool, "release_others", release_others)
    track = Track(experiment.method, experiment.runtime, {}, lambda event: None)
    recipe = build(experiment.method)
    for stage in (*recipe.preparation, *recipe.stages):
        with pytest.raises(KeyboardInterrupt):
            track.run(stage, FREE)
    names = [stage.name for stage in (*recipe.preparation, *recipe.stages)]
    found = {name for name, trained in zip(names, trains, strict=True) if trained}
    assert found == {"initialize", "warm_start_actor", "warm_start_extractor", "update_actor", "update_extractor"}


@pytest.mark.slow
def test_only_the_update_of_a_round_frees_the_other_shards(tmp_path: Path, called: Callable[[str], list[str]]) -> None:
    released = called("release")
    with make_driver(tmp_path, shards=2) as driver:
        driver.run_rounds(1)
    assert released == ["shard-1"]


def test_on_several_machines_ranks_end_before_those_of_another_number_start(
    tmp_path: Path, called: Callable[[str], list[str]]
) -> None:
    stopped = called("stop")
    here, there = EnginePool({}, print), EnginePool({}, print, nodes=nodes_of(tmp_path))
    for pool in (here, there):
        pool.shard(0)
        for number in (2, 2, 3, 2):
            pool.ranks(number)
    assert stopped == ["ranks-2", "ranks-3"], "on one machine each launcher finds a port of its own"


@pytest.mark.slow
def test_the_ranks_of_two_roles_meet_at_one_port_in_turn(tmp_path: Path) -> None:
    """The port is taken as long as torch's launcher lives."""
    pool = EnginePool({}, lambda engine, text: None, nodes=nodes_of(tmp_path, "one slots=3\n", interface="lo"))
    try:
        first = pool.ranks(2)
        first.run(FREE, time_limit=PATIENCE_SECONDS)
        assert first.running
        second = pool.ranks(3)
        second.run(FREE, time_limit=PATIENCE_SECONDS)
        assert not first.running and len(set(second.pids)) == 3
    finally:
        pool.stop()
