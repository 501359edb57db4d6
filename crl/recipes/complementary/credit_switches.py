"""What switches add to stage `credit`: rewards by trial, by other tasks and by trend, and effects of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from crl.credit.buffer import SCORED
from crl.credit.other_credit import (
    TaskKey,
    Tasks,
    task_of_episode,
    trend_rewards,
    utilities_after,
)
from crl.credit.trials import trial_rewards
from crl.recipes.complementary.config import config_of
from crl.records import (
    TRIAL,
    BufferItem,
    CandidateUtility,
    Distillation,
    Episode,
    Retrieval,
    Trial,
    UseReward,
)
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE


class ScoredAtOnce(NamedTuple):
    """What outputs of the round earn before any use of their notes."""

    kind: str
    """`used`: it is one use of several; `scored`: uses earn nothing."""
    rewards: Mapping[str, float]


def scored_at_once(ctx: StageContext) -> ScoredAtOnce:
    """By a trial or by the trend; nothing, beside uses, where neither pays."""
    config = config_of(ctx.method)
    if config.extractor_objective.credit == "trend":
        distilled, episodes = ctx.rows(Distillation, "distill"), ctx.rows(Episode, "collect")
        before = ctx.rows(CandidateUtility, BEFORE)
        return ScoredAtOnce(SCORED, trend_rewards(distilled, episodes, ctx.rows(Retrieval, "plan"), before))
    if config.trial is None or config.trial.reward == "uses":
        return ScoredAtOnce("used", {})
    return ScoredAtOnce(SCORED if config.trial.reward == "trial" else "used", trial_rewards(ctx.rows(Trial, TRIAL)))


def utilities(ctx: StageContext) -> list[CandidateUtility]:
    """Running utilities after the round."""
    decay = config_of(ctx.method).extractor_objective.usefulness_decay
    before = ctx.rows(CandidateUtility, BEFORE)
    return utilities_after(before, ctx.rows(Episode, "collect"), ctx.rows(Retrieval, "plan"), decay)


def tasks_of(ctx: StageContext, uses: Iterable[UseReward], origins: Mapping[str, tuple[int, str]]) -> Tasks:
    """The tasks of the round's episodes, and of the outputs that earn by the uses: those whose texts were used, whose
    `origins` these are, and those that repeated one."""
    used = {use.generation_id for use in uses}
    repeating = {
        item.generation_id: (item.generation_round, item.generation_stage)
        for item in ctx.rows(BufferItem, BEFORE)
        if not used.isdisjoint(item.repeats)
    }
    tasks = {row.episode_id: task_of_episode(row) for row in ctx.rows(Episode, "collect")}
    return Tasks(tasks, _own_tasks(ctx, {**origins, **repeating}))


def _own_tasks(ctx: StageContext, origins: Mapping[str, tuple[int, str]]) -> dict[str, TaskKey]:
    """The task that each output was distilled from, read from the round that wrote it."""
    own: dict[str, TaskKey] = {}
    for number in sorted({number for number, stage in origins.values() if stage == "distill"}):
        tasks = {row.episode_id: task_of_episode(row) for row in ctx.rows_at(Episode, number, "collect")}
        for row in ctx.rows_at(Distillation, number, "distill"):
            if row.generation_id in origins and row.episode_id is not None:
                own[row.generation_id] = tasks[row.episode_id]
    return own
