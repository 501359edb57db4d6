"""The files of a study's result in its directory: `study.json`, `study.md`, `results.parquet`, `runs.parquet`,
`study.html`, and each of its charts as a picture, `chart-….svg`; where the world changes in its runs,
`change.parquet`, too.

All are derived: they are made from the runs' records at any time, hold no clock times, and are the same again from the
same records.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from crl.lab.study.change import CHANGED
from crl.lab.study.config import Study
from crl.lab.study.figures import RunFigures
from crl.lab.study.plan import PlannedRun
from crl.lab.study.results import RunsByArm, StudyResult, read_failures, read_figures, summarize_study
from crl.lab.study.table import study_markdown
from crl.rounds.evaluate import WITH_BANK
from crl.run.files import making, write_atomically

JSON, MARKDOWN, PARQUET, CHANGE = "study.json", "study.md", "results.parquet", "change.parquet"
RUNS = "runs.parquet"
SCHEMA = pa.schema(
    [
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("round", pa.int64()),
        ("bank", pa.bool_()),
        ("successes", pa.int64()),
        ("episodes", pa.int64()),
        ("success", pa.float64()),
        ("training_episodes", pa.int64()),
        ("training_tokens", pa.int64()),
        ("training_real_steps", pa.int64()),
        ("actions", pa.float64()),
        ("tokens_read", pa.float64()),
        ("tokens_sampled", pa.float64()),
    ]
)
"""One row per evaluation: held-out `successes` of `episodes`, with the bank or without, after `training_episodes` (with
that many generated tokens and real steps), and what a game took on average."""

OF_RUNS = pa.schema(
    [
        ("arm", pa.string()),
        ("seed", pa.int64()),
        *((name, pa.int64()) for name in ("training_episodes", "outputs", "malformed", "returned")),
        *((name, pa.float64()) for name in ("notes_true", "coverage")),
        ("alarms", pa.list_(pa.string())),
    ]
)
"""One row per run: extractor outputs of all rounds, what the last bank was worth, and how the run had collapsed."""

CHANGES = pa.schema(
    [
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("round", pa.int64()),
        ("families", pa.string()),
        ("bank", pa.bool_()),
        *((name, pa.int64()) for name in ("successes", "episodes", "entries", "true", "stale")),
    ]
)


def write_study(study: Study, runs: Sequence[PlannedRun], directory: Path) -> tuple[StudyResult, list[Path]]:
    """Read every finished run and write all files: (result, the files but charts). Raises RecordDamaged, DiskFull."""
    from crl.lab.study.page import write_study_page

    figures = read_figures(runs)
    unfinished = [run for run in runs if run.seed not in figures.get(run.arm, {})]
    result = summarize_study(study, figures, read_failures(unfinished))
    contents = {
        JSON: result.model_dump_json(indent=1).encode() + b"\n",
        MARKDOWN: study_markdown(result).encode(),
        PARQUET: _parquet(figures),
        RUNS: _runs(figures),
    }
    changes = _changes(figures)
    if changes.num_rows:
        contents[CHANGE] = _written(changes)
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
    from crl.lab.study.page import chart_groups

    titled = [(f"{about or ''} {chart.title}", chart) for about, found in chart_groups(result) for chart in found]
    return {
        f"chart-{place}-{'-'.join(re.findall('[a-z0-9]+', name.lower()))}.svg": chart.picture().encode()
        for place, (name, chart) in enumerate(titled, 1)
    }


def _parquet(figures: RunsByArm) -> bytes:
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "round": number,
            "bank": bank,
            "successes": rate.successes,
            "episodes": rate.episodes,
            "success": rate.value,
            "training_episodes": run.episodes[number],
            "training_tokens": run.tokens.get(number),
            "training_real_steps": run.real_steps.get(number),
            **_cost(run, number, bank),
        }
        for arm, runs in figures.items()
        for seed, run in runs.items()
        for bank, rates in ((True, run.with_bank), (False, run.without_bank))
        for number, rate in rates.items()
    ]
    return _written(pa.Table.from_pylist(rows, SCHEMA))


def _runs(figures: RunsByArm) -> bytes:
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "training_episodes": run.training_episodes,
            **run.model_dump(include={"outputs", "malformed", "returned", "notes_true", "coverage", "alarms"}),
        }
        for arm, runs in figures.items()
        for seed, run in runs.items()
    ]
    return _written(pa.Table.from_pylist(rows, OF_RUNS))


def _changes(figures: RunsByArm) -> pa.Table:
    """One row per evaluation, with the bank or without, of families that change or that stay; and the notes of those
    that change, where the environment can judge them."""
    rows = []
    for arm, runs in figures.items():
        for seed, change in ((seed, run.change) for seed, run in runs.items() if run.change is not None):
            for part, kinds in change.success.items():
                for kind, rates in kinds.items():
                    notes = change.notes if part == CHANGED and kind == WITH_BANK else {}
                    place = {"arm": arm, "seed": seed, "families": part, "bank": kind == WITH_BANK}
                    rows += [
                        {**place, "round": number, "successes": rate.successes, "episodes": rate.episodes}
                        | (notes[number].model_dump() if number in notes else {})
                        for number, rate in rates.items()
                    ]
    return pa.Table.from_pylist(rows, CHANGES)


def _written(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _cost(run: RunFigures, number: int, bank: bool) -> dict[str, float | None]:
    # Where the bank is still empty, success with it is that without it; so is what a game takes.
    costs = {**run.costs_without_bank, **(run.costs_with_bank if bank else {})}
    cost = costs.get(number)
    return {} if cost is None else cost.model_dump(exclude={"seconds"})
