"""Forks of runs that are played in this process by models that are told what to say; every update takes a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crl.config import Experiment, Method
from crl.engine.execute import Attempt, execute_stage
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.files import sha256_bytes
from crl.run.journal import Journal
from crl.run.lease import Lease
from tests.recipes.dreamgym.dreamgym_played import DreamServices
from tests.recipes.dreamgym.dreamgym_played import experiment as dream_experiment
from tests.recipes.erl.erl_played import ErlServices
from tests.recipes.erl.erl_played import experiment as erl_experiment
from tests.recipes.importance_replay.replay_played import ReplayServices
from tests.recipes.importance_replay.replay_played import experiment as replay_experiment
from tests.unit.recipes.played import Services, Trainer, experiment

FEW = {
    "method__families__0__evaluation_seeds__count": 2,
    "method__families__0__groups": 2,
    "method__evaluation__every": 2,
}
MERGES = {"method__recipe__merge__every": 2}


class SteppingTrainer(Trainer):
    """Its checkpoint is a digest of the weights that it began with and of what it was trained on."""

    def __init__(self, before: str) -> None:
        super().__init__()
        self.before = before

    def update(self, samples: Any, objective: Any, **more: Any) -> dict[str, float]:
        return {**super().update(samples, objective, **more), "stepped": 1.0}

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "model").write_text(sha256_bytes(f"{self.before} {self.batches!r}".encode()))


def stepping(services: Services) -> Services:
    """These services, with trainers that know only the weights they are given: as an engine that was restarted."""
    services.trainer = lambda role, weights: SteppingTrainer(weights.weights_digest)  # type: ignore[method-assign]
    return services


def services_of(made: Experiment) -> Services:
    others = {"erl": ErlServices, "dreamgym": DreamServices, "importance_replay": ReplayServices}
    return stepping(others.get(made.method.recipe.kind, Services)(made))


def begun(root: Path, made: Experiment) -> RunDirectory:
    return RunDirectory.create_or_open(made, root)


def play(run: RunDirectory, last: int, services: Any = None) -> list[str]:
    """What a driver does: every stage up to a round that is missing, told in the journal; returns what ran."""
    made = Experiment.model_construct(name=run.experiment_name, method=run.method)
    services, recipe, ran = services or services_of(made), recipe_in(run), []
    journal = Journal(run.path)
    with Lease.acquire(run.path, seconds=600) as lease:
        for number in range(last + 1):
            for stage in recipe.stages_of(run.method, number):
                if run.is_complete(number, stage.name):
                    continue
                journal.record("stage_started", token=lease.token, round_number=number, stage=stage.name)
                done = execute_stage(
                    run, recipe, number, stage.name, attempt=Attempt(token=lease.token), services=services
                )
                journal.record(
                    "stage_committed", token=lease.token, round_number=number, stage=stage.name, digest=done.digest
                )
                ran.append(f"{number}/{stage.name}")
    return ran


def finished(root: Path, rounds: int, kind: str = "complementary", **changes: Any) -> RunDirectory:
    """A run of so many rounds; `kind` is a recipe, `overlap`, or a weighting of replay."""
    match kind:
        case "erl":
            made = erl_experiment(**{**FEW, **changes})
        case "dreamgym":
            made = dream_experiment(**changes)
        case "uniform" | "learned":
            made = replay_experiment(**{"method__evaluation__every": 2, "method__recipe__weighting": kind, **changes})
        case "overlap":
            made = experiment(**{**FEW, **MERGES, "method__overlap": True, **changes})
        case _:
            made = experiment(**{**FEW, **MERGES, "method__recipe__kind": kind, **changes})
    run = begun(root, made)
    play(run, rounds)
    return run


def experiment_of(run: RunDirectory, name: str, method: Method | None = None) -> Experiment:
    """The experiment of a fork."""
    return Experiment(name=name, method=method or run.method)


def changed(method: Method, **changes: Any) -> Method:
    """A method with other values at dotted keys, `__` for the dot."""
    from crl.config.load import parse_experiment

    data = {"name": "any", "method": method.model_dump(mode="json")}
    overrides = {f"method.{key.replace('__', '.')}": value for key, value in changes.items()}
    return parse_experiment(data, overrides, base=Path("conf"), where="changed").method


def digests(run: RunDirectory, *, after: int = -1, last: int = 99) -> dict[str, str]:
    """Digest of every stage of the rounds after one and up to another, by `1/collect`."""
    return {
        f"{number}/{stage}": run.manifest(number, stage).digest
        for number in run.rounds()
        if after < number <= last
        for stage in run.complete_stages(number)
    }


def stages(ran: Sequence[str]) -> set[str]:
    return {key.partition("/")[2] for key in ran}
