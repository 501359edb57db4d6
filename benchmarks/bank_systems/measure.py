"""One size of bank, all systems side by side: every step is done by each in turn, so that noise hits all alike."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Rows, System, nearest
from bank_systems.data import Source

SYSTEMS = {
    "crl": "bank_systems.ours:Ours",
    "lancedb": "bank_systems.lance:Lance",
    "chroma": "bank_systems.chroma:Chroma",
    "json": "bank_systems.plain:JsonNpz",
}
BATCH, COUNT, RECALL, SHARE = 32, 16, 0.95, 0.01
_SLOW_SECONDS = 20.0
"""What takes longer is done once."""


@dataclass
class Measured:
    """Of one size: seconds by (step, system), metrics by (name, system)."""

    size: int
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    efforts: dict[str, Any] = field(default_factory=dict)


def measure(size: int, names: Sequence[str], repetitions: int, data: Path | None, root: Path) -> Measured:
    """Every step for one size."""
    found, source = Measured(size), Source(data)
    rows = source.rows(size)
    present = dict(zip(rows.ids, rows.families, strict=True))
    systems = _fill(found, names, rows, repetitions, root)
    for name, system in systems.items():
        found.metrics["bytes of one snapshot", name] = system.bytes()
    _search(found, systems, rows, source.queries_QD, repetitions)
    rows = Rows([], [], [], np.empty((0, 0), np.float32))
    before = {name: system.bytes() for name, system in systems.items()}  # an index may have come since
    _snapshots(found, systems, source, present, repetitions)
    for name, system in systems.items():
        found.metrics["bytes a further snapshot", name] = (system.bytes() - before[name]) / repetitions
        system.close()
    systems.clear()
    gc.collect()
    _reopen(found, names, source.queries_QD, repetitions, root)
    return found


def new_system(name: str, directory: Path) -> System:
    """A system by its name; one that is not installed is a ModuleNotFoundError."""
    module, _, cls = SYSTEMS[name].partition(":")
    made: System = getattr(importlib.import_module(module), cls)(directory)
    return made


def _fill(found: Measured, names: Sequence[str], rows: Rows, repetitions: int, root: Path) -> dict[str, System]:
    """Fill each system, as often as asked unless it is slow; the last ones stay."""
    systems: dict[str, System] = {}
    for repetition in range(repetitions):
        for name in names:
            taken = found.seconds["add", name]
            if taken and max(taken) > _SLOW_SECONDS:
                continue
            if name in systems:
                systems.pop(name).close()
                shutil.rmtree(_places(root, name)[-1])
            systems[name] = new_system(name, root / f"{name}-{repetition:02d}")
            _timed(found, "add", name, partial(systems[name].add, rows))
            print(f"  {found.size:,} add {name}: {taken[-1]:.2f} s", flush=True)
    return {name: systems[name] for name in names}


def _search(
    found: Measured, systems: dict[str, System], rows: Rows, queries_QD: NDArray[np.float32], repetitions: int
) -> None:
    batches = [queries_QD[first : first + BATCH] for first in range(0, (2 * repetitions + 3) * BATCH, BATCH)]
    truth = [nearest(rows.ids, rows.vectors_ND, batch_BD, COUNT) for batch_BD in batches]
    exact = {name: system for name, system in systems.items() if system.exact}
    _batches(found, "exact", exact, dict.fromkeys(exact), batches, truth)
    near = {name: system for name, system in systems.items() if system.approximate}
    for name, system in near.items():
        _timed(found, "build", name, system.build)
        print(f"  {found.size:,} build {name}: {found.seconds['build', name][-1]:.2f} s", flush=True)
        found.efforts[name] = _effort(system, batches[:3], truth[:3])
    _batches(found, "approximate", near, found.efforts, batches[3:], truth[3:])


def _effort(system: System, batches: Sequence[NDArray[np.float32]], truth: Sequence[list[list[str]]]) -> Any:
    """The least effort that reaches the recall, on batches that are not timed; else the greatest."""
    for effort in system.efforts:
        answers = [system.search(batch_BD, COUNT, effort) for batch_BD in batches]
        if float(np.mean([recall(*each) for each in zip(answers, truth, strict=True)])) >= RECALL:
            return effort
    return system.efforts[-1]


def recall(answers: list[list[str]], truth: list[list[str]]) -> float:
    """Share of the true neighbors that were found."""
    hits = sum(len(set(one) & set(other)) for one, other in zip(answers, truth, strict=True))
    return hits / sum(map(len, truth))


def _batches(
    found: Measured,
    step: str,
    systems: dict[str, System],
    efforts: dict[str, Any],
    batches: Sequence[NDArray[np.float32]],
    truth: Sequence[list[list[str]]],
) -> None:
    hits: dict[str, list[float]] = {name: [] for name in systems}
    for name, system in systems.items():
        system.search(batches[0], COUNT, efforts[name])
    for batch_BD, expected in zip(batches, truth, strict=True):
        for name, system in systems.items():
            answers = _timed(found, step, name, partial(system.search, batch_BD, COUNT, efforts[name]))
            hits[name].append(recall(answers, expected))
    for name, each in hits.items():
        found.metrics[f"recall of {step}", name] = float(np.mean(each))


def _snapshots(
    found: Measured, systems: dict[str, System], source: Source, present: dict[str, str], repetitions: int
) -> None:
    for round_number in range(1, repetitions + 1):
        changes = source.changes(present, SHARE)
        for name, system in systems.items():
            system.prepare(round_number, changes)
            _timed(found, "snapshot", name, partial(system.snapshot, round_number, changes))
            print(f"  {found.size:,} snapshot {name}: {found.seconds['snapshot', name][-1]:.2f} s", flush=True)


def _reopen(
    found: Measured, names: Sequence[str], queries_QD: NDArray[np.float32], repetitions: int, root: Path
) -> None:
    """The snapshot before the last one, each time in a process of its own: nothing is left in memory."""
    context = multiprocessing.get_context("spawn")
    for _ in range(repetitions):
        for name in names:
            for step, effort in (("reopen, exact", None), ("reopen, approximate", found.efforts.get(name))):
                if (step, effort) == ("reopen, approximate", None):
                    continue
                with context.Pool(1) as pool:
                    work = (name, _places(root, name)[-1], repetitions - 1, queries_QD[:BATCH], effort)
                    seconds = pool.apply(_reopened, work)
                if seconds is not None:
                    found.seconds[step, name].append(seconds)


def _reopened(name: str, place: Path, round_number: int, queries_BD: NDArray[np.float32], effort: Any) -> float | None:
    """Seconds from nothing to the first answered batch."""
    system = new_system(name, place)
    if effort is None and not system.exact:
        return None
    began = time.perf_counter()
    system.open(round_number)
    system.search(queries_BD, COUNT, effort)
    return time.perf_counter() - began


def _places(root: Path, name: str) -> list[Path]:
    return sorted(root.glob(f"{name}-*"))


def _timed(found: Measured, step: str, name: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = work()
    found.seconds[step, name].append(time.perf_counter() - began)
    return result
