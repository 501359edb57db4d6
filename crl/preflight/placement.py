"""Where an experiment computes: the engines of its tracks, what samples and learns in each, and which share a GPU.

As `crl/engine/driver.py` and `crl/engine/pool.py` place them: the engines of a second track come behind those of the
first, and devices are given out in turn, from the first again where there are too few. An update over several ranks
has an engine of its own, with a rank on each device from that of its track's first shard on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from crl.config import Experiment, Method
from crl.config.engines import ServerConfig
from crl.records import Weights
from crl.rounds.stage import Recipe, Stage
from crl.rounds.waves import together

_LOOKED_AHEAD = 1000
"""Rounds in one of which a stage must be due to count."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the stages of one engine ask it for."""

    sampled: Set[str]
    """Roles whose models it samples from."""
    trained: Set[str]
    """Weights that it updates, or a rank in its place: it frees its models before."""


def engines_by_gpu(experiment: Experiment, gpus: int) -> list[list[EngineLoad]]:
    """Every engine that runs on this machine, which has so many GPUs: those that share one are listed together."""
    runtime, made = experiment.runtime, dict[int, list[EngineLoad]]()
    places = max(1, gpus // runtime.engine_gpus)
    for track, (sampled, trained) in enumerate(_tracks(experiment)):
        first = track * runtime.shards % places
        learning = _learning(experiment, trained, first, gpus)
        # The parts of the first track may be on other machines then.
        elsewhere = track == 0 and runtime.parts_elsewhere
        for shard in range(1 if elsewhere else runtime.shards):
            place = (first + shard) % places
            made.setdefault(place, []).append(EngineLoad(sampled, learning.pop(place, set())))
        for place, owners in learning.items():
            made.setdefault(place, []).append(EngineLoad(set(), owners))
    return list(made.values())


def _learning(experiment: Experiment, trained: Set[str], first: int, gpus: int) -> dict[int, set[str]]:
    """Which weights are updated in each place, of a track whose first shard has the place `first`."""
    runtime, found = experiment.runtime, {first: set(trained)}
    for owner in trained if gpus and runtime.nodes is None else ():
        for rank in range(experiment.method.role(owner).deepspeed.ranks):
            place = (first * runtime.engine_gpus + rank) % gpus // runtime.engine_gpus
            found.setdefault(place, set()).add(owner)
    return found


def served(experiment: Experiment) -> dict[str, ServerConfig]:
    """The roles of the recipe that a server samples for whose weights are handed over, and the server of each."""
    method, servers = experiment.method, experiment.runtime.servers
    engines = {name: method.role(name).engine for name in method.uses()}
    return {
        name: servers.get(method.owner(name), ServerConfig())
        for name, engine in engines.items()
        if engine.SERVED and not engine.REMOTE
    }


def due_stages(recipe: Recipe, method: Method) -> list[Stage]:
    """The stages of a recipe that are due in some round after the first."""
    rounds = range(1, _LOOKED_AHEAD + 1)
    return [stage for stage in recipe.stages if any(stage.due(method, number) for number in rounds)]


def collecting_parts(method: Method) -> int:
    """Waves of a round's games: the parts of `collect`. (Synthetic games have waves of their own.)"""
    first_of = together(method)
    groups: Counter[str] = Counter()
    for family in method.families:
        groups[first_of[family.name]] += family.groups
    return sum(-(-count // method.rollout.wave_groups) for count in groups.values())


def _tracks(experiment: Experiment) -> list[tuple[Set[str], Set[str]]]:
    """(roles that are sampled from, weights that are trained) in each track."""
    method = experiment.method
    roles, owners = set(method.uses()), set(method.trained())
    if not method.overlap or experiment.runtime.overlap_engines == 1:
        return [(roles, owners)]
    from crl.rounds.recipe import recipe_of

    recipe = recipe_of(method)
    found: list[tuple[set[str], set[str]]] = [(set(), set()), (set(), set())]
    for stage in (*recipe.stages_of(method, 0), *due_stages(recipe, method)):
        sampled, trained = found[stage.second_track]
        named = {stage.role or "", *(read.name for read in stage.reads)}
        sampled |= roles & named if Weights not in stage.writes else set()  # what trains samples nothing
        trained |= owners & {stage.role or ""} if stage.update else set()
    unnamed = roles.difference(*(sampled for sampled, _ in found))  # any stage may ask for these
    return [(sampled | unnamed, trained) for sampled, trained in found]
