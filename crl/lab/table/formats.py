"""A table as text: for a terminal, for Markdown, for LaTeX, and as data (CSV, JSON).

Terminal, Markdown and LaTeX show one metric, with the cells of a paper's table; the data have all of them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from crl.lab.study.table import bracketed
from crl.lab.table.build import Cell, Row, Table, TableMetric
from crl.report.cells import NOTHING
from crl.report.markdown import as_text
from crl.report.success import AVERAGE
from crl.report.terminal import Listing

TITLES = {
    TableMetric.success: "share of held-out episodes won",
    TableMetric.score: "mean reward of a held-out episode",
    TableMetric.actions: "actions of a held-out episode",
    TableMetric.tokens: "tokens of a held-out episode, read and written",
}
HOW = (
    "Brackets are 95 % intervals: Wilson's of one run, Student's t over seeds of several; the average is over tasks, "
    "each with equal weight."
)
_NAMED = 2
"""Columns that hold words."""


def columns(table: Table) -> list[str]:
    """Headings of the cells."""
    tasks = [*table.tasks, "average"] if len(table.tasks) > 1 else list(table.tasks)
    return ["method", "bank", "runs", "round", *tasks]


def cells(table: Table, metric: TableMetric) -> Iterator[list[str]]:
    """The cells of each row, in words."""
    for row in table.rows:
        found = [_words(row.cells.get(task), metric) for task in table.tasks]
        average = [_words(row.average, metric)] if len(table.tasks) > 1 else []
        yield [row.label, _bank(row), str(len(row.runs)), row.round_words, *found, *average]


def listing(table: Table, metric: TableMetric) -> Listing:
    """For a terminal."""
    from rich.text import Text

    heads = columns(table)
    rows = [[Text(cell) for cell in row] for row in cells(table, metric)]
    return Listing(heads, rows, right=frozenset(heads[_NAMED:]), title=TITLES[metric])


def markdown(table: Table, metric: TableMetric) -> str:
    """A Markdown table with its footnotes. Names are marked as text, whatever they hold."""
    heads = columns(table)
    lines = [f"{TITLES[metric].capitalize()}.", "", f"| {' | '.join(map(as_text, heads))} |"]
    lines.append("|" + "---|" * _NAMED + "---:|" * (len(heads) - _NAMED))
    for row in cells(table, metric):
        lines.append("| " + " | ".join([as_text(row[0]), *row[1:]]) + " |")
    lines += ["", HOW, *(f"\n- {as_text(note)}" for note in table.footnotes)]
    return "\n".join(lines)


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "[": "{[}", "]": "{]}",
}  # fmt: skip
_SPECIAL = re.compile("[" + re.escape("".join(_TEX)) + "]")


def tex(text: str) -> str:
    """A text as LaTeX shows it; brackets are set in braces, for a row must not begin with one."""
    return _SPECIAL.sub(lambda found: _TEX[found[0]], " ".join(text.split()))


def latex(table: Table, metric: TableMetric) -> str:
    """A `tabular` with rules of the package booktabs; the footnotes are comments."""
    heads = columns(table)
    lines = [f"% {' '.join(note.split())}" for note in (f"{TITLES[metric].capitalize()}. {HOW}", *table.footnotes)]
    lines += [rf"\begin{{tabular}}{{{'l' * _NAMED}{'r' * (len(heads) - _NAMED)}}}", r"\toprule"]
    lines += [" & ".join(map(tex, heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(tex, row)) + r" \\" for row in cells(table, metric)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def csv_text(table: Table) -> str:
    """One line per method, condition and task, with every metric; the average over tasks is the task
    `macro average`."""
    out = io.StringIO()
    heads = ["method", "condition", "task", "runs", "episodes", "round"]
    metrics = [f"{metric}{end}" for metric in TableMetric for end in ("", "_low", "_high")]
    writer = csv.DictWriter(out, [*heads, *metrics], lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        for task, cell in _all_cells(row):
            line: dict[str, Any] = {
                "method": row.label, "condition": row.condition, "task": task, "runs": cell.runs,
                "episodes": cell.episodes,
                "round": row.round_words,
            }  # fmt: skip
            for metric, value in cell.metrics.items():
                line |= {metric.value: value.mean, f"{metric}_low": value.low, f"{metric}_high": value.high}
            writer.writerow(line)
    return out.getvalue()


def data(table: Table) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "tasks": list(table.tasks),
        "rows": [
            {
                "method": row.label,
                "condition": row.condition,
                "runs": list(row.runs),
                "seeds": list(row.seeds),
                "rounds": list(row.rounds),
                "cells": {task: _cell_data(cell) for task, cell in row.cells.items()},
                "average": None if row.average is None else _cell_data(row.average),
            }
            for row in table.rows
        ],
        "footnotes": list(table.footnotes),
    }


def _all_cells(row: Row) -> Iterator[tuple[str, Cell]]:
    yield from row.cells.items()
    if row.average is not None:
        yield AVERAGE, row.average


def _cell_data(cell: Cell) -> dict[str, Any]:
    metrics = {metric.value: asdict(value) for metric, value in cell.metrics.items()}
    return {"runs": cell.runs, "episodes": cell.episodes, **metrics}


def _bank(row: Row) -> str:
    return row.condition.removesuffix("_bank")


def _words(cell: Cell | None, metric: TableMetric) -> str:
    if cell is None:
        return NOTHING
    value = cell.metrics[metric]
    return bracketed((value.mean, value.low, value.high), lambda each: _number(each, metric))


def _number(value: float, metric: TableMetric) -> str:
    if metric in (TableMetric.success, TableMetric.score):
        text = f"{round(value, 2) + 0.0:.2f}"
    else:
        text = f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")
