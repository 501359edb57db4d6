"""Where an experiment computes: the engines of its tracks, what samples and learns in each, and which share a GPU.

As `crl/engine/driver.py` and `crl/engine/pool.py` place them: the engines of a second track come behind those of the
first, and devices are given out in turn, from the first again where there are too few. An update over several ranks
has an engine of its own, with a rank on each device from that of its track's first shard on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from crl.config import Experiment, Method, RoleConfig
from crl.config.engines import ServerConfig
from crl.policies import machine as computer
from crl.records import Weights
from crl.rounds.stage import Recipe, Stage
from crl.rounds.waves import together

_LOOKED_AHEAD = 1000
"""Rounds in one of which a stage must be due to count."""
_OF_ITS_NAME = 0.95
"""Share of the memory that its maker counts which a GPU tells of at least: of 24 GB an L4 has 22.0 GiB, an A10 22.2.
The next smaller ones have four fifths."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What an experiment is reckoned for: each machine, where it runs on several."""

    gpus: int
    """0: everything runs on the CPU."""
    gpu_bytes: int
    """Memory of each."""
    here: bool = True
    """False where this machine has not the GPUs that the experiment is made for."""

    def computed(self, role: RoleConfig) -> RoleConfig:
        """The role as it is computed there: GPUs have bfloat16."""
        return computer.computed(role) if self.here else role


def machine_of(experiment: Experiment) -> Machine:
    """This machine, or the one that `runtime.gpus` describes where this one has not as much."""
    meant = experiment.runtime.gpus
    count, size = computer.gpu_count(), computer.device_bytes() or 0
    if meant is None or (count >= meant.count and size >= _OF_ITS_NAME * meant.device_bytes):
        return Machine(count, size)
    return Machine(meant.count, meant.device_bytes, here=False)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the stages of one engine ask it for."""

    sampled: Set[str]
    """Roles whose models it samples from."""
    trained: Set[str]
    """Weights that it updates, or a rank in its place: it frees its models before."""


def engines_by_gpu(experiment: Experiment, gpus: int) -> list[list[EngineLoad]]:
    """Every engine that runs on a machine with so many GPUs: those that share one are listed together, in the order of
    the GPUs; a server over several counts as one of them.

    Of a run on several machines, where `runtime.gpus` says what each has, the first one.
    """
    runtime, made = experiment.runtime, dict[int, list[EngineLoad]]()
    places = max(1, gpus // runtime.engine_gpus)
    for track, (sampled, trained) in enumerate(_tracks(experiment)):
        first = track * runtime.shards % places
        learning = _learning(experiment, trained, first, gpus)
        # The parts of the first track may be on other machines then; each GPU has one worker.
        elsewhere = track == 0 and runtime.parts_elsewhere
        several = min(runtime.shards, places if runtime.gpus is not None else 1)
        for shard in range(several if elsewhere else runtime.shards):
            place = (first + shard) % places
            made.setdefault(place, []).append(EngineLoad(sampled, learning.pop(place, set())))
        for place, owners in learning.items():
            made.setdefault(place, []).append(EngineLoad(set(), owners))
    return [made[place] for place in sorted(made)]


def _learning(experiment: Experiment, trained: Set[str], first: int, gpus: int) -> dict[int, set[str]]:
    """Which weights are updated in each place, of a track whose first shard has the place `first`."""
    runtime, found = experiment.runtime, {first: set(trained)}
    for owner in trained if gpus and (runtime.nodes is None or runtime.gpus is not None) else ():
        ranks = experiment.method.role(owner).deepspeed.ranks
        for rank in range(ranks if runtime.nodes is None else min(ranks, gpus)):
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


def serving(experiment: Experiment, *, on_gpu: bool) -> dict[str, str]:
    """Whose server samples for each of these roles: one has a set of weights, or on a GPU a base and the adapters of
    all roles on it that are sampled alike by servers of equal settings (`crl/engine/vllm_weights.py`)."""
    method, servers = experiment.method, served(experiment)
    first: dict[object, str] = {}
    found = {}
    for name, server in servers.items():
        owner, role = method.owner(name), method.role(name)
        base = method.base(name)
        alike = owner if base is None or not on_gpu else (base, role.engine.kind, role.dtype, server.model_dump_json())
        found[name] = first.setdefault(alike, owner)
    return found


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
