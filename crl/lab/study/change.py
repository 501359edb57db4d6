"""The world changes in the middle of a run (`families[].changes`): who recovers, how soon, what becomes of experiences.

Families that change are counted apart from those that stay. A run has recovered at the first of two successive
evaluations in the changed world with at least :data:`RECOVERED` of its success before: one evaluation may be luck.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from crl.bank.segments import load_texts
from crl.config import FamilyConfig
from crl.envs import make_environment
from crl.lab.study.statistics import Interval, Reached, common_curve, final, first_at, interval, median_reached
from crl.protocols import KnowsTruth
from crl.records import Evaluation, rows_with
from crl.report.success import Rate
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory

RECOVERED = 0.9
CHANGED, STAYED = "changed", "stayed"
Curve = dict[int, float]


class ExperienceCounts(BaseModel, frozen=True):
    """What the bank holds of families that change, where an environment knows the truth."""

    entries: int
    true: int
    """As the world is in that round."""
    stale: int
    """True of the world before the change, and no longer."""


class RunChange(BaseModel, frozen=True):
    """What a run's evaluations say of a change."""

    round: int
    """First round of the changed world."""
    success: dict[str, dict[str, dict[int, Rate]]]
    """By families (`changed`, `stayed`), condition and round."""
    experiences: dict[int, ExperienceCounts] = {}
    """By evaluated round with a bank."""

    def curve(self, families: str, *, bank: bool) -> Curve:
        """Held-out success by round; with an empty bank it is that without one. Empty for a run that has no bank."""
        rates = self.success[families]
        found = (
            rates[WITHOUT_BANK] | rates[WITH_BANK] if bank and rates[WITH_BANK] else {} if bank else rates[WITHOUT_BANK]
        )
        return {number: rate.successes / rate.episodes for number, rate in found.items()}


class Recovery(BaseModel, frozen=True):
    """An arm's success around a change, over seeds: of the families that changed, or of those that stayed."""

    before: Interval
    """Of the last evaluations before the change, as many as a study takes at the end."""
    after: Interval
    """At the first evaluation in the changed world."""
    last: Interval
    """Of the last evaluations."""
    rounds: Reached
    """Played in the changed world until the run had recovered."""
    curve: dict[int, Interval]


class ChangeResult(BaseModel, frozen=True):
    """One arm of a study in which the world changes."""

    arm: str
    round: int
    evaluated: tuple[int, int]
    """The last evaluated round before the change, and the first in the changed world."""
    with_bank: dict[str, Recovery]
    """By families; empty for an arm without a bank."""
    without_bank: dict[str, Recovery]
    experiences_true: dict[int, Interval]
    """Share of the experiences of families that change, by round; empty where nothing knows the truth."""
    experiences_stale: dict[int, Interval]


def read_change(run: RunDirectory, numbers: Sequence[int]) -> RunChange | None:
    """What the evaluations of these rounds say; None where no family of the run changes, or not all in one round and
    once: there is no one before and after then. Raises RecordDamaged."""
    families = {family.name: family for family in run.method.families if family.changes}
    rounds = {change.round for family in families.values() for change in family.changes}
    if len(rounds) != 1:
        return None
    (first,) = rounds
    success: dict[str, dict[str, dict[int, Rate]]] = {
        part: {WITH_BANK: {}, WITHOUT_BANK: {}} for part in (CHANGED, STAYED)
    }
    for number in numbers:
        table = rows_with(run.read(number, "evaluate", Evaluation), "condition", (WITH_BANK, WITHOUT_BANK))
        table = table.append_column(
            "part", pc.if_else(pc.is_in(table["family"], pa.array(list(families))), CHANGED, STAYED)
        )
        counted = table.group_by(["part", "condition"]).aggregate([("success", "sum"), ("success", "count")])
        for row in counted.to_pylist():
            success[row["part"]][row["condition"]][number] = Rate(row["success_sum"], row["success_count"])
    return RunChange(
        round=first, success=success, experiences=_experiences(run, families, list(success[CHANGED][WITH_BANK]))
    )


def summarize_change(arm: str, changes: Mapping[int, RunChange], last: int = 1) -> ChangeResult | None:
    """An arm over its seeds, with the mean of `last` evaluations before the change and at the end.

    None where no run was evaluated on both sides of its change.
    """
    rounds = {change.round for change in changes.values()}
    if len(rounds) != 1:
        return None
    (changed,) = rounds
    evaluated = sorted(set.intersection(*(set(each.curve(CHANGED, bank=False)) for each in changes.values())))
    sides = [number for number in evaluated if number < changed], [number for number in evaluated if number >= changed]
    if not all(sides):
        return None
    around = sides[0][-1], sides[1][0]
    found = {
        bank: {
            part: _recovery(curves, changed, around[1], last)
            for part in (CHANGED, STAYED)
            if (curves := _curves(changes.values(), part, bank=bank))
        }
        for bank in (True, False)
    }
    experiences = [each.experiences for each in changes.values()]
    return ChangeResult(
        arm=arm,
        round=changed,
        evaluated=around,
        with_bank=found[True],
        without_bank=found[False],
        experiences_true=common_curve(
            [{number: each.true / each.entries for number, each in run.items()} for run in experiences]
        ),
        experiences_stale=common_curve(
            [{number: each.stale / each.entries for number, each in run.items()} for run in experiences]
        ),
    )


def _curves(runs: Collection[RunChange], part: str, *, bank: bool) -> list[Curve]:
    """Of each run; of one whose bank stayed empty that without it. None where no run has a bank."""
    if not any(each.curve(part, bank=bank) for each in runs):
        return []
    return [each.curve(part, bank=bank) or each.curve(part, bank=False) for each in runs]


def _recovery(curves: Sequence[Curve], changed: int, after: int, last: int) -> Recovery:
    before = [final({number: found for number, found in curve.items() if number < changed}, last) for curve in curves]
    rounds = []
    for curve, level in zip(curves, before, strict=True):
        later = sorted((number, found) for number, found in curve.items() if number >= changed)
        lasting = {number: min(found, following) for (number, found), (_, following) in pairwise(later)}
        reached = first_at(lasting, RECOVERED * level) if level else None
        rounds.append(None if reached is None else reached - changed + 1)
    return Recovery(
        before=interval(before),
        after=interval([curve[after] for curve in curves]),
        last=interval([final(curve, last) for curve in curves]),
        rounds=median_reached(rounds),
        curve=common_curve(curves),
    )


def _experiences(
    run: RunDirectory, families: Mapping[str, FamilyConfig], numbers: Sequence[int]
) -> dict[int, ExperienceCounts]:
    """Of rounds in which the bank holds experiences of these families, if their environments know their truth."""
    recipe, found = recipe_of(run.method), {}
    for number in numbers:
        held = rows_with(recorded_bank(run, recipe, number).table, "family", families)
        texts = load_texts(run.path, held)
        verdicts: list[tuple[bool, bool]] = []
        for name in pc.unique(held["family"]).to_pylist():
            now, before = families[name].in_round(number), families[name].in_round(families[name].changes[0].round - 1)
            written = [texts[digest] for digest in rows_with(held, "family", [name])["content_digest"].to_pylist()]
            verdicts += zip(_true(now, written), _true(before, written), strict=True)
        if verdicts:
            found[number] = ExperienceCounts(
                entries=len(verdicts),
                true=sum(now for now, _ in verdicts),
                stale=sum(before and not now for now, before in verdicts),
            )
    return found


def _true(family: FamilyConfig, texts: Sequence[str]) -> list[bool]:
    """Which texts are wholly right about a family's environment; empty where it does not know."""
    with closing(make_environment(family)) as environment:
        return [environment.truth(text) == 1 for text in texts] if isinstance(environment, KnowsTruth) else []
