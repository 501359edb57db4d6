"""The result of a study: each arm over its seeds, and paired differences. From the runs' records and nothing else.

Arms at equal budgets are compared by what they had reached when they had used as much as the most frugal run uses in
all; two arms, where they had used as much as the most frugal run of these two: a third arm that uses little does not
move their comparison to the beginning of both. Success between two evaluations is interpolated. Budgets are those of
training: episodes; tokens that were sampled, by whatever role; steps of the real environment (an episode that a model
of the environment played has none); seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from pydantic import BaseModel

from crl.lab.study.change import ChangeResult, RunChange, summarize_change
from crl.lab.study.config import Study
from crl.lab.study.metrics import GameCost, RunMetrics, read_run
from crl.lab.study.plan import PlannedRun
from crl.lab.study.statistics import (
    Interval,
    Reached,
    area,
    best,
    common_curve,
    final,
    first_at,
    interval,
    median_reached,
    paired,
)
from crl.report.state import last_failure
from crl.run.journal import Journal

KINDS = {
    "episodes": "episodes",
    "tokens": "generated tokens",
    "real_steps": "real environment steps",
    "seconds": "seconds of training",
}
"""Budgets by the name of their metrics, and what tables call them."""


class Difference(BaseModel, frozen=True):
    """An arm minus a reference, seed by seed."""

    arm: str
    reference: str
    with_bank: Interval | None
    """The arm with its bank, minus the reference with its bank where it has one, else without. None: no bank."""
    without_bank: Interval
    """Both without a bank."""
    equal_episodes: bool
    """Whether every pair of runs trained on as many episodes."""


class Success(BaseModel, frozen=True):
    """An arm's held-out success, with its bank or without."""

    final: dict[int, float]
    """By seed: the mean of the last evaluations."""
    best: dict[int, float] = {}
    """By seed: the best mean of as many evaluations in a row. Empty where a run is too short to say."""
    mean: Interval
    curve: dict[int, Interval]
    """By round, over seeds."""
    area: Interval | None
    """Mean success over the rounds. None where there is one evaluation only."""
    rounds_to_level: Reached
    episodes_to_level: Reached


class Cost(BaseModel, frozen=True):
    """What a held-out game of an arm takes, over seeds: each run's mean of the last evaluations."""

    actions: Interval
    tokens_read: Interval | None
    """None where no run has counted them; likewise below."""
    tokens_sampled: Interval | None
    seconds: Interval | None
    """Clock time of the machines the runs were on."""


class ArmResult(BaseModel, frozen=True):
    """One arm over the seeds whose runs are finished."""

    arm: str
    title: str
    switch: str | None
    rounds: int
    prepared_by: str | None = None
    """Title of the arm that prepared for its runs; None: they prepare for themselves."""
    seeds: list[int]
    """Seeds it is to be reported on."""
    finished: list[int]
    """Those of them that metrics are about."""
    with_bank: Success | None
    """None for an arm without a bank."""
    without_bank: Success | None
    """None while no run is finished."""
    cost_with_bank: Cost | None
    """None for an arm without a bank."""
    cost_without_bank: Cost | None
    retrieval_seconds: Interval | None
    """Of a query of the bank, over all rounds; None for an arm that searches nothing."""
    answer_seconds: Interval | None
    """Of an answered question."""
    episodes: dict[int, int]
    """Training episodes by seed, warm-up rounds included."""
    real_steps: dict[int, Interval] = {}
    """Steps of the real environment in training up to each evaluated round, over seeds."""
    malformed: Interval | None
    """Share of extractor outputs of all rounds that are malformed."""
    returned: Interval | None
    """Share that says `return`; None where no output can."""
    experiences_true: Interval | None
    """Share of the last bank that is true, where the environment knows."""
    coverage: Interval | None
    """Share of task families with a true experience in the last bank."""
    broken: dict[int, int] = {}
    """Held-out games that broke, and count as lost, by seed; seeds without one are left out."""
    alarms: dict[int, list[str]]
    """In what way a run had collapsed at its end, by seed; the others are left out."""


class Varied(BaseModel, frozen=True):
    """Something that was varied, and the arms at each of its values."""

    title: str
    values: list[str]
    arms: dict[str, list[str]]
    """By the title of an arm: its name at each value."""


class StudyResult(BaseModel, frozen=True):
    """What `study.json` holds."""

    name: str
    question: str
    level: float
    last: int
    tuned_on: list[int]
    reported_on: list[int]
    """Seeds of which a run is finished."""
    arms: list[ArmResult]
    differences: list[Difference]
    scales: list[Varied] = []
    budgets: list[Budget] = []
    """Success at equal budgets, where runs used different amounts."""
    changes: list[ChangeResult] = []
    """Arms in whose runs the world changes."""
    unequal_starts: list[str] = []
    """Models whose weights were not the same at the start of every run: what was begun from one and another."""
    made_with: dict[str, list[str]] = {}
    """What runs were evaluated with, by package (and `bfloat16`), where that was not the same for all."""
    failed: dict[str, str] = {}
    """Why runs have stopped, by name: those that would not go on are no random part of the seeds."""

    @property
    def titles(self) -> dict[str, str]:
        """Title of each arm by its name."""
        return {arm.arm: arm.title for arm in self.arms}

    @property
    def unfinished(self) -> int:
        """Runs that are missing."""
        return sum(len(arm.seeds) - len(arm.finished) for arm in self.arms)

    @property
    def over_steps(self) -> bool:
        """Whether runs took different numbers of real environment steps, so that curves over these say more."""
        return any(budget.kind == "real_steps" for budget in self.budgets)


INTERRUPTIONS = ("KeyboardInterrupt", "SystemExit", "Cancelled")
"""Errors in a journal that are a person's doing."""
RunsByArm = dict[str, dict[int, RunMetrics]]
"""Of the finished runs, by arm and seed."""


def read_metrics(runs: Sequence[PlannedRun]) -> RunsByArm:
    """Read every run that is finished. Raises RecordDamaged naming the file."""
    found: RunsByArm = {}
    for planned in runs:
        if planned.is_finished():
            found.setdefault(planned.arm, {})[planned.seed] = read_run(planned.path, planned.rounds)
    return found


def read_failures(runs: Sequence[PlannedRun]) -> dict[str, str]:
    """What the last failure was of every one of these unfinished runs that has one, by name; no interruption is one."""
    found = {}
    for planned in runs:
        event = last_failure(Journal(planned.path).read()) if planned.begun else None
        error = event and event.get("error")
        if event and error and error.get("type") not in INTERRUPTIONS:
            reason = str(error.get("found") or "no reason is recorded").splitlines()[0]
            found[planned.name] = f"failed in round {event['round']}, {event['stage']}: {reason}"
    return found


def summarize_study(study: Study, metrics: RunsByArm, failed: Mapping[str, str] = MappingProxyType({})) -> StudyResult:
    """Means, intervals and differences. Pure: the same metrics give the same result."""
    arms = [_arm(study, name, metrics.get(name, {})) for name in study.arms]
    by_name = {arm.arm: arm for arm in arms}

    def changes(name: str) -> dict[int, RunChange]:
        return {seed: run.change for seed, run in metrics.get(name, {}).items() if run.change is not None}

    differences = [
        difference
        for arm in arms
        for reference in study.references_of(arm.arm)
        if (difference := _difference(arm, by_name[reference])) is not None
    ]
    return StudyResult(
        name=study.name,
        question=study.question,
        level=study.level,
        last=study.last,
        tuned_on=study.tuned_on,
        reported_on=sorted({seed for arm in arms for seed in arm.finished}),
        arms=arms,
        differences=differences,
        scales=[_varied(study, name) for name in study.scales],
        budgets=equal_budgets(study, metrics),
        changes=[found for name in study.arms if (found := summarize_change(name, changes(name), study.last))],
        unequal_starts=sorted(_different(metrics, lambda run: {name: [each] for name, each in run.starts.items()})),
        made_with=_different(metrics, lambda run: run.made_with),
        failed=dict(failed),
    )


def _varied(study: Study, name: str) -> Varied:
    scale = study.scales[name]
    arms = {study.title_of(arm): [study.point_of(name, arm, value) for value in scale.values] for arm in scale.arms}
    return Varied(title=scale.title, values=[f"{value:.12g}" for value in scale.values], arms=arms)


def _different(metrics: RunsByArm, of: Callable[[RunMetrics], Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """What `of` says of each run, by name, where it is not the same for all."""
    found: dict[str, set[str]] = {}
    for run in (run for runs in metrics.values() for run in runs.values()):
        for name, values in of(run).items():
            found.setdefault(name, set()).update(values)
    return {name: sorted(values) for name, values in found.items() if len(values) > 1}


def _arm(study: Study, name: str, runs: Mapping[int, RunMetrics]) -> ArmResult:
    has_bank = any(run.with_bank for run in runs.values())
    return ArmResult(
        arm=name,
        title=study.title_of(name),
        switch=study.arms[name].switch,
        rounds=study.rounds_of(name),
        prepared_by=study.title_of(other) if (other := study.arms[name].prepared_by) is not None else None,
        seeds=study.seeds_of(name),
        finished=[seed for seed in study.seeds_of(name) if seed in runs],
        with_bank=_success(study, runs, bank=True) if has_bank else None,
        without_bank=_success(study, runs, bank=False) if runs else None,
        # While a bank is empty its games are those without it, as for success.
        cost_with_bank=_cost(study, [run.costs_without_bank | run.costs_with_bank for run in runs.values()])
        if has_bank
        else None,
        cost_without_bank=_cost(study, [run.costs_without_bank for run in runs.values()]),
        retrieval_seconds=_mean(runs, lambda run: run.retrieval_seconds),
        answer_seconds=_mean(runs, lambda run: run.answer_seconds),
        episodes={seed: run.training_episodes for seed, run in runs.items()},
        real_steps=common_curve([amounts_of(run, "real_steps") for run in runs.values()]) if runs else {},
        malformed=_mean(runs, lambda run: run.malformed / run.outputs if run.outputs else None),
        returned=_mean(
            runs, lambda run: run.returned / run.outputs if run.outputs and run.returned is not None else None
        ),
        experiences_true=_mean(runs, lambda run: run.experiences_true),
        coverage=_mean(runs, lambda run: run.coverage),
        broken={seed: run.broken for seed, run in runs.items() if run.broken},
        alarms={seed: run.alarms for seed, run in runs.items() if run.alarms},
    )


def _cost(study: Study, runs: Sequence[Mapping[int, GameCost]]) -> Cost | None:
    measured = [costs for costs in runs if costs]
    if not measured:
        return None

    def over_seeds(of: Callable[[GameCost], float | None]) -> Interval | None:
        curves = [
            {number: value for number, cost in costs.items() if (value := of(cost)) is not None} for costs in measured
        ]
        finals = [final(curve, study.last) for curve in curves if curve]
        return interval(finals) if finals else None

    actions = over_seeds(lambda cost: cost.actions)
    assert actions is not None
    return Cost(
        actions=actions,
        tokens_read=over_seeds(lambda cost: cost.tokens_read),
        tokens_sampled=over_seeds(lambda cost: cost.tokens_sampled),
        seconds=over_seeds(lambda cost: cost.seconds),
    )


def _success(study: Study, runs: Mapping[int, RunMetrics], *, bank: bool) -> Success:
    # A run whose bank stayed empty to its end has no experience to show: it is that without the bank.
    curves = {seed: run.success(bank=bank) or run.success(bank=False) for seed, run in runs.items()}
    finals = {seed: final(curve, study.last) for seed, curve in curves.items()}
    peaks = {seed: peak for seed, curve in curves.items() if (peak := best(curve, study.last)) is not None}
    areas = [found for curve in curves.values() if (found := area(curve)) is not None]
    reached = {seed: first_at(curve, study.level) for seed, curve in curves.items()}
    episodes = [None if number is None else runs[seed].episodes[number] for seed, number in reached.items()]
    return Success(
        final=finals,
        best=peaks,
        mean=interval(list(finals.values())),
        curve=common_curve(list(curves.values())),
        area=interval(areas) if areas else None,
        rounds_to_level=median_reached(list(reached.values())),
        episodes_to_level=median_reached(episodes),
    )


def _difference(arm: ArmResult, reference: ArmResult) -> Difference | None:
    if arm.without_bank is None or reference.without_bank is None:
        return None
    without = paired(arm.without_bank.final, reference.without_bank.final)
    if without is None:
        return None
    against = reference.with_bank or reference.without_bank
    return Difference(
        arm=arm.arm,
        reference=reference.arm,
        with_bank=None if arm.with_bank is None else paired(arm.with_bank.final, against.final),
        without_bank=without,
        equal_episodes=all(
            arm.episodes[seed] == reference.episodes[seed] for seed in arm.finished if seed in reference.episodes
        ),
    )


def _mean(runs: Mapping[int, RunMetrics], of: Callable[[RunMetrics], float | None]) -> Interval | None:
    values = [value for run in runs.values() if (value := of(run)) is not None]
    return interval(values) if values else None


class AtBudget(BaseModel, frozen=True):
    """An arm's held-out success at a budget."""

    arm: str
    with_bank: Interval | None
    """None for an arm without a bank."""
    without_bank: Interval
    differences: dict[str, tuple[Interval | None, Interval | None]]
    """By reference, paired by seed, at the smallest amount that a run of the two arms used: (with bank, against the
    reference with its bank or without where it has none; without bank)."""


class Budget(BaseModel, frozen=True):
    """The arms at one budget."""

    kind: str
    amount: int
    arms: list[AtBudget]


def equal_budgets(study: Study, runs: RunsByArm) -> list[Budget]:
    """Every budget that some runs used more of than others. What a run has not noted is none."""
    found = []
    for kind in KINDS:
        used = {
            arm: [max(amounts_of(run, kind).values(), default=0) for run in each.values()]
            for arm, each in runs.items()
            if each
        }
        least = {arm: min(totals) for arm, totals in used.items()}
        most = max((max(totals) for totals in used.values()), default=0)
        if least and 0 < min(least.values()) < most:
            found.append(Budget(kind=kind, amount=min(least.values()), arms=_arms(study, runs, kind, least)))
    return found


def reached(run: RunMetrics, kind: str, amount: int, *, bank: bool) -> float:
    """Held-out success of a run when it had used an amount of a budget; without bank where it has none."""
    curve, used = run.success(bank=bank) or run.success(bank=False), getattr(run, kind)
    numbers = sorted(curve)
    return float(np.interp(amount, [used[number] for number in numbers], [curve[number] for number in numbers]))


def amounts_of(run: RunMetrics, kind: str) -> dict[int, int]:
    """What a run had used when it was evaluated."""
    used: dict[int, int] = getattr(run, kind)
    return {number: used[number] for number in run.without_bank if number in used}


def _arms(study: Study, runs: RunsByArm, kind: str, least: Mapping[str, int]) -> list[AtBudget]:
    """`least`: what the most frugal run of an arm used in all."""
    banks = {arm for arm, each in runs.items() if any(run.with_bank for run in each.values())}

    def of(arm: str, amount: int, *, bank: bool) -> dict[int, float]:
        return {seed: reached(run, kind, amount, bank=bank) for seed, run in runs[arm].items()}

    found = []
    everywhere = min(least.values())
    for arm in (name for name in study.arms if name in least):
        differences = {}
        for reference in (name for name in study.references_of(arm) if name in least):
            amount = min(least[arm], least[reference])
            with_bank, without = (
                paired(of(arm, amount, bank=bank), of(reference, amount, bank=bank)) for bank in (True, False)
            )
            differences[reference] = (with_bank if arm in banks else None, without)
        found.append(
            AtBudget(
                arm=arm,
                with_bank=interval(list(of(arm, everywhere, bank=True).values())) if arm in banks else None,
                without_bank=interval(list(of(arm, everywhere, bank=False).values())),
                differences=differences,
            )
        )
    return found
