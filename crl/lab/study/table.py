"""The tables of a study's result, and the same as Markdown: for the terminal, `study.md`, the UI and documentation.

The texts of a study file are marked as text, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from crl.lab.study.change import CHANGED, RECOVERED, STAYED
from crl.lab.study.results import KINDS, ArmResult, Budget, Cost, StudyResult, Success, Varied
from crl.lab.study.statistics import Interval, Reached, paired
from crl.report.markdown import as_text

NONE = "–"
NOT_REACHED = "not reached"
PARTS = {CHANGED: "change", STAYED: "stay"}
"""In words, which families these are."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; the first `named` columns hold words of the study file."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    named: int = 1


def study_markdown(result: StudyResult) -> str:
    """Every table of a result."""
    parts = [f"# {as_text(result.name)}", *([as_text(result.question)] if result.question else [])]
    parts.append(" ".join(seed_words(result)))
    for table in tables(result):
        parts += [f"## {table.title}", _markdown(table)]
    parts.append("\n".join(f"- {as_text(line)}" for line in footnotes(result)))
    return "\n\n".join(parts) + "\n"


def tables(result: StudyResult) -> list[Table]:
    """Every table of a result, the most important first; one without rows is left out."""
    at_budgets = [table for budget in result.budgets for table in _at_budget(result, budget)]
    scales = [_scale(result, scale, bank=bank) for scale in result.scales for bank in (True, False)]
    changes = [_recovery(result, part, bank=bank) for part in PARTS for bank in (True, False)]
    first = [_success(result), _differences(result), *scales, *changes, _changed_experiences(result), *at_budgets]
    later = [_falls(result), _learning(result), _costs(result), _seconds(result), _health(result), _seeds(result)]
    return [table for table in [*first, *later] if table.rows]


def _success(result: StudyResult) -> Table:
    columns = ("arm", "seeds", "with bank", "without bank")
    rows = [[arm.title, _seed_count(arm), _mean(arm.with_bank), _mean(arm.without_bank)] for arm in result.arms]
    return Table("Held-out success", columns, rows)


def _differences(result: StudyResult) -> Table:
    titles = result.titles
    rows = [
        [
            titles[each.arm],
            titles[each.reference],
            interval_text(each.with_bank, signed=True),
            interval_text(each.without_bank, signed=True),
            f"{each.without_bank.seeds}{'' if each.equal_episodes else ', unequal episodes'}",
        ]
        for each in result.differences
    ]
    return Table("Paired differences", ("arm", "minus", "with bank", "without bank", "pairs"), rows, named=2)


def _scale(result: StudyResult, scale: Varied, *, bank: bool) -> Table:
    by_name = {arm.arm: arm for arm in result.arms}
    rows = []
    for title, names in scale.arms.items():
        found = [by_name[name].with_bank if bank else by_name[name].without_bank for name in names]
        if any(found):
            rows.append([title, *map(_mean, found)])
    return Table(f"{'With' if bank else 'Without'} bank, by {scale.title}", ["arm", *scale.values], rows)


def _recovery(result: StudyResult, part: str, *, bank: bool) -> Table:
    titles, rows = result.titles, []
    for each in result.changes:
        found = (each.with_bank if bank else each.without_bank).get(part)
        if found is not None:
            around = [interval_text(value) for value in (found.before, found.after, found.last)]
            rows.append([titles[each.arm], *around, reached_text(found.rounds)])
    columns = ("arm", "before the change", "after it", "at the end", "rounds to recover")
    return Table(f"Families that {PARTS[part]}, {'with' if bank else 'without'} bank", columns, rows)


def _changed_experiences(result: StudyResult) -> Table:
    titles, rows = result.titles, []
    for each in result.changes:
        if each.experiences_true:
            places = (*each.evaluated, max(each.experiences_true))
            shares = [
                interval_text(curve.get(place))
                for curve in (each.experiences_true, each.experiences_stale)
                for place in places
            ]
            rows.append([titles[each.arm], *shares])
    columns = ("arm", *(f"{what} {when}" for what in ("true", "stale") for when in ("before", "after", "at the end")))
    return Table("Experiences of families that change", columns, rows)


def _at_budget(result: StudyResult, budget: Budget) -> list[Table]:
    titles, kind = result.titles, KINDS[budget.kind]
    reached = [
        [titles[each.arm], interval_text(each.with_bank), interval_text(each.without_bank)] for each in budget.arms
    ]
    differences = [
        [titles[each.arm], titles[reference], *(interval_text(value, signed=True) for value in found)]
        for each in budget.arms
        for reference, found in each.differences.items()
        if any(found)
    ]
    return [
        Table(f"At equal {kind}: {budget.amount:,}", ("arm", "with bank", "without bank"), reached),
        Table(
            f"Paired differences at equal {kind}", ("arm", "minus", "with bank", "without bank"), differences, named=2
        ),
    ]


def _falls(result: StudyResult) -> Table:
    rows = []
    for arm in result.arms:
        told = [_fall(shown) for shown in (arm.with_bank, arm.without_bank)]
        if any(told):
            rows.append([arm.title, *(cell for cells in told for cell in cells or [NONE] * 3)])
    columns = ("arm", "best, with bank", "end", "end minus best", "best, without", "end", "end minus best")
    return Table("From the best to the end", columns, rows)


def _fall(shown: Success | None) -> list[str] | None:
    """Means over seeds of the best, the end, and their difference."""
    if shown is None or not (difference := paired(shown.final, shown.best)):
        return None
    peak, end = (fmean(values[seed] for seed in shown.best) for values in (shown.best, shown.final))
    return [f"{peak:.2f}", f"{end:.2f}", interval_text(difference, signed=True)]


def _learning(result: StudyResult) -> Table:
    level = f"{result.level:g}"
    metrics = (f"rounds to {level}", f"episodes to {level}", "area")
    columns = ["arm", *(f"{metric}, {which}" for metric in metrics for which in ("with bank", "without"))]
    told: tuple[Callable[[Success], str], ...] = (
        lambda shown: reached_text(shown.rounds_to_level),
        lambda shown: reached_text(shown.episodes_to_level),
        lambda shown: interval_text(shown.area),
    )
    rows = [
        [arm.title, *(of(each) if each else NONE for of in told for each in (arm.with_bank, arm.without_bank))]
        for arm in result.arms
    ]
    return Table("On the way", columns, rows)


def _costs(result: StudyResult) -> Table:
    metrics = {"actions": "actions", "tokens read": "tokens_read", "tokens written": "tokens_sampled"}
    columns = ["arm", *(f"{name}, {which}" for name in metrics for which in ("with bank", "without"))]
    rows = []
    for arm in result.arms:
        if arm.cost_without_bank is not None:
            both = (arm.cost_with_bank, arm.cost_without_bank)
            rows.append([arm.title, *(_amount(each, name) for name in metrics.values() for each in both)])
    return Table("What a held-out game takes", columns, rows)


def _seconds(result: StudyResult) -> Table:
    columns = ("arm", "a game, with bank", "a game, without", "a query of the bank", "an answer")
    rows = []
    for arm in result.arms:
        taken = [_amount(cost, "seconds") for cost in (arm.cost_with_bank, arm.cost_without_bank)]
        taken += [amount_text(each) for each in (arm.retrieval_seconds, arm.answer_seconds)]
        if set(taken) != {NONE}:
            rows.append([arm.title, *taken])
    return Table("Seconds, on the machines of the runs", columns, rows)


def _health(result: StudyResult) -> Table:
    columns = ("arm", "training episodes per run", "malformed", "return", "experiences true",
               "families with a true experience", "collapsed")  # fmt: skip
    rows = []
    for arm in result.arms:
        shares = (arm.malformed, arm.returned, arm.experiences_true, arm.coverage)
        told = [NONE if each is None else f"{each.mean:.2f}" for each in shares]
        rows.append([arm.title, _budget(arm), *told, f"{len(arm.alarms)} of {len(arm.finished)}"])
    return Table("Budget and extractor", columns, rows)


def _seeds(result: StudyResult) -> Table:
    seeds = sorted({seed for arm in result.arms for seed in arm.seeds})
    rows = [[arm.title, *(_seed_cell(arm, seed) for seed in seeds)] for arm in result.arms]
    return Table("Every seed: with bank / without", ["arm", *map(str, seeds)], rows)


def seed_words(result: StudyResult) -> list[str]:
    """Which seeds settings were chosen on, and which are reported."""
    planned = sorted({seed for arm in result.arms for seed in arm.seeds} - {*result.reported_on})
    said = [f"Reported on seeds {_listed(result.reported_on)}."] if result.reported_on else []
    if planned:
        said.append(f"Not finished: seeds {_listed(planned)}.")
    if result.tuned_on:
        return [*said, f"Settings were chosen on seeds {_listed(result.tuned_on)}, none of which is reported."]
    return [*said, "The study names no seeds that its settings were chosen on."]


def footnotes(result: StudyResult) -> list[str]:
    """How to read the tables, and what to be careful about."""
    last = "the last evaluation" if result.last == 1 else f"the mean of the last {result.last} evaluations"
    found = [
        f"Success is that of {last}; brackets are 95 % intervals over seeds (Student's t); differences are paired by "
        "seed, with bank against the reference with its bank, or without where it has none.",
        "Rounds and episodes to the level are medians over seeds, of the first evaluation that reached it; area is "
        "mean success over the rounds; shares of malformed and return are of all outputs of a run.",
        "What a game takes is of the same evaluations; the seconds of a game are those of its wave, shared out; those "
        "of queries and answers are of all rounds.",
    ]
    compared = [each for pair in result.differences for each in (pair.with_bank, pair.without_bank) if each is not None]
    if len(compared) > 1:
        found.append(
            f"The intervals of {len(compared)} differences at the end, and at equal budgets, are not corrected for "
            "their number: of twenty true zeros one interval leaves out 0 on average."
        )
    if any(shown.best for arm in result.arms for shown in (arm.with_bank, arm.without_bank) if shown):
        found.append(
            f"The best is that of any {result.last} evaluations in a row, chosen afterwards and so a little too high."
        )
    if result.budgets:
        found.append(
            "At equal budgets, every arm is taken where it had used as much in training as the most frugal run uses in "
            "all, and differences where both arms had used as much as the most frugal run of these two; success "
            "between two evaluations is interpolated. Generated tokens are those of every role; steps in a model of "
            "the environment are no real ones. Seconds are those of the machines that the runs were on, without "
            "evaluations; they compare runs that had equal machines and as much else beside them."
        )
    for changed, (before, after) in sorted({(each.round, each.evaluated) for each in result.changes}):
        found.append(
            f"Families change in round {changed}. Before it is the mean of the last {result.last} evaluations up to "
            f"round {before}, after it the evaluation of round {after}, at the end the mean of the last {result.last}. "
            f"A run has recovered at the first of two successive evaluations in the changed world with {RECOVERED:.0%} "
            "of the success before. An experience is stale if it was true before the change and no longer is."
        )
    for preparing in dict.fromkeys(arm.prepared_by for arm in result.arms if arm.prepared_by):
        names = ", ".join(arm.title for arm in result.arms if arm.prepared_by == preparing)
        found.append(f"{preparing} prepared (round 0) for the runs of the same seed of {names}.")
    if result.unequal_starts:
        found.append(
            f"Not comparable: runs began with different weights of {', '.join(result.unequal_starts)}, which was made "
            "again in between. Delete the older runs, or take another name for the study."
        )
    if result.made_with:
        told = "; ".join(f"{name} {' and '.join(versions)}" for name, versions in result.made_with.items())
        found.append(f"Not all runs were evaluated with the same: {told}.")
    budgets = {episodes for arm in result.arms for episodes in arm.episodes.values()}
    if len(budgets) > 1:
        told = ", ".join(f"{arm.title} {_budget(arm)}" for arm in result.arms if arm.episodes)
        found.append(f"Training episodes differ: {told}.")
    for arm in result.arms:
        found += [f"{arm.title}, seed {seed}: {'; '.join(said)}." for seed, said in arm.alarms.items()]
    for arm in result.arms:
        found += [
            f"{arm.title}, seed {seed}: {count} held-out games broke, and count as lost."
            for seed, count in arm.broken.items()
        ]
    if result.unfinished:
        found.append(f"{result.unfinished} runs are not finished and not in these numbers.")
    found += [f"Among them {name} {told}." for name, told in result.failed.items()]
    return found


def interval_text(value: Interval | None, *, signed: bool = False) -> str:
    """`0.51 [0.45, 0.57]`; one value has no interval."""
    return NONE if value is None else bracketed((value.mean, value.low, value.high), lambda each: _number(each, signed))


def amount_text(value: Interval | None) -> str:
    """`7.25 [6.5, 8]`: numbers of any size, to three digits."""
    return (
        NONE
        if value is None
        else bracketed((value.mean, value.low, value.high), lambda each: f"{each:.3g}".replace("-", "−"))
    )


def bracketed(mean_low_high: Iterable[float | None], number: Callable[[float], str]) -> str:
    """A mean, and behind it the ends of its interval where it has one, each as `number` writes it."""
    numbers = [number(each) for each in mean_low_high if each is not None]
    return numbers[0] if len(numbers) == 1 else f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


def reached_text(value: Reached) -> str:
    """The median, with how many seeds reached it where that is not all."""
    if value.reached == value.seeds and value.median is not None:
        return f"{value.median:g}"
    median = NOT_REACHED if value.median is None else f"{value.median:g}"
    return f"{median} ({value.reached} of {value.seeds} seeds)"


def _amount(cost: Cost | None, name: str) -> str:
    return NONE if cost is None else amount_text(getattr(cost, name))


def _seed_count(arm: ArmResult) -> str:
    return f"{len(arm.finished)}" + ("" if len(arm.finished) == len(arm.seeds) else f" of {len(arm.seeds)}")


def _budget(arm: ArmResult) -> str:
    """Training episodes of a run; a range where runs differ."""
    found = sorted(set(arm.episodes.values()))
    return NONE if not found else f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _number(value: float, signed: bool) -> str:
    # A difference keeps its sign also where it rounds to 0: on which side of 0 an interval ends is what it is read for.
    return (f"{value:+.2f}" if signed else f"{round(value, 2) + 0.0:.2f}").replace("-", "−")


def _mean(success: Success | None) -> str:
    return NONE if success is None else interval_text(success.mean)


def _seed_cell(arm: ArmResult, seed: int) -> str:
    cells = [
        NONE if success is None or seed not in success.final else f"{success.final[seed]:.2f}"
        for success in (arm.with_bank, arm.without_bank)
    ]
    return NONE if cells == [NONE, NONE] else " / ".join(cells)


def _listed(seeds: Sequence[int]) -> str:
    """Seeds in words; consecutive ones as a range."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _markdown(table: Table) -> str:
    lines = ["| " + " | ".join(table.columns) + " |", "|---" * len(table.columns) + "|"]
    for row in table.rows:
        cells = [*map(as_text, row[: table.named]), *row[table.named :]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
