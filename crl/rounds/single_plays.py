"""Tasks that are played once each, outside of groups: held-out ones in evaluations, and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from crl.config import FamilyConfig, Method
from crl.records import FREE, Task
from crl.rounds.context import StageContext
from crl.rounds.tasks import task_of
from crl.rounds.waves import starts_of, together

Place = tuple[str, int]
"""A task family and an environment seed."""


def waves_over(method: Method, seeds_of: Callable[[FamilyConfig], Iterable[int]]) -> list[list[Place]]:
    """The seeds of every family in waves as wide as those of training: of one family, unless waves mix."""
    width = method.rollout.wave_groups * method.rollout.group_size
    shared: dict[str, list[Place]] = {}
    first_of = together(method)
    for family in method.families:
        shared.setdefault(first_of[family.name], []).extend((family.name, seed) for seed in seeds_of(family))
    return [places[at : at + width] for places in shared.values() for at in range(0, len(places), width)]


def tasks_at(
    ctx: StageContext, wave: Sequence[Place], *, name: Callable[[str, int], str], stream: str = FREE
) -> list[Task]:
    """One task per place of a wave; `name` gives the id of its episode."""
    return [
        task_of(
            ctx,
            start,
            episode_id=name(family, seed),
            family=family,
            group=index,
            environment_seed=seed,
            stream=stream,
        )
        for index, ((family, seed), start) in enumerate(zip(wave, starts_of(ctx, wave, played_here=True), strict=True))
    ]
