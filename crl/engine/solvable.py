"""Which tasks the present weights of an experiment solve sometimes: each is tried several times, beside any run.

Tasks that are always or never solved teach nothing: all rewards of a group are equal. The paper trains on those of
SWE-Bench that its base model solves in more than none and at most 80 % of 16 tries. Nothing of this is in a record: the
list that comes of it is part of the method of an experiment that names it (`train_tasks` of a task family).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crl.config import Experiment, FamilyConfig
from crl.engine.services import services_here
from crl.protocols import Leveled
from crl.rollout.play import EpisodeSlot
from crl.rounds.context import MemoryWriter, StageContext
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Stage
from crl.rounds.tasks import tasks_at
from crl.rounds.waves import play, sampling_of, wave_width
from crl.rounds.weights import base_weights
from crl.run.directory import RunDirectory
from crl.run.seeds import seed_for

_ASKED = 32
"""Levels that are asked for their content at a time."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the tries at one task."""

    seed: int
    won: int
    tries: int
    """Those that were played to an end."""
    broken: int
    """Further ones whose environment broke."""

    @property
    def share(self) -> float | None:
        """The share of tries that won; None where all broke."""
        return self.won / self.tries if self.tries else None


def try_tasks(
    experiment: Experiment,
    family: FamilyConfig,
    *,
    tries: int,
    seeds: int,
    progress: Callable[[dict[str, Any]], None] = lambda metrics: None,
) -> list[Tried]:
    """Play the first `seeds` training seeds of a family `tries` times each, sampled as in training, guided by nothing.

    A seed whose task was there before is left out. `progress` is told the tries that are `done` of their `total`.
    """
    with TemporaryDirectory() as folder:
        named = experiment.model_copy(update={"name": "solvable"})
        run = RunDirectory.create_or_open(named, Path(folder))
        with services_here(run) as services:
            from transformers.utils import logging

            logging.disable_progress_bar()
            context = StageContext(
                method=run.method,
                recipe=recipe_in(run),
                stage=Stage(name="solvable", run=lambda ctx: None, role="actor"),
                round_number=0,
                reader=run,
                writer=MemoryWriter(),
                services=services,
                progress=lambda metrics: None,
            )
            return _tried(context, family, _distinct(context, family, seeds), tries, progress)


def _distinct(ctx: StageContext, family: FamilyConfig, most: int) -> list[int]:
    """The first seeds of training, each task once where the environment says what is in one."""
    seeds = list(family.drawn[:most])
    environment = ctx.environment(family.name)
    if not isinstance(environment, Leveled):
        return seeds
    found: dict[str, int] = {}
    for at in range(0, len(seeds), _ASKED):
        part = seeds[at : at + _ASKED]
        starts = environment.reset_many(part)
        for slot, (seed, start) in enumerate(zip(part, starts, strict=True)):
            found.setdefault(f"seed {seed}" if start.error else environment.content(slot), seed)
    return list(found.values())


def _tried(
    ctx: StageContext,
    family: FamilyConfig,
    seeds: Sequence[int],
    tries: int,
    progress: Callable[[dict[str, Any]], None],
) -> list[Tried]:
    owner = ctx.method.owner("actor")
    weights = next(row for row in base_weights(ctx) if row.role == owner)
    policy = ctx.services.policy("actor", weights)
    places = [(family.name, seed) for seed in seeds for _ in range(tries)]
    numbers, width = count(), wave_width(ctx.method)
    outcomes: dict[int, list[bool | None]] = {seed: [] for seed in seeds}
    for at in range(0, len(places), width):
        tasks = tasks_at(ctx, places[at : at + width], name=lambda name, seed: f"{name}-s{seed}-{next(numbers)}")
        played = play(
            ctx,
            policy,
            [EpisodeSlot(task) for task in tasks],
            sampling=sampling_of(ctx.method, [family.name]),
            weights_digest=weights.weights_digest,
            seed_of=lambda episode: seed_for(ctx.method.seed, "solvable", episode),
        )
        for each in played:
            outcome = None if each.episode.error is not None else each.episode.success
            outcomes[each.episode.environment_seed].append(outcome)
        progress({"done": at + len(tasks), "total": len(places)})
    return [
        Tried(seed, found.count(True), len(found) - found.count(None), found.count(None))
        for seed, found in outcomes.items()
    ]
