"""Servers of an experiment: whether each can be used, and whether one would have to hold two sets of weights at a time.

A run may go on with other servers than it began with (`runtime.servers`), so this is checked with every start of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from crl.config import Experiment
from crl.config.engines import ServedEngine, ServerConfig
from crl.errors import BadInput
from crl.preflight.placement import due_stages, engines_by_gpu, machine_of, served, serving
from crl.rounds.stage import Recipe, Stage

_MOST_OF_A_GPU = 0.95
"""Share of its memory that servers may take together, as one may alone (`gpu_memory_utilization`)."""


def server_checks(experiment: Experiment) -> list[tuple[str, Callable[[], None]]]:
    """What servers must be, by the place in the config that asks for them."""
    method, servers = experiment.method, experiment.runtime.servers
    found: list[tuple[str, Callable[[], None]]] = []
    holders: dict[str, str] = {}
    for owner in method.owners():
        engine, server = method.role(owner).engine, servers.get(owner, ServerConfig())
        if not isinstance(engine, ServedEngine):
            continue
        context = max(role.context for name, role in method.roles.items() if method.owner(name) == owner)
        elsewhere = server.address is None and not machine_of(experiment).here  # so is vLLM
        checks = [] if elsewhere else [partial(engine.check, owner, server, context)]
        # An endpoint keeps its own weights and may have many models.
        if server.address is not None and not engine.REMOTE:
            other = holders.setdefault(server.address.rstrip("/").lower(), owner)
            checks.insert(0, partial(_check_alone, owner, other, server.address))
            checks.insert(1, partial(_check_tracks, experiment, owner, server.address))
        if server.address is None and not engine.REMOTE:
            checks.append(partial(_check_memory, experiment, owner))
        found.append((f"runtime.servers.{owner}", partial(_all, checks)))
    return found


def _all(checks: Sequence[Callable[[], None]]) -> None:
    for check in checks:
        check()


def _check_alone(owner: str, other: str, address: str) -> None:
    """Raise BadInput where another role, with weights of its own, has the server of a role."""
    if owner != other:
        raise BadInput(
            f"the roles {other} and {owner} have weights of their own and the same server, {address}",
            expected="a server for each: it holds one set of weights, and each hand-over would replace the other's",
            where=f"runtime.servers.{owner}.address",
            next_step=f"start another server, leave the address out, or share weights: method.roles.{owner}.weights",
        )


def _check_memory(experiment: Experiment, owner: str) -> None:
    """Raise BadInput where the servers that start on one GPU would take all of its memory.

    Each engine starts one per set of weights, or per base of several. It is said at the last role that has one.
    """
    from crl.policies.machine import gpu_count  # torch takes seconds to import

    method = experiment.method
    started = {name: each.gpu_memory_utilization for name, each in served(experiment).items() if each.address is None}
    if not (gpus := gpu_count()) or owner != method.owner([*started][-1]):
        return
    holders: dict[str, list[str]] = {}
    whose = serving(experiment, on_gpu=True)
    for name in started:
        holders.setdefault(whose[name], []).append(name)
    taken = [
        (
            len(engines),
            {
                " and ".join(names): started[names[0]] * sum(not each.sampled.isdisjoint(names) for each in engines)
                for names in holders.values()
            },
        )
        for engines in engines_by_gpu(experiment, gpus)
    ]
    count, shares = max(taken, key=lambda each: sum(each[1].values()))
    if sum(shares.values()) < _MOST_OF_A_GPU + 1e-9:
        return
    told = " and ".join(f"{share:g} for {name}" for name, share in shares.items())
    raise BadInput(
        f"the servers that start on one GPU would take {told} of its memory"
        + (f": {count} engines share it" if count > 1 else ""),
        expected=f"at most {_MOST_OF_A_GPU} together: they run side by side, one per set of weights in each engine",
        where=f"runtime.servers.{owner}.gpu_memory_utilization",
        next_step="lower the shares, or start a server elsewhere and name its address"
        + (", or run fewer engines: runtime.shards, runtime.overlap_engines" if count > 1 else ""),
    )


def _check_tracks(experiment: Experiment, owner: str, address: str) -> None:
    """Raise BadInput where two rounds overlap on two engines and give the server of a role different weights."""
    method = experiment.method
    if not method.overlap or experiment.runtime.overlap_engines == 1:
        return
    from crl.rounds.recipe import recipe_of

    recipe = recipe_of(method)
    roles = {role for role in method.uses() if method.owner(role) == owner}
    due = due_stages(recipe, method)
    # The first track is a round ahead: the ages of its reads are compared as the second track counts rounds.
    ahead = {age + 1: stage.name for stage in due if not stage.second_track for age in _ages(recipe, stage, roles)}
    behind = {age: stage.name for stage in due if stage.second_track for age in _ages(recipe, stage, roles)}
    conflict = next(((first, second) for first in ahead for second in behind if first != second), None)
    if conflict is not None:
        first, second = ahead[conflict[0]], behind[conflict[1]]
        raise BadInput(
            f"two rounds overlap on two engines, and the server {address} would hold two sets of the {owner}'s "
            f"weights at a time: for `{first}` of a round and `{second}` of the one before",
            expected="no address, so that each engine starts a server of its own, or one engine",
            where=f"runtime.servers.{owner}.address",
            next_step="leave the address out, or set runtime.overlap_engines: 1",
        )


def _ages(recipe: Recipe, stage: Stage, roles: set[str]) -> list[int]:
    """Round offsets of the weights that a stage samples with for these roles; none of weights that are not trained."""
    writers = {each.name for each in recipe.stages if each.update}
    return [read.offset for read in stage.reads if read.name in roles and read.stage in writers]
