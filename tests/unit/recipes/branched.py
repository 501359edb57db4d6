"""Forks of runs that are played in this process by models that are told what to say; every update takes a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crl.config import Experiment, Method
from crl.config.registry import load_object
from crl.engine.execute import Attempt, execute_stage
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.files import sha256_bytes
from crl.run.journal import Journal
from crl.run.lease import Lease
from tests.unit.recipes.played import Services, Trainer, experiment

FEW = {
    "method__families__0__evaluation_seeds__count": 2,
    "method__families__0__groups": 2,
    "method__evaluation__every": 2,
}
MERGES = {"method__recipe__merge__every": 2}
PLAYED = {
    "erl": ("tests.recipes.erl.erl_played:ErlServices", "tests.recipes.erl.erl_played:experiment"),
    "dreamgym": (
        "tests.recipes.dreamgym.dreamgym_played:DreamServices", "tests.recipes.dreamgym.dreamgym_played:experiment",
    ),
    "importance_replay": (
        "tests.recipes.importance_replay.replay_played:ReplayServices",
        "tests.recipes.importance_replay.replay_played:experiment",
    ),
}  # fmt: skip
"""Services and experiment of the recipes that are guests; imported where one of them is played."""


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
    services, _ = PLAYED.get(made.method.recipe.kind, (f"{__name__}:Services", ""))
    return stepping(load_object(services)(made))


def guest(recipe: str, **changes: Any) -> Experiment:
    """The experiment of a recipe that is a guest."""
    made: Experiment = load_object(PLAYED[recipe][1])(**changes)
    return made


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
            made = guest(kind, **{**FEW, **changes})
        case "dreamgym":
            made = guest(kind, **changes)
        case "uniform" | "learned":
            weighting = {"method__evaluation__every": 2, "method__recipe__weighting": kind}
            made = guest("importance_replay", **{**weighting, **changes})
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
