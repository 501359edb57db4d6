"""The files of a study's result in its directory: `study.json`, `study.md`, `results.parquet`, `runs.parquet`,
`study.html`, and each of its charts as a picture, `chart-….svg`; where the world changes in its runs,
`change.parquet`, too.

All are derived: they are made from the runs' records at any time, hold no clock times, and are the same again from the
same records. The page is one file that loads nothing; its numbers are those of `study.json`.

Curves show mean success over seeds with the 95 % interval of that mean; an arm without a bank is in both charts. Where
runs took different numbers of real environment steps, the same evaluations are drawn over these, at the mean of the
steps that the seeds had taken: nothing is interpolated. Arms that switch a mechanism have charts of their own, beside
the arms they are compared with; what is varied has charts of success by its values.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from crl.lab.study.change import CHANGED
from crl.lab.study.config import Study
from crl.lab.study.metrics import RunMetrics
from crl.lab.study.plan import PlannedRun
from crl.lab.study.results import (
    KINDS,
    ArmResult,
    RunsByArm,
    StudyResult,
    Success,
    Varied,
    read_failures,
    read_metrics,
    summarize_study,
)
from crl.lab.study.statistics import Interval
from crl.lab.study.table import PARTS, footnotes, interval_text, seed_words, study_markdown, tables
from crl.report.charts import Chart, Line, Point, line_chart, over_steps
from crl.report.page import REPORT, Inline, environment
from crl.rounds.evaluate import WITH_BANK
from crl.run.files import making, unwritable, write_atomically
from crl.text.unicode import escaped

JSON, MARKDOWN, PARQUET, CHANGE = "study.json", "study.md", "results.parquet", "change.parquet"
RUNS = "runs.parquet"
SCHEMA = pa.schema(
    [
        ("arm", pa.string()),
        *((name, pa.int64()) for name in ("seed", "round")),
        ("bank", pa.bool_()),
        *((name, pa.int64()) for name in ("successes", "episodes")),
        ("success", pa.float64()),
        *((f"training_{kind}", pa.int64()) for kind in KINDS),
        *((name, pa.float64()) for name in ("actions", "tokens_read", "tokens_sampled")),
    ]
)
"""One row per evaluation: held-out `successes` of `episodes`, with the bank or without, after `training_episodes` (with
that many generated tokens, real steps and seconds), and what a game took on average."""

OF_RUNS = pa.schema(
    [
        ("arm", pa.string()),
        *((name, pa.int64()) for name in ("seed", "training_episodes", "outputs", "malformed", "returned")),
        *((name, pa.float64()) for name in ("experiences_true", "coverage")),
        ("alarms", pa.list_(pa.string())),
    ]
)
"""One row per run: extractor outputs of all rounds, what the last bank was worth, and how the run had collapsed."""

CHANGES = pa.schema(
    [
        ("arm", pa.string()),
        *((name, pa.int64()) for name in ("seed", "round")),
        ("families", pa.string()),
        ("bank", pa.bool_()),
        *((name, pa.int64()) for name in ("successes", "episodes", "entries", "true", "stale")),
    ]
)
PAGE = "study.html"
_CHARTS = (("success with bank", True), ("success without bank", False))
COLORS = 8
POINTS = 120
"""Most points of a line; of a longer one every so many rounds are left out."""


def write_study(
    study: Study, runs: Sequence[PlannedRun], directory: Path, metrics: RunsByArm | None = None
) -> tuple[StudyResult, list[Path]]:
    """Write all files: (result, the files but charts). `metrics` are those of every finished run, which is read where
    they are not given. Raises RecordDamaged, DiskFull."""
    metrics = read_metrics(runs) if metrics is None else metrics
    unfinished = [run for run in runs if run.seed not in metrics.get(run.arm, {})]
    result = summarize_study(study, metrics, read_failures(unfinished))
    contents = {
        JSON: result.model_dump_json(indent=1).encode() + b"\n",
        MARKDOWN: study_markdown(result).encode(),
        PARQUET: _parquet(metrics),
        RUNS: _runs(metrics),
    }
    changes = _changes(metrics)
    if changes.num_rows:
        contents[CHANGE] = parquet_of(changes)
    pictures = _pictures(result)
    with making(directory):
        for name, content in (contents | pictures).items():
            write_atomically(directory / name, content)
        # What the study had when it was written last: nobody could tell an old chart from a new one.
        for path in [*directory.glob("chart-*.svg"), directory / CHANGE]:
            if path.name not in contents | pictures:
                path.unlink(missing_ok=True)
    return result, [*(directory / name for name in contents), write_study_page(directory, result, runs)]


def _pictures(result: StudyResult) -> dict[str, bytes]:
    titled = [(f"{about or ''} {chart.title}", chart) for about, found in chart_groups(result) for chart in found]
    return {
        f"chart-{place}-{'-'.join(re.findall('[a-z0-9]+', name.lower()))}.svg": chart.picture().encode()
        for place, (name, chart) in enumerate(titled, 1)
    }


def _parquet(metrics: RunsByArm) -> bytes:
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "round": number,
            "bank": bank,
            "successes": rate.successes,
            "episodes": rate.episodes,
            "success": rate.value,
            **{f"training_{kind}": getattr(run, kind).get(number) for kind in KINDS},
            **_cost(run, number, bank),
        }
        for arm, runs in metrics.items()
        for seed, run in runs.items()
        for bank, rates in ((True, run.with_bank), (False, run.without_bank))
        for number, rate in rates.items()
    ]
    return parquet_of(pa.Table.from_pylist(rows, SCHEMA))


def _runs(metrics: RunsByArm) -> bytes:
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "training_episodes": run.training_episodes,
            **run.model_dump(include={"outputs", "malformed", "returned", "experiences_true", "coverage", "alarms"}),
        }
        for arm, runs in metrics.items()
        for seed, run in runs.items()
    ]
    return parquet_of(pa.Table.from_pylist(rows, OF_RUNS))


def _changes(metrics: RunsByArm) -> pa.Table:
    """One row per evaluation, with the bank or without, of families that change or that stay; and the experiences of
    those that change, where the environment knows."""
    rows = []
    for arm, runs in metrics.items():
        for seed, change in ((seed, run.change) for seed, run in runs.items() if run.change is not None):
            for part, kinds in change.success.items():
                for kind, rates in kinds.items():
                    experiences = change.experiences if part == CHANGED and kind == WITH_BANK else {}
                    place = {"arm": arm, "seed": seed, "families": part, "bank": kind == WITH_BANK}
                    rows += [
                        {**place, "round": number, "successes": rate.successes, "episodes": rate.episodes}
                        | (experiences[number].model_dump() if number in experiences else {})
                        for number, rate in rates.items()
                    ]
    return pa.Table.from_pylist(rows, CHANGES)


def parquet_of(table: pa.Table) -> bytes:
    """A table as the content of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _cost(run: RunMetrics, number: int, bank: bool) -> dict[str, float | None]:
    # Where the bank is still empty, success with it is that without it; so is what a game takes.
    costs = {**run.costs_without_bank, **(run.costs_with_bank if bank else {})}
    cost = costs.get(number)
    return {} if cost is None else cost.model_dump(exclude={"seconds"})


@dataclass(frozen=True, slots=True)
class RunLink:
    """One run of the study, as the page lists it."""

    arm: str
    seed: int
    name: str
    status: str
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
    template = environment().get_template("study.html")
    page = template.render(
        style=Inline("chart.css", "style.css"),
        result=result,
        seed_words=seed_words(result),
        groups=chart_groups(result),
        tables=tables(result),
        footnotes=footnotes(result),
        runs=[_link(each, result) for each in runs],
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
    return [*charts, *((title, found) for title, found in (*_change_charts(result), *scales) if found)]


def _curves(arms: Sequence[ArmResult], *, steps: bool) -> list[Chart]:
    top = _top(each for arm in arms for shown in _both(arm) for each in shown.curve.values())
    taken: list[dict[float, float]] = [{number: value.mean for number, value in arm.real_steps.items()} for arm in arms]
    over_rounds, over = [], []
    for title, bank in _CHARTS:
        lines = [
            Line(_name(arm.title, [arm], bank), color, _points(_shown(arm, bank).curve))
            for color, arm in enumerate(arms)
        ]
        over_rounds.append(line_chart(title, lines, top=top, share=True))
        over += [over_steps(title, lines, taken, top=top)] if steps else []
    return [*over_rounds, *over]


def _change_charts(result: StudyResult) -> Iterator[tuple[str, list[Chart]]]:
    """Success of the families that change and of those that stay, and what becomes of the experiences of the former."""
    arms = {arm.arm: arm for arm in result.arms}
    for part, words in PARTS.items():
        charts = []
        for title, bank in _CHARTS:
            lines = [
                Line(_name(arms[each.arm].title, [arms[each.arm]], bank), color, _points(shown.curve))
                for color, each in enumerate(result.changes)
                if (shown := (each.with_bank if bank else {}).get(part) or each.without_bank.get(part)) is not None
            ]
            charts += [line_chart(title, lines, top=1.0, share=True)] if lines else []
        yield f"families that {words}", charts
    charts = []
    for title in ("true", "stale"):
        lines = [
            Line(escaped(arms[each.arm].title), color, _points(curve))
            for color, each in enumerate(result.changes)
            if (curve := each.experiences_true if title == "true" else each.experiences_stale)
        ]
        charts += [line_chart(title, lines, top=1.0, share=True)] if lines else []
    yield "experiences of families that change", charts


def _by_value(scale: Varied, arms: Mapping[str, ArmResult]) -> list[Chart]:
    """Final success by the values of what was varied, in equal steps."""
    drawn = {
        title: points
        for title, names in scale.arms.items()
        if (points := {place: arms[name] for place, name in enumerate(names) if name in arms})
    }
    if not drawn:
        return []
    top = _top(shown.mean for points in drawn.values() for arm in points.values() for shown in _both(arm))
    charts = []
    for title, bank in _CHARTS:
        lines = [
            Line(
                _name(name, list(points.values()), bank),
                color,
                [replace(_point(at, _shown(arm, bank).mean), at=scale.values[at]) for at, arm in points.items()],
            )
            for color, (name, points) in enumerate(drawn.items())
        ]
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
    return [_point(number, curve[number]) for number in sorted({*numbers[::step], numbers[-1]})]


def _point(number: int, value: Interval) -> Point:
    # No rate is outside of 0 and 1, whatever the interval of a mean of few says.
    low, high = value.low and max(0.0, value.low), value.high and min(1.0, value.high)
    return Point(number, value.mean, str(number), interval_text(value), low, high)


def _link(run: PlannedRun, result: StudyResult) -> RunLink:
    done = run.rounds_done()
    status = "not begun" if done < 0 else f"round {done} of {run.rounds}"
    page = run.path / REPORT
    title = next(arm.title for arm in result.arms if arm.arm == run.arm)
    return RunLink(title, run.seed, run.name, status, f"{quote(run.path.name)}/{REPORT}" if page.is_file() else None)
