"""DreamGym where its parts fail: the model is the engine's and ends the stage; a real environment is asked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.engine.execute import Attempt, execute_stage
from crl.engine.failures import failure_of
from crl.envs.frozenlake import FrozenLakeConfig, FrozenLakeEnvironment
from crl.errors import EngineDied, StageFailed
from crl.faults import of_run
from crl.policies.embedders import LexicalEmbedder
from crl.recipes.dreamgym.explore import Watched
from crl.records import Episode
from crl.rollout.environments import Readable
from crl.rollout.kept_steps import KeptSteps
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.journal import JsonLines
from crl.run.lease import Lease
from tests.marks import sampled
from tests.recipes.dreamgym.dreamgym_played import SETTINGS, DreamServices, dream, experiment
from tests.unit.recipes.branched import begun, play
from tests.unit.recipes.played import Played, one_by_one

WHERE = "round 1, stage collect"


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


class Broken:
    """Raises in the stage `collect`, in the model or in the search for what it is shown."""

    def __init__(self, error: Exception, place: str) -> None:
        self.error, self.place, self.collecting = error, place, False

    def at(self, place: str) -> None:
        if self.collecting and self.place == place:
            raise self.error

    def answer(self, read: str, generator: np.random.Generator) -> str:
        self.at("model")
        return dream(read, generator)

    def embed(self, *asked: Any) -> Any:
        self.at("store")
        return LexicalEmbedder().embed(*asked)

    def order(self, *of: Any) -> Iterator[tuple[int, str]]:
        for number, stage in one_by_one(*of):
            self.collecting = stage == "collect"
            yield number, stage


def services(made: Any, broken: Broken) -> DreamServices:
    found, embedder = DreamServices(made, broken.answer), LexicalEmbedder()
    embedder.embed = broken.embed  # type: ignore[method-assign]
    found.embedder = lambda: embedder  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("place", sampled(["model", "store"], 2))
@pytest.mark.parametrize(
    ("error", "told", "fatal"),
    [
        (OutOfMemoryError("CUDA out of memory"), EngineDied, True),
        (RuntimeError("CUDA error: device-side assert triggered"), StageFailed, False),
    ],
)
def test_what_fails_in_the_experience_model_fails_the_stage(
    tmp_path: Path, error: Exception, told: type[Exception], fatal: bool, place: str
) -> None:
    made = experiment()
    broken = Broken(error, place)
    with pytest.raises(StageFailed, match="the experience model could not be asked") as caught:
        Played(tmp_path, made, 1, services(made, broken), broken.order)
    run = RunDirectory.open(tmp_path / made.name)
    assert "plan" in run.complete_stages(1) and "collect" not in run.complete_stages(1)
    failure = failure_of(caught.value, WHERE)
    assert (type(failure.error), failure.fatal) == (told, fatal), "as in any other stage"
    assert str(error) in failure.error.found and str(error) in failure.traceback
    assert WHERE in (failure.error.where or "")
    broken.collecting = False
    play(run, 1, DreamServices(made))
    assert {row["error"] for row in run.read(1, "collect", Episode).to_pylist()} <= {
        None, "prediction_no_observation"
    }  # fmt: skip


class Stopped(Exception):
    """The run stops: that is no fault of a game, and nothing catches it on the way."""


class Silent:
    """A lake that explains nothing, and is stopped once an episode is over, if it is to be."""

    def __init__(self, config: FrozenLakeConfig, *, stops: bool = False) -> None:
        self.lake, self.stops, self.over = FrozenLakeEnvironment(config), stops, set[int]()
        self.asked: Counter[int] = Counter()

    def reset_many(self, seeds: Any) -> Any:
        return self.lake.reset_many(seeds)

    def step_many(self, actions: Any) -> Any:
        if self.stops and self.over:
            with of_run():
                raise Stopped
        self.asked.update(list(actions))
        steps = self.lake.step_many(actions)
        self.over |= {slot for slot, step in steps.items() if step.done}
        return steps

    def oracle(self, slot: int) -> str | None:
        return None

    def close(self) -> None:
        self.lake.close()


@pytest.mark.parametrize(("stage", "stream"), sampled([("collect", "real"), ("explore", "explored")], 2))
def test_a_resumed_wave_asks_nothing_again_of_episodes_that_were_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, stream: str
) -> None:
    monkeypatch.setattr(FrozenLakeConfig, "keeps_steps", True)
    lasting = {**SETTINGS["method.families.0.environment"], "max_turns": 12}
    made = experiment(
        method__families__0__environment=lasting, method__recipe__synthetic_share=0.5, method__recipe__explore__first=8
    )
    config: Any = made.method.families[0].environment

    def with_lake(lake: Silent) -> Any:
        found = DreamServices(made)
        found.environment = lambda family, round_number: lake  # type: ignore[method-assign]
        return found

    undisturbed = begun(tmp_path / "undisturbed", made)
    play(undisturbed, 1, with_lake(Silent(config)))
    run = begun(tmp_path / "runs", made)
    recipe, stopped, resumed = recipe_in(run), Silent(config, stops=True), Silent(config)
    with Lease.acquire(run.path, seconds=600) as lease:
        attempt = Attempt(token=lease.token)
        for number, name in one_by_one(recipe, run.method, 1):
            last = (number, name) == (1, stage)
            if last:
                with pytest.raises(Stopped):
                    execute_stage(run, recipe, 1, name, attempt=attempt, services=with_lake(stopped))
            services = with_lake(resumed if last else Silent(config))
            execute_stage(run, recipe, number, name, attempt=attempt, services=services)
            if last:
                break
    turns = [row["turns"] for row in run.read(1, stage, Episode).to_pylist() if row["stream"] == stream]
    assert 0 < len(stopped.over) < len(turns) == 8
    assert [resumed.asked[slot] for slot in range(8)] == [
        0 if slot in stopped.over else count for slot, count in enumerate(turns)
    ]
    assert run.manifest(1, stage).digest == undisturbed.manifest(1, stage).digest
    assert not run.unfinished_path(1, stage).exists()


def test_an_episode_that_the_actors_context_ends_is_over_too(tmp_path: Path) -> None:
    config: Any = experiment().method.families[0].environment
    file, lakes = JsonLines(tmp_path / "steps.jsonl"), [Silent(config), Silent(config)]
    for lake in lakes:
        # As it is played: what plays tells its environment, which is the watched one.
        wave = Readable(Watched(KeptSteps(lake, file, ["episode"])))
        wave.reset_many([1])
        wave.step_many({0: "up"})
        wave.ended([0])
    assert [lake.asked[0] for lake in lakes] == [1, 0]
