"""Admission by trial: which new texts are tried, what their matched pairs say, and what their writers earn.

A pair is one layout and one sampling stream, played with the note and without it, so that what differs is what the note
causes. Units: `difference` is a difference of shares won, -1 to 1; a reward is on the scale of eq. 3, where an outcome
is ±1, so it is twice the difference. Pure functions over rows; playing is in the recipe's stage `trial`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from crl.config import TrialConfig
from crl.credit.uses import usable
from crl.records import Episode, Metric, Operation, Trial, TrialResult

FAILED, UNTRIED = "failed_trial", "untried"
REASONS = (FAILED, UNTRIED)
"""Reason codes of operations whose text stays out of the bank."""


class TextKey(NamedTuple):
    """A text in a task family: what is tried once, however many outputs wrote it."""

    family: str
    content_digest: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation that writes a text."""

    operation: Operation
    key: TextKey
    possible: bool
    """Whether the bank would take it, if every text of the round were believed."""
    won: bool
    """Whether the episode that it was distilled from was won."""


def in_force(results: Iterable[TrialResult], config: TrialConfig, *, round: int) -> dict[TextKey, TrialResult]:
    """Results of earlier rounds that hold in a round. Where too many pairs broke there is none: it is tried again."""
    return {
        TextKey(row.family, row.content_digest): row
        for row in results
        if row.pairs > 0 and round - config.holds <= row.round < round
    }


def to_try(asked: Sequence[Asked], known: Set[TextKey], config: TrialConfig) -> dict[str, list[Asked]]:
    """By family, the first operation of each text that is tried, in the order of trying.

    Tried is what the bank would take and no result in force speaks of: first what won episodes were distilled to most
    often, then what was written most often, then what was written first; at most `config.notes` of a family.
    """
    first: dict[TextKey, Asked] = {}
    written: dict[TextKey, list[bool]] = defaultdict(list)
    for each in asked:
        written[each.key].append(each.won)
        if each.possible and each.key not in known:
            first.setdefault(each.key, each)
    ordered = sorted(first.values(), key=lambda each: (-sum(written[each.key]), -len(written[each.key])))
    found: dict[str, list[Asked]] = defaultdict(list)
    for each in ordered:
        if config.notes is None or len(found[each.key.family]) < config.notes:
            found[each.key.family].append(each)
    return {family: found[family] for family in sorted(found)}


def result_of(key: TextKey, pairs: Iterable[tuple[Episode, Episode]], *, round: int) -> TrialResult:
    """What the pairs (with, without) of a text say. A pair of which an environment broke a half does not count, and
    where less than half of the pairs are left they say nothing: one alone should not let a note in."""
    played = list(pairs)
    counted = [(noted, free) for noted, free in played if usable(noted) and usable(free)]
    if 2 * len(counted) < len(played):
        counted = []
    return TrialResult(
        family=key.family,
        content_digest=key.content_digest,
        round=round,
        pairs=len(counted),
        wins_with=sum(noted.success for noted, _ in counted),
        wins_without=sum(free.success for _, free in counted),
    )


def difference_of(result: TrialResult) -> float | None:
    """Share won with the note less share won without it; None without a pair."""
    return (result.wins_with - result.wins_without) / result.pairs if result.pairs else None


def ahead(result: TrialResult) -> bool:
    """Whether a note is worth the rest of its layouts (`trial.screen`)."""
    return result.wins_with > result.wins_without


def trials_of(
    asked: Iterable[Asked], results: Mapping[TextKey, TrialResult], config: TrialConfig, *, round: int
) -> list[Trial]:
    """One row per operation whose text has a result, or should have one and was not tried; in the order given.

    An operation that the bank rejects anyway has a row where its text was tried for another one: it earns the same, and
    cannot come in where that one may not.
    """
    rows = []
    for each in asked:
        result = results.get(each.key)
        if result is None and not each.possible:
            continue
        difference = None if result is None else difference_of(result)
        admitted = difference is not None and difference >= config.threshold
        rows.append(
            Trial(
                operation_id=each.operation.operation_id,
                round=round,
                family=each.key.family,
                entry_id=each.operation.entry_id or "",
                content_digest=each.key.content_digest,
                generation_id=each.operation.generation_id,
                tried_round=None if result is None else result.round,
                pairs=0 if result is None else result.pairs,
                wins_with=0 if result is None else result.wins_with,
                wins_without=0 if result is None else result.wins_without,
                difference=difference,
                admitted=admitted,
                reason_code="ok" if admitted else UNTRIED if difference is None else FAILED,
            )
        )
    return rows


def trial_refusals(trials: Iterable[Trial]) -> dict[str, str]:
    """Why operations change nothing, by id, as the bank's events record it."""
    return {row.operation_id: row.reason_code for row in trials if not row.admitted}


def trial_rewards(trials: Iterable[Trial]) -> dict[str, float]:
    """By output, twice the mean difference of its tried texts; an output none of whose texts was tried is left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in trials:
        if row.difference is not None:
            found[row.generation_id].append(2 * row.difference)
    return {generation_id: sum(values) / len(values) for generation_id, values in found.items()}


def trial_metrics(
    trials: Sequence[Trial], episodes: Sequence[Episode], *, round: int, stage: str = "credit"
) -> list[Metric]:
    """What the trials of a round cost and decided: texts and their episodes, shares of operations, mean difference."""
    figures = {"trial_episodes": float(len(episodes))}
    texts = {(row.family, row.content_digest): row for row in trials if row.tried_round == round}
    figures["trial_texts"] = float(len(texts))
    if trials:
        figures["trial_admitted"] = sum(row.admitted for row in trials) / len(trials)
        figures["trial_untried"] = sum(row.tried_round is None for row in trials) / len(trials)
    measured = [row.difference for row in texts.values() if row.difference is not None]
    if measured:
        figures["trial_difference"] = sum(measured) / len(measured)
    return [Metric(round=round, stage=stage, name=name, value=value, alarm=None) for name, value in figures.items()]
