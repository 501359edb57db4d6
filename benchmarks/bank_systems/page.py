"""`research/bank_benchmark.md`: what was measured, as tables, with what each system means by a step."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata

from bank_systems.measure import BATCH, COUNT, RECALL, SHARE, Measured

_NAMES = {"crl": "crl", "lancedb": "LanceDB", "chroma": "Chroma", "json": "JSON + NPZ"}
_STEPS = (
    ("add", "add all entries", 1.0, "s"),
    ("exact", f"search, exact, {BATCH} queries", 1000.0, "ms"),
    ("build", "build the approximate index", 1.0, "s"),
    ("approximate", f"search, approximate, {BATCH} queries", 1000.0, "ms"),
    ("snapshot", f"snapshot after {SHARE:.0%} change", 1.0, "s"),
    ("reopen, exact", "reopen an earlier snapshot, first exact answer", 1.0, "s"),
    ("reopen, approximate", "reopen an earlier snapshot, first approximate answer", 1.0, "s"),
)
_FIGURES = (
    ("recall of approximate", f"recall@{COUNT} of the approximate search", lambda value: f"{value:.3f}"),
    ("bytes of one snapshot", "disk, one snapshot", lambda value: f"{value / 1e6:,.0f} MB"),
    ("bytes a further snapshot", "disk, each further snapshot", lambda value: f"{value / 1e6:,.1f} MB"),
)
_TEXT = """# The bank beside other stores

Written by `{command}` ({minutes:.0f} minutes on {machine}).
Every step is done by each system in turn, in one run. A cell holds the median; in brackets the factor by which the
system is slower (or larger) than crl, with its least and greatest value where a step was repeated. A factor below 1
means that the other system is better.

{tables}
## What was measured

- **Data.** {data} All systems get the same entries, texts and vectors (384 dimensions); no model runs.
- **crl** goes through the real record: a leased run whose rounds publish banks, every file synced to the disk and
  hashed, every read checked against its SHA-256. A snapshot is the stage `consolidate` as training runs it: it opens
  the bank of the round before, applies the operations and writes changes, events, texts and vectors. Its entries also
  hold what the others do not: which output and which episodes each text comes from. Checks of the tables are left out.
- **LanceDB** {lancedb}. A snapshot is the version after `merge_insert` and `delete`; reopening is
  `checkout`. Exact search bypasses the vector index. The approximate index is IVF_FLAT: of those it offers
  the one that reached the recall soonest here (IVF_PQ, its default, took many times as long to build).
- **Chroma** {chroma}. It has an HNSW index only, so it appears under approximate search, and the index is
  made while entries are added. It has no versions: a snapshot is a copy of its directory.
- **JSON + NPZ** writes everything anew for every snapshot, never synced to the disk, and searches with NumPy.
- **Approximate search** uses the least effort that reaches a recall@{count} of {recall} on other queries ({efforts}).
- **Reopening** happens in a new process, libraries loaded: from the files to the first {batch} answers. Files are in
  the page cache for all.
"""


def page(measured: Sequence[Measured], command: str, *, real: bool, seconds: float) -> str:
    """The whole page."""
    data = (
        "Sentences from the docstrings of installed packages with their MiniLM embeddings; beyond 100,000, mixtures of "
        "two of them with noise. Queries are sentences of other modules."
        if real
        else "Made-up vectors in clusters of clusters, texts of random words."
    )
    return _TEXT.format(
        command=command,
        minutes=seconds / 60,
        machine=f"{os.cpu_count()} CPU cores, {platform.system()}, Python {platform.python_version()}",
        tables=tables(measured),
        data=data,
        lancedb=_version("lancedb"),
        chroma=_version("chromadb"),
        count=COUNT,
        recall=RECALL,
        efforts="; ".join(
            f"{_NAMES[name]} at {each.size:,}: {effort}" for each in measured for name, effort in each.efforts.items()
        ),
        batch=BATCH,
    )


def tables(measured: Sequence[Measured]) -> str:
    """A table a size."""
    return "\n".join(_table(each) for each in measured)


def _table(found: Measured) -> str:
    names = [name for name in _NAMES if any(key[1] == name for key in found.seconds)]
    lines = [f"## {found.size:,} entries", "", f"| | {' | '.join(_NAMES[name] for name in names)} |"]
    lines.append("|---|" + "---:|" * len(names))
    for step, label, factor, unit in _STEPS:
        cells = [_seconds(found, step, name, factor, unit) for name in names]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    for key, label, shown in _FIGURES:
        cells = [_metric(found, key, name, shown) for name in names]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seconds(found: Measured, step: str, name: str, factor: float, unit: str) -> str:
    taken, ours = found.seconds.get((step, name)), found.seconds.get((step, "crl"))
    if not taken:
        return "–"
    shown = f"{statistics.median(taken) * factor:,.{_digits(statistics.median(taken) * factor)}f} {unit}"
    if name == "crl" or not ours:
        return shown
    ratios = [theirs / own for theirs, own in zip(taken, ours, strict=False)]  # what is slow was done once
    spread = f", {_factor(min(ratios))}–{_factor(max(ratios))}" if len(ratios) > 1 else ""
    return f"{shown} ({_factor(statistics.median(ratios))}×{spread})"


def _metric(found: Measured, key: str, name: str, shown: object) -> str:
    value, ours = found.metrics.get((key, name)), found.metrics.get((key, "crl"))
    if value is None:
        return "–"
    assert callable(shown)
    if name == "crl" or not ours or not key.startswith("bytes"):
        return str(shown(value))
    return f"{shown(value)} ({_factor(value / ours)}×)"


def _factor(value: float) -> str:
    return f"{value:,.{_digits(value)}f}"


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
