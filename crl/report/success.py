"""Won games out of played ones, with what chance leaves open: rates, and the results of an evaluation by task and
condition.

The interval is that of Wilson (1927, "Probable inference, the law of succession, and statistical inference", JASA 22),
at 95 %: honest for few games and for rates near 0 and 1. Where held-out tasks are played several times it counts as
many episodes as these plays are good for (:func:`effective_episodes`), and there is pass@k (:func:`pass_at`). An
average is over task families (macro): one with many episodes weighs as much as one with few. Its interval comes from
those of the families (:func:`average`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from crl.protocols import StopReason
from crl.report.cells import NOTHING

if TYPE_CHECKING:
    from crl.records import Evaluation

Z = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""
AVERAGE = "macro average"
"""What the result over all tasks is called. No task is: the name of a task has no blank."""


def wilson(successes: float, episodes: float) -> tuple[float, float]:
    """The ends of the 95 % interval of a success rate, in 0 to 1; the counts may be effective ones.

    Raises ValueError without episodes, and for other successes than 0 to `episodes`.
    """
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"{successes} successes of {episodes} episodes are no rate")
    share = successes / episodes
    middle = (share + Z**2 / (2 * episodes)) / (1 + Z**2 / episodes)
    half = Z / (1 + Z**2 / episodes) * math.sqrt(share * (1 - share) / episodes + Z**2 / (4 * episodes**2))
    # At the ends the two terms cancel: what rounding leaves of them is no part of the interval.
    return 0.0 if successes == 0 else middle - half, 1.0 if successes == episodes else middle + half


def effective_episodes(shares_M: Sequence[float], most: float) -> float:
    """How many independent episodes say as much as the plays of M held-out tasks, which have a mean each: plays of one
    task are not independent. `most`, at least M, is what it is where all plays are.

    p (1 - p) over the variance of the mean, which the means of the tasks show (Korn and Graubard 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data", Survey
    Methodology 24). (M - 1) / (M + 2) stands for their (z / t)²: few tasks show their variance badly. No plays of M
    tasks say less than M episodes.
    """
    tasks, mean = len(shares_M), math.fsum(shares_M) / len(shares_M)
    if tasks == 1 or not 0 < mean < 1:
        return tasks
    spread = math.fsum((share - mean) ** 2 for share in shares_M) / (tasks - 1)
    found = mean * (1 - mean) * tasks * (tasks - 1) / (tasks + 2)
    return most if found >= most * spread else max(tasks, found / spread)


def pass_at(won: int, plays: int, k: int) -> float:
    """pass@k of a task: how likely one of k of its plays was won, over all choices of k (Chen et al. 2021,
    arXiv 2107.03374). Raises ValueError unless 1 <= k <= plays and 0 <= won <= plays."""
    if not (1 <= k <= plays and 0 <= won <= plays):
        raise ValueError(f"pass@{k} of {won} won plays of {plays}")
    return 1 - math.comb(plays - won, k) / math.comb(plays, k)


@dataclass(frozen=True, slots=True)
class Rate:
    """Successes of a number of episodes."""

    successes: int
    episodes: int
    broken: int = 0
    """Of the episodes, those that broke before their end: they count as lost."""
    effective: float | None = None
    """Episodes that the interval counts: :func:`effective_episodes`; None: all."""

    @property
    def value(self) -> float | None:
        """Share of successes; None without episodes."""
        return self.successes / self.episodes if self.episodes else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval; None without episodes."""
        return wilson(self.successes / self.episodes * self._counted, self._counted) if self.episodes else None

    @property
    def _counted(self) -> float:
        return self.episodes if self.effective is None else self.effective

    @property
    def percent(self) -> str:
        """`38 %`."""
        return f"{100 * self.successes / self.episodes:.0f} %" if self.episodes else NOTHING

    @property
    def span(self) -> str:
        """The interval in percent: `14–69`."""
        if self.interval is None:
            return NOTHING
        low, high = self.interval
        return f"{100 * low:.0f}–{100 * high:.0f}"

    @property
    def short(self) -> str:
        """Counts and share: `3/8 38 %`, or `3/8 38 %, 2 broke`."""
        return self._told(f" {self.percent}")

    @property
    def words(self) -> str:
        """Counts, share and interval: `3/8 38 % [14–69]`, or `3/8 38 % [14–69], 2 broke`."""
        return self._told(f" {self.percent} [{self.span}]")

    def _told(self, share: str = "") -> str:
        broke = f", {self.broken} broke" if self.broken else ""
        return f"{self.successes}/{self.episodes}{share}{broke}" if self.episodes else NOTHING

    def __str__(self) -> str:
        return self._told()

    def __add__(self, other: Rate) -> Rate:
        effective = None if self.effective is other.effective is None else self._counted + other._counted
        return Rate(
            self.successes + other.successes, self.episodes + other.episodes, self.broken + other.broken, effective
        )


NONE = Rate(0, 0)


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the success rates of several tasks, each task with equal weight, and where it may be (95 %)."""

    mean: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """`38 %`."""
        return f"{100 * self.mean:.0f} %"

    @property
    def span(self) -> str:
        """The interval in percent: `14–69`."""
        return f"{100 * self.low:.0f}–{100 * self.high:.0f}"

    @property
    def words(self) -> str:
        """`38 % [14–69]`."""
        return f"{self.percent} [{self.span}]"


def average(rates: Sequence[Rate | Average]) -> Average | None:
    """The macro average of the rates of different tasks; None without rates, or where one has no episodes.

    Its interval is put together from Wilson's of each task by the method of variance estimates recovery (Zou and
    Donner 2008, "Construction of confidence limits about effect measures", Statistics in Medicine 27): the distances
    from each rate to its own ends are added as squares. That of one task is Wilson's.
    """
    known = [found for rate in rates if (found := rate if isinstance(rate, Average) else _alone(rate)) is not None]
    if not known or len(known) < len(rates):
        return None
    mean = math.fsum(each.mean for each in known) / len(known)
    below = math.sqrt(math.fsum((each.mean - each.low) ** 2 for each in known)) / len(known)
    above = math.sqrt(math.fsum((each.high - each.mean) ** 2 for each in known)) / len(known)
    return Average(mean, max(mean - below, 0.0), min(mean + above, 1.0))


def _alone(rate: Rate) -> Average | None:
    return None if rate.value is None or rate.interval is None else Average(rate.value, *rate.interval)


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """The episodes of one condition: of one task, or the mean over its tasks, each with equal weight."""

    task: str
    """Name of the task family, or :data:`AVERAGE`."""
    condition: str
    """As in the rows: with_bank, without_bank or random."""
    rates: tuple[Rate, ...]
    """Episodes won, by task."""
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
    pass_at: Mapping[int, Average] = field(default_factory=dict)
    """pass@k by k, from 2 on, with its interval; none where every held-out task was played once."""

    @property
    def won(self) -> Rate | None:
        """Episodes won; None of an average: its tasks are not added up."""
        return None if self.task == AVERAGE else self.rates[0]

    @property
    def success(self) -> Average:
        """Share of the episodes won, with its interval: Wilson's of one task."""
        found = average(self.rates)
        assert found is not None, "a result has episodes"
        return found

    @property
    def episodes(self) -> int:
        """Episodes of all tasks."""
        return sum(rate.episodes for rate in self.rates)

    @property
    def broken(self) -> int:
        """Episodes that broke before their end: they count as lost."""
        return sum(rate.broken for rate in self.rates)

    @property
    def tasks(self) -> int:
        """How many tasks."""
        return len(self.rates)

    @property
    def tokens(self) -> float:
        """Tokens of an episode, read and written."""
        return self.tokens_read + self.tokens_written

    @property
    def condition_words(self) -> str:
        """`with bank`."""
        return self.condition.replace("_", " ")

    @property
    def won_words(self) -> str:
        """`3/8`, or `3/8, 2 broke`; of an average nothing."""
        return NOTHING if self.won is None else str(self.won)

    def metrics(self) -> dict[str, Any]:
        """Everything, as plain data."""
        won, success = self.won, self.success
        means = ("score", "actions", "tokens", "tokens_read", "tokens_written", "invalid_share", "guided")
        return {
            "task": self.task, "condition": self.condition, "episodes": self.episodes, "won": won and won.successes,
            "broken": self.broken, "success": success.mean, "low": success.low, "high": success.high,
            **{name: getattr(self, name) for name in means},
            **({"pass_at": {k: asdict(each) for k, each in self.pass_at.items()}} if self.pass_at else {}),
        }  # fmt: skip


def condition_results(rows: Sequence[Evaluation]) -> list[ConditionResult]:
    """One result per task and condition, in order of their names."""
    groups: dict[tuple[str, str], list[Evaluation]] = {}
    for row in rows:
        groups.setdefault((row.family, row.condition), []).append(row)
    return [_result(task, condition, groups[task, condition]) for task, condition in sorted(groups)]


def columns_of_pass(results: Sequence[ConditionResult]) -> list[tuple[str, int]]:
    """The columns of pass@k that results have, by name: `pass@8` and 8. The random policy, whose number of plays is not
    the experiment's, has none of its own."""
    found = {k for each in results if each.condition != "random" for k in each.pass_at}
    return [(f"pass@{k}", k) for k in sorted(found)]


def averages(results: Sequence[ConditionResult]) -> list[ConditionResult]:
    """The average of each condition over the results of its tasks, in order of the conditions' names."""
    return [
        _average(condition, [each for each in results if each.condition == condition])
        for condition in sorted({each.condition for each in results})
    ]


def with_averages(results: Sequence[ConditionResult]) -> list[ConditionResult]:
    """The results, then the averages of the conditions that have several tasks."""
    return [*results, *(each for each in averages(results) if each.tasks > 1)]


def _result(task: str, condition: str, mine: Sequence[Evaluation]) -> ConditionResult:
    def mean(of: Callable[[Evaluation], float]) -> float:
        return math.fsum(map(of, mine)) / len(mine)

    broken = sum(row.stop_reason == StopReason.error.value for row in mine)
    turns = sum(row.turns for row in mine)
    tasks: dict[int, list[bool]] = {}
    for row in mine:
        tasks.setdefault(row.environment_seed, []).append(row.success)
    counts = [(sum(plays), len(plays)) for plays in tasks.values()]
    effective = effective_episodes([won / plays for won, plays in counts], len(mine))
    return ConditionResult(
        task, condition,
        (Rate(sum(row.success for row in mine), len(mine), broken, None if effective == len(mine) else effective),),
        score=mean(lambda row: row.reward), actions=turns / len(mine), tokens_read=mean(lambda row: row.tokens_read),
        tokens_written=mean(lambda row: row.tokens_sampled), guided=sum(row.guided for row in mine),
        invalid_share=sum(row.invalid_actions for row in mine) / max(turns, 1), pass_at=_passes(counts),
    )  # fmt: skip


def _passes(counts: Sequence[tuple[int, int]]) -> dict[int, Average]:
    """pass@k of tasks, each with its won plays and all: for k = 2, 4, 8 … and all plays. A task with fewer plays (a
    judge gave no score) is left out."""
    most, found = max(plays for _, plays in counts), {}
    for k in sorted({*(2**power for power in range(1, most.bit_length())), most} - {1}):
        known = [(pass_at(won, plays, k), plays // k) for won, plays in counts if plays >= k]
        mean = math.fsum(share for share, _ in known) / len(known)
        effective = effective_episodes([share for share, _ in known], sum(choices for _, choices in known))
        found[k] = Average(mean, *wilson(mean * effective, effective))
    return found


def _average(condition: str, mine: Sequence[ConditionResult]) -> ConditionResult:
    means = {
        name: math.fsum(getattr(result, name) for result in mine) / len(mine)
        for name in ("score", "actions", "tokens_read", "tokens_written", "invalid_share")
    }
    rates = tuple(rate for result in mine for rate in result.rates)
    shared = [k for k in mine[0].pass_at if all(k in result.pass_at for result in mine)]
    passes = {k: found for k in shared if (found := average([result.pass_at[k] for result in mine])) is not None}
    guided = sum(result.guided for result in mine)
    return ConditionResult(AVERAGE, condition, rates, **means, guided=guided, pass_at=passes)
