"""The tasks that a round plays, as rows: in groups, or once each as held-out ones and probes are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, islice

from crl.config import FamilyConfig, Method, SeedRange
from crl.credit.samples import varied_groups
from crl.protocols import Start
from crl.records import FREE, Episode, Task
from crl.rollout.environments import Readable
from crl.rounds.context import StageContext
from crl.rounds.provenance import games_from, naming
from crl.rounds.stage import BEFORE, draw_of
from crl.rounds.waves import starts_of, together, wave_width

_FURTHER = 2
"""Further seeds that are drawn, for each group of a round, where tasks are there twice."""
TaskSeed = tuple[str, int]
"""A task family and an environment seed."""


def train_seeds(family: FamilyConfig) -> SeedRange:
    """All train seeds of a family."""
    return family.train_seeds


def drawn_tasks(
    ctx: StageContext,
    streams: Callable[[int], Sequence[str]],
    seeds_of: Callable[[FamilyConfig], SeedRange] = train_seeds,
    *,
    pooled: bool = False,
    kept: str | None = None,
) -> list[Task]:
    """The tasks of a round, a group of members for each. In a further draw (`crl.rounds.draws`) those of as many groups
    as there are whose outcome varies nowhere so far; seeds that were drawn already come last.

    Args:
        streams: for a group size the stream of each member.
        seeds_of: which seeds of a family are drawn from.
        pooled: all of a group have one baseline (:func:`varied_groups`).
        kept: a stream whose groups are never drawn again.
    """
    further = draw_of(ctx.stage.name)[1] > 1
    before = ctx.rows(Task, BEFORE) if further else []
    done = varied_groups(ctx.rows(Episode, "collect"), pooled=pooled) if further else set()
    done |= {(task.family, task.group) for task in before if task.stream == kept}
    tasks: list[Task] = []
    for family in ctx.method.families:
        members = streams(ctx.method.group_size(family))
        first_group = len({task.group for task in (*before, *tasks)})
        wanted = family.groups - sum(name == family.name for name, _ in done)
        mine = [task for task in before if task.family == family.name]
        if wanted > 0:
            tasks += _family_tasks(ctx, family, seeds_of(family), members, first_group, wanted, mine)
        ctx.progress(len(tasks), sum(each.groups * ctx.method.group_size(each) for each in ctx.method.families))
    return tasks


def task_of(
    ctx: StageContext,
    start: Start,
    *,
    episode_id: str,
    family: str,
    group: int,
    environment_seed: int,
    member: int = 0,
    stream: str = FREE,
) -> Task:
    """The row of one episode to play."""
    return Task(
        episode_id=episode_id,
        round=ctx.round,
        family=family,
        group=group,
        member=member,
        environment_seed=environment_seed,
        stream=stream,
        goal=start.goal,
        first_observation=start.observation,
        query=query_of(start),
        task_digest=start.task_digest,
    )


def query_of(start: Start) -> str:
    """What an episode's experiences are searched by: the task description, goal and first observation."""
    return f"{start.goal}\n{start.observation}"


def _family_tasks(
    ctx: StageContext,
    family: FamilyConfig,
    seeds: SeedRange,
    streams: Sequence[str],
    first_group: int,
    wanted: int,
    before: Sequence[Task],
) -> list[Task]:
    import numpy as np

    generator = np.random.default_rng(ctx.seed(family.name))
    # Distinct tasks where there are so many, so that a round is not the same task over and over.
    listed = family.drawn if seeds == family.train_seeds else range(seeds.start, seeds.start + seeds.count)
    played = {task.environment_seed for task in before}
    size = max(wanted, min(wanted + len(played), len(listed)))
    drawn = generator.choice(len(listed), size=size, replace=size > len(listed))
    seeds_drawn = sorted((listed[int(value)] for value in drawn), key=played.__contains__)
    further = (listed[int(generator.integers(len(listed)))] for _ in range(_FURTHER * wanted))
    readable = Readable(ctx.environment(family.name), ctx.method.rollout.max_observation_characters)

    def starts_of_seeds(environment_seeds: Sequence[int]) -> list[Start]:
        with naming(family.name):
            starts = readable.reset_many(environment_seeds)
        ctx.add_games(games_from(starts, [(family.name, seed) for seed in environment_seeds]))
        return starts

    known = {task.task_digest for task in before} - {""}
    places = distinct(chain(seeds_drawn, further), wanted, starts_of_seeds, known)
    return [
        task_of(
            ctx,
            start,
            episode_id=f"r{ctx.round:04d}-{family.name}-g{first_group + index:04d}-m{member:03d}",
            family=family.name,
            group=first_group + index,
            environment_seed=environment_seed,
            member=member,
            stream=stream,
        )
        for index, (environment_seed, start) in enumerate(places)
        for member, stream in enumerate(streams)
    ]


def distinct(
    seeds: Iterable[int],
    wanted: int,
    starts_of: Callable[[Sequence[int]], Sequence[Start]],
    taken: Collection[str] = (),
) -> list[tuple[int, Start]]:
    """The first seeds, with their starts, whose tasks differ from each other and are not `taken`, by their digests.

    Where there are too few of them, the list is filled with the others. A task without a digest differs from all.
    """
    found: list[tuple[int, Start]] = []
    others: list[tuple[int, Start]] = []
    known, left = set(taken), iter(seeds)
    while len(found) < wanted and (part := list(islice(left, wanted - len(found)))):
        for seed, start in zip(part, starts_of(part), strict=True):
            (others if start.task_digest in known else found).append((seed, start))
            known |= {start.task_digest} - {""}
    return [*found, *others][:wanted]


def waves_over(method: Method, seeds_of: Callable[[FamilyConfig], Iterable[int]]) -> list[list[TaskSeed]]:
    """The seeds of every family in waves as wide as those of training: of one family, unless waves mix."""
    width = wave_width(method)
    shared: dict[str, list[TaskSeed]] = {}
    first_of = together(method)
    for family in method.families:
        shared.setdefault(first_of[family.name], []).extend((family.name, seed) for seed in seeds_of(family))
    return [places[at : at + width] for places in shared.values() for at in range(0, len(places), width)]


def tasks_at(
    ctx: StageContext, wave: Sequence[TaskSeed], *, name: Callable[[str, int], str], stream: str = FREE
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
