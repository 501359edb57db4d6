"""Where an experiment computes: the engines of its tracks, what samples and learns in each, and which share a GPU.

As `crl/engine/track.py` and `crl/engine/devices.py` place them: the engines of a second track come behind those of the
first, and devices are given out in turn, from the first again where there are too few.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from crl.config import Experiment, Method, TaskRunnerName
from crl.config.servers import ServerConfig
from crl.recipes.stage import Recipe, Stage
from crl.records import Weights

_LOOKED_AHEAD = 1000
"""Rounds in one of which a stage must be due to count."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """What the stages of one engine ask it for."""

    sampled: Set[str]
    """Roles whose models it samples from."""
    trained: Set[str]
    """Weights that it updates, or the engine of several ranks in its place."""


def engines_by_gpu(experiment: Experiment, gpus: int) -> list[list[EnginePlace]]:
    """Every engine that runs on this machine, which has so many GPUs: those that share one are listed together."""
    runtime = experiment.runtime
    made: dict[int, list[EnginePlace]] = {}
    for track, (sampled, trained) in enumerate(_tracks(experiment)):
        # The parts of the first track may be on other machines then.
        elsewhere = track == 0 and runtime.task_runner is TaskRunnerName.dask
        for shard in range(1 if elsewhere else runtime.shards):
            place = (track * runtime.shards + shard) % max(1, gpus // runtime.engine_gpus)
            made.setdefault(place, []).append(EnginePlace(sampled, trained if shard == 0 else set()))
    return list(made.values())


def served(experiment: Experiment) -> dict[str, ServerConfig]:
    """The roles of the recipe that a server samples for whose weights are handed over, and the server of each."""
    method, servers = experiment.method, experiment.runtime.servers
    engines = {name: method.role(name).engine for name in method.recipe.roles()}
    return {
        name: servers.get(method.owner(name), ServerConfig())
        for name, engine in engines.items()
        if engine.SERVED and not engine.REMOTE
    }


def due_stages(recipe: Recipe, method: Method) -> list[Stage]:
    """The stages of a recipe that are due in some round after the first."""
    rounds = range(1, _LOOKED_AHEAD + 1)
    return [stage for stage in recipe.stages if any(stage.due(method, number) for number in rounds)]


def _tracks(experiment: Experiment) -> list[tuple[Set[str], Set[str]]]:
    """(roles that are sampled from, weights that are trained) in each track."""
    method = experiment.method
    roles, owners = set(method.recipe.roles()), set(method.trained())
    if not method.overlap or experiment.runtime.overlap_engines == 1:
        return [(roles, owners)]
    from crl.recipes import recipe_of

    recipe = recipe_of(method)
    found: list[tuple[set[str], set[str]]] = [(set(), set()), (set(), set())]
    for stage in (*recipe.stages_of(method, 0), *due_stages(recipe, method)):
        sampled, trained = found[stage.second_track]
        named = {stage.role or "", *(read.name for read in stage.reads)}
        sampled |= roles & named if Weights not in stage.writes else set()  # what trains samples nothing
        trained |= owners & {stage.role or ""} if stage.update else set()
    unnamed = roles.difference(*(sampled for sampled, _ in found))  # any stage may ask for these
    return [(sampled | unnamed, trained) for sampled, trained in found]
