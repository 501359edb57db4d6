"""`study.html`: the page of a study. One file that loads nothing; its numbers are those of `study.json`.

Curves show mean success over seeds with the 95 % interval of that mean; an arm without a bank is in both charts. Where
runs took different numbers of real environment steps, the same evaluations are drawn over these, at the mean of the
steps that the seeds had taken: nothing is interpolated. Arms that switch a mechanism have charts of their own, beside
the arms they are compared with; what is varied has charts of success by its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from crl.lab.study.plan import PlannedRun
from crl.lab.study.results import ArmResult, StudyResult, Success, Varied
from crl.lab.study.statistics import Interval
from crl.lab.study.table import PARTS, interval_text, notes, seed_words, tables
from crl.report.charts import Chart, Line, Point, line_chart, over_steps
from crl.report.page import REPORT, Inline, environment
from crl.run.files import unwritable, write_atomically
from crl.text.unicode import escaped

PAGE = "study.html"
COLORS = 8
POINTS = 120
"""Most points of a line; of a longer one every so many rounds are left out."""


@dataclass(frozen=True, slots=True)
class RunLink:
    """One run of the study, as the page lists it."""

    arm: str
    seed: int
    name: str
    standing: str
    """How far it is."""
    link: str | None
    """Address of its own page, relative to this one; None where it has none yet."""


def write_study_page(directory: Path, result: StudyResult, runs: Sequence[PlannedRun]) -> Path:
    """Write the page, whole or not at all. Raises RunDirectoryUnusable where it cannot be written, DiskFull."""
    target = directory / PAGE
    try:
        write_atomically(target, render_study(result, runs).encode())
    except OSError as error:
        raise unwritable(error, target, "the page of the study") from error
    return target


def render_study(result: StudyResult, runs: Sequence[PlannedRun]) -> str:
    """The page as HTML text."""
    page = (
        environment()
        .get_template("study.html")
        .render(
            style=Inline("chart.css", "style.css"),
            result=result,
            seed_words=seed_words(result),
            groups=chart_groups(result),
            tables=tables(result),
            notes=notes(result),
            runs=[_link(each, result) for each in runs],
        )
    )
    return escaped(page)


def chart_groups(result: StudyResult) -> list[tuple[str | None, list[Chart]]]:
    """(mechanism, or what is varied, and its charts); None is for the arms that switch none."""
    arms = {arm.arm: arm for arm in result.arms if arm.without_bank is not None}
    against = {(each.arm, each.reference) for each in result.differences}
    groups: list[tuple[str | None, list[ArmResult]]] = []
    varied = {scale.title: scale for scale in result.scales}
    for switch in dict.fromkeys(arm.switch for arm in arms.values() if arm.switch not in varied):
        mine = [arm for arm in arms.values() if arm.switch == switch]
        compared = {reference for arm in mine for name, reference in against if name == arm.arm}
        if switch is not None:
            mine = [arms[name] for name in arms if name in compared and arms[name] not in mine] + mine
        # More lines than colors cannot be told apart: they take further charts.
        groups += [(switch, mine[at : at + COLORS]) for at in range(0, len(mine), COLORS)]
    charts = [(switch, _curves(shown, steps=result.over_steps)) for switch, shown in groups]
    scales = ((title, _by_value(scale, arms)) for title, scale in varied.items())
    return [*charts, *((title, found) for title, found in (*_changes(result), *scales) if found)]


def _curves(arms: Sequence[ArmResult], *, steps: bool) -> list[Chart]:
    top = _top(each for arm in arms for shown in _both(arm) for each in shown.curve.values())
    taken: list[dict[float, float]] = [{number: value.mean for number, value in arm.real_steps.items()} for arm in arms]
    over_rounds, over = [], []
    for title, bank in (("success with bank", True), ("success without bank", False)):
        lines = [
            Line(_name(arm.title, [arm], bank), color, _points(_shown(arm, bank).curve))
            for color, arm in enumerate(arms)
        ]
        over_rounds.append(line_chart(title, lines, top=top, share=True))
        over += [over_steps(title, lines, taken, top=top)] if steps else []
    return [*over_rounds, *over]


def _changes(result: StudyResult) -> Iterator[tuple[str, list[Chart]]]:
    """Success of the families that change and of those that stay, and what becomes of the notes of the former."""
    arms = {arm.arm: arm for arm in result.arms}
    for part, words in PARTS.items():
        charts = []
        for title, bank in (("success with bank", True), ("success without bank", False)):
            lines = [
                Line(_name(arms[each.arm].title, [arms[each.arm]], bank), color, _points(shown.curve))
                for color, each in enumerate(result.changes)
                if (shown := (each.with_bank if bank else {}).get(part) or each.without_bank.get(part)) is not None
            ]
            charts += [line_chart(title, lines, top=1.0, share=True)] if lines else []
        yield f"families that {words}", charts
    shares = {
        "true": {each.arm: each.notes_true for each in result.changes},
        "stale": {each.arm: each.notes_stale for each in result.changes},
    }
    charts = []
    for title, curves in shares.items():
        lines = [
            Line(escaped(arms[arm].title), color, _points(curve))
            for color, (arm, curve) in enumerate(curves.items())
            if curve
        ]
        charts += [line_chart(title, lines, top=1.0, share=True)] if lines else []
    yield "notes of families that change", charts


def _by_value(scale: Varied, arms: Mapping[str, ArmResult]) -> list[Chart]:
    """Final success by the values of what was varied, in equal steps."""
    found = {
        title: {place: arms[name] for place, name in enumerate(names) if name in arms}
        for title, names in scale.arms.items()
    }
    drawn = {title: points for title, points in found.items() if points}
    if not drawn:
        return []
    top = _top(shown.mean for points in drawn.values() for arm in points.values() for shown in _both(arm))
    charts = []
    for title, bank in (("success with bank", True), ("success without bank", False)):
        lines = []
        for color, (name, points) in enumerate(drawn.items()):
            marks = [
                replace(_point(place, _shown(arm, bank).mean), at=scale.values[place]) for place, arm in points.items()
            ]
            lines.append(Line(_name(name, list(points.values()), bank), color, marks))
        charts.append(line_chart(title, lines, top=top, share=True, axis=escaped(scale.title), named=True))
    return charts


def _both(arm: ArmResult) -> list[Success]:
    return [shown for shown in (arm.with_bank, arm.without_bank) if shown is not None]


def _shown(arm: ArmResult, bank: bool) -> Success:
    shown = arm.with_bank if bank and arm.with_bank is not None else arm.without_bank
    assert shown is not None
    return shown


def _name(title: str, arms: Sequence[ArmResult], bank: bool) -> str:
    return escaped(f"{title} (no bank)" if bank and not any(arm.with_bank for arm in arms) else title)


def _top(values: Iterable[Interval]) -> float:
    highest = max(each.mean if each.high is None else min(each.high, 1.0) for each in values)
    return min(1.0, 1.05 * highest) or 1.0


def _points(curve: dict[int, Interval]) -> list[Point]:
    numbers = sorted(curve)
    step = -(-len(numbers) // POINTS)
    kept = sorted({*numbers[::step], numbers[-1]})
    return [_point(number, curve[number]) for number in kept]


def _point(number: int, value: Interval) -> Point:
    if value.low is None or value.high is None:
        return Point(number, value.mean, str(number), interval_text(value))
    # No rate is outside of 0 and 1, whatever the interval of a mean of few says.
    low, high = max(0.0, value.low), min(1.0, value.high)
    return Point(number, value.mean, str(number), interval_text(value), low, high)


def _link(run: PlannedRun, result: StudyResult) -> RunLink:
    done = run.rounds_done()
    standing = "not begun" if done < 0 else f"round {done} of {run.rounds}"
    page = run.path / REPORT
    title = next(arm.title for arm in result.arms if arm.arm == run.arm)
    return RunLink(title, run.seed, run.name, standing, f"{quote(run.path.name)}/{REPORT}" if page.is_file() else None)
