"""The results of an evaluation: one per task and arm, and the average over the tasks of each arm.

The average is over tasks (macro): a task with many episodes weighs as much as one with few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crl.protocols import StopReason
from crl.records import Evaluation
from crl.report.rates import NOTHING, Average, Rate, average

AVERAGE = "macro average"
"""What the result over all tasks is called. No task is: the name of a task has no blank."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The episodes of one arm: of one task, or the mean over its tasks, each with equal weight."""

    task: str
    """Name of the task family, or :data:`AVERAGE`."""
    arm: str
    """As in the rows: with_bank, without_bank or random."""
    won: Rate | None
    """None of an average: its tasks are not added up."""
    success: Average
    """Share of the episodes won, with its interval: Wilson's of one task."""
    episodes: int
    broken: int
    """Episodes that broke before their end: they count as lost."""
    tasks: int
    score: float
    """Mean reward of an episode."""
    actions: float
    """Turns of an episode, mean."""
    tokens_read: float
    """Tokens that the actor read in an episode, mean; likewise below."""
    tokens_written: float
    invalid_share: float
    """Invalid actions, as a share of all."""
    guided: int
    """Episodes that were given an experience."""

    @property
    def tokens(self) -> float:
        """Tokens of an episode, read and written."""
        return self.tokens_read + self.tokens_written

    @property
    def arm_words(self) -> str:
        """`with bank`."""
        return self.arm.replace("_", " ")

    @property
    def won_words(self) -> str:
        """`3/8`, or `3/8, 2 broke`; of an average nothing."""
        return NOTHING if self.won is None else str(self.won)

    def figures(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "task": self.task,
            "arm": self.arm,
            "episodes": self.episodes,
            "won": None if self.won is None else self.won.successes,
            "broken": self.broken,
            "success": self.success.mean,
            "low": self.success.low,
            "high": self.success.high,
            "score": self.score,
            "actions": self.actions,
            "tokens": self.tokens,
            "tokens_read": self.tokens_read,
            "tokens_written": self.tokens_written,
            "invalid_share": self.invalid_share,
            "guided": self.guided,
        }


def results(rows: Sequence[Evaluation]) -> list[ArmResult]:
    """The results by task and arm, in order of their names."""
    groups: dict[tuple[str, str], list[Evaluation]] = {}
    for row in rows:
        groups.setdefault((row.family, row.arm), []).append(row)
    return [_result(task, arm, groups[task, arm]) for task, arm in sorted(groups)]


def averages(found: Sequence[ArmResult]) -> list[ArmResult]:
    """The average of each arm over the results of its tasks, in order of the arms' names."""
    arms: dict[str, list[ArmResult]] = {}
    for result in found:
        arms.setdefault(result.arm, []).append(result)
    return [_average(arm, arms[arm]) for arm in sorted(arms)]


def with_averages(found: Sequence[ArmResult]) -> list[ArmResult]:
    """The results, then the averages of the arms that have several tasks."""
    return [*found, *(each for each in averages(found) if each.tasks > 1)]


def _result(task: str, arm: str, mine: Sequence[Evaluation]) -> ArmResult:
    def mean(of: Callable[[Evaluation], float]) -> float:
        return math.fsum(map(of, mine)) / len(mine)

    turns = sum(row.turns for row in mine)
    return result_of(
        task,
        arm,
        Rate(
            sum(row.success for row in mine), len(mine), sum(row.stop_reason == StopReason.error.value for row in mine)
        ),
        score=mean(lambda row: row.reward),
        actions=turns / len(mine),
        tokens_read=mean(lambda row: row.tokens_read),
        tokens_written=mean(lambda row: row.tokens_sampled),
        invalid_share=sum(row.invalid_actions for row in mine) / max(turns, 1),
        guided=sum(row.guided for row in mine),
    )


def result_of(
    task: str,
    arm: str,
    won: Rate,
    *,
    score: float,
    actions: float,
    tokens_read: float,
    tokens_written: float,
    invalid_share: float,
    guided: int,
) -> ArmResult:
    """The result of one task in one arm, of at least one episode, from figures that somebody else has added up."""
    return ArmResult(
        task=task,
        arm=arm,
        won=won,
        success=_certain(average([won])),
        episodes=won.episodes,
        broken=won.broken,
        tasks=1,
        score=score,
        actions=actions,
        tokens_read=tokens_read,
        tokens_written=tokens_written,
        invalid_share=invalid_share,
        guided=guided,
    )


def _average(arm: str, mine: Sequence[ArmResult]) -> ArmResult:
    def mean(of: Callable[[ArmResult], float]) -> float:
        return math.fsum(map(of, mine)) / len(mine)

    return ArmResult(
        task=AVERAGE,
        arm=arm,
        won=None,
        success=_certain(average([result.won for result in mine if result.won is not None])),
        episodes=sum(result.episodes for result in mine),
        broken=sum(result.broken for result in mine),
        tasks=len(mine),
        score=mean(lambda result: result.score),
        actions=mean(lambda result: result.actions),
        tokens_read=mean(lambda result: result.tokens_read),
        tokens_written=mean(lambda result: result.tokens_written),
        invalid_share=mean(lambda result: result.invalid_share),
        guided=sum(result.guided for result in mine),
    )


def _certain(found: Average | None) -> Average:
    assert found is not None, "a result has episodes"
    return found
