"""Stage `collect`: the tasks of a round, in the experience model or in the real environment, and their transitions.

Parts are waves of whole groups of one kind, the synthetic ones first. The same code plays both. With
`rollout.mixed_waves` a synthetic wave may hold several families, whose steps are predicted as one batch; a real one is
of one family.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.recipes.dreamgym.config import ACTOR, config_of
from crl.recipes.dreamgym.environment import DreamEnvironment, Rules
from crl.recipes.dreamgym.explore import transitions_of, watched_wave
from crl.recipes.dreamgym.predicting import ExperienceModel
from crl.recipes.dreamgym.rows import FAILURE, REAL, TURN_LIMIT, PoolItem, Prediction, Transition
from crl.recipes.dreamgym.store import POOL, Store, items_of
from crl.recipes.dreamgym.store import transitions_of as rows_of_items
from crl.records import SYNTHETIC, Episode, Generation, Task, Turn
from crl.rollout.play import EpisodeSlot, PlayedEpisode, waves_of
from crl.rounds.context import StageContext
from crl.rounds.waves import play_with_actor, starts_of, together

COLLECT, PLAN = "collect", "plan"


def waves(ctx: StageContext) -> list[list[Task]]:
    """The tasks of the round in waves, the synthetic ones first."""
    tasks, width = ctx.rows(Task, PLAN), ctx.method.rollout.wave_groups
    synthetic, real = ([task for task in tasks if task.stream == stream] for stream in (SYNTHETIC, REAL))
    return [*waves_of(synthetic, width, together(ctx.method)), *waves_of(real, width)]


def count_parts(ctx: StageContext) -> int:
    """Waves of the round; one that is empty where nothing is planned."""
    return max(1, len(waves(ctx)))


def collect_part(ctx: StageContext, part: int) -> None:
    """Play one wave with the actor of the round before."""
    tasks = [task for wave in waves(ctx)[part : part + 1] for task in wave]
    played: list[PlayedEpisode] = []
    transitions: list[Transition] = []
    predictions: list[Prediction] = []
    records: list[Generation] = []
    slots = [EpisodeSlot(task) for task in tasks]
    if tasks and tasks[0].stream == SYNTHETIC:
        dream = dream_of(ctx, tasks)
        played = play_with_actor(ctx, slots, environment=dream, predicted=True, work=f"play {SYNTHETIC}")
        transitions, predictions, records = dream.rows()
    elif tasks:
        watched = watched_wave(ctx, slots)
        played = play_with_actor(ctx, slots, environment=watched, work=f"play {REAL}")
        transitions = transitions_of(ctx, tasks, watched, ACTOR)
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    ctx.write(Generation, [*(record for each in played for record in each.generations), *records])
    ctx.write(Transition, transitions)
    ctx.write(Prediction, predictions)


def dream_of(ctx: StageContext, tasks: Sequence[Task]) -> DreamEnvironment:
    """The experience model as the environment of a wave."""
    config = config_of(ctx.method)
    store = Store(ctx, config.store)
    return DreamEnvironment(
        ExperienceModel(ctx),
        tasks,
        starts_of(ctx, [(task.family, task.environment_seed) for task in tasks]),
        neighbors=store.nearest,
        rules={family: rules_of(ctx, family) for family in dict.fromkeys(task.family for task in tasks)},
        history=config.predict.history,
        round_number=ctx.round,
    )


def rules_of(ctx: StageContext, family: str) -> Rules:
    """What real episodes of a family say: how long they last, and what they may be worth (0 is always possible).

    What a limit ends is worth as little as any real episode that the turn limit ended, or where there is none, as any
    that failed; 0 where there is neither.
    """
    config = ctx.method.family(family)
    limit = None if config is None else config.in_round(ctx.round).turn_limit
    rows = rows_of_items(ctx, items_of(ctx.table(PoolItem, POOL), [REAL], [family]))
    rewards = [0.0, *(row.reward for row in rows)]
    longest = max((row.turn + 1 for row in rows), default=1)
    limited, failed = ([row.reward for row in rows if row.outcome == outcome] for outcome in (TURN_LIMIT, FAILURE))
    failure = min(limited or failed or [0.0])
    return Rules(limit if limit is not None else longest, (min(rewards), max(rewards)), failure)
