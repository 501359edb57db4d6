"""Faults in the stages of rounds 0 to 2, continued both ways, under a real server and worker.

Every fault strikes every eighth stage, and every stage is struck by one fault in each way; `CRL_MATRIX=*` is every
fault in every stage both ways (hours). What passed is kept in
`.pytest_cache/operation-matrix-<digest of sources>.jsonl`: typed again after an interruption, or after a mended test,
`make test-slow` runs only the cells that have not passed with these sources. A selection:

    CRL_MATRIX='exception,hang:collect,*:0001/plan:retry' make test-slow     (fault, :stage or place, :way)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.faults.segments import INSIDE, Fault, Segment, Way, break_from_outside, nothing_runs_for_ever
from tests.operate import Operation, operation
from tests.processes import wait_until
from tests.tiny_run import ROOT, digests

SOURCES = ("crl", "flows", "tasks")
EVERY = 8
"""Of the stages, which one a fault strikes where nothing is selected."""
SIDE_BY_SIDE = {Fault.worker: 6, Fault.everything: 6}
"""Experiments that are broken together, where most of a step is waiting for a heartbeat. Else 3."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Cell:
    """One fault in one stage, continued in one way."""

    fault: Fault
    place: str
    way: Way

    def __str__(self) -> str:
        return f"{self.fault}:{self.place}:{self.way}"

    def selected(self, selection: str) -> bool:
        """Whether a term of the selection names it."""
        terms = [term.strip().split(":") for term in selection.split(",") if term.strip()]
        mine = (str(self.fault), self.place, str(self.way))
        return any(
            all(word in ("*", own, own.partition("/")[2]) for word, own in zip(term, mine, strict=False))
            for term in terms
        )


class Outcomes:
    """The file of what passed; the last line about a cell counts."""

    def __init__(self) -> None:
        digest = hashlib.sha256()
        for source in SOURCES:
            for path in sorted((ROOT / source).rglob("*.py")):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
        self.path = ROOT / ".pytest_cache" / f"operation-matrix-{digest.hexdigest()[:16]}.jsonl"
        self.path.parent.mkdir(exist_ok=True)

    def passed(self) -> set[str]:
        """The cells that have passed."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        latest = {line["cell"]: line["passed"] for line in map(json.loads, lines)}
        return {cell for cell, passed in latest.items() if passed}

    def note(self, cell: str, *, passed: bool, why: str = "") -> None:
        """Write one outcome down, at once."""
        with self.path.open("a") as file:
            file.write(json.dumps({"cell": cell, "passed": passed, "why": why[:2000]}) + "\n")


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operation]:
    """One server and one worker for the whole matrix."""
    with operation(tmp_path_factory.mktemp("matrix")) as made:
        yield made


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("fault", list(Fault))
def test_in_every_stage(fault: Fault, way: Way, unpruned: Path, request: pytest.FixtureRequest) -> None:
    outcomes = Outcomes()
    places = list(digests(unpruned))
    if selection := os.environ.get("CRL_MATRIX", ""):
        wanted = [place for place in places if Cell(fault, place, way).selected(selection)]
    else:
        first = (list(Fault).index(fault) + list(Way).index(way) * EVERY // 2) % EVERY
        wanted = places[first::EVERY]
    passed = outcomes.passed()
    due = [place for place in wanted if str(Cell(fault, place, way)) not in passed]
    if not due:
        pytest.skip(f"{len(wanted)} cells selected, all passed earlier with these sources: {outcomes.path.name}")
    operated: Operation = request.getfixturevalue("operated")
    started = time.monotonic()
    failed = _Row(operated, unpruned, fault, way, places, due, outcomes).run()
    seconds = time.monotonic() - started
    print(f"{fault} {way}: {len(due)} cells in {seconds:.0f} s, {len(wanted) - len(due)} passed earlier")
    assert not failed, "\n".join(failed)


class _Row:
    """One fault and one way in all places that are due, several experiments side by side."""

    def __init__(
        self,
        operated: Operation,
        finished: Path,
        fault: Fault,
        way: Way,
        places: list[str],
        due: list[str],
        outcomes: Outcomes,
    ) -> None:
        self.operated, self.fault, self.way, self.outcomes = operated, fault, way, outcomes
        self.failed: list[str] = []
        self.passed: set[str] = set()
        count = min(SIDE_BY_SIDE.get(fault, 3), len(due))
        bounds = [round(number * len(due) / count) for number in range(count + 1)]
        self.segments = []
        for first, last in itertools.pairwise(bounds):
            chunk = due[first:last]
            after = places.index(chunk[-1]) + 1
            halt = places[after] if after < len(places) else None
            self.segments.append(Segment(operated, finished, fault, way, tuple(chunk), halt))

    def run(self) -> list[str]:
        """Break and continue until every place is done; returns what failed."""
        before = frozenset(self.operated.still_living())
        with contextlib.ExitStack() as stack:
            for segment in self.segments:
                stack.enter_context(segment.prepared())
            alive = list(self.segments)
            while alive := self._step(alive):
                pass
            try:
                nothing_runs_for_ever(self.operated, before)
                taken = [each.name for each in self.segments if self.operated.limit(each.name)["active_slots"]]
                assert not taken, f"the slots of {taken} are taken although nothing runs"
                wait_until(lambda: not self.operated.flow_processes(), "no process of a flow lives")
            except AssertionError as error:
                self._fail([cell for segment in self.segments for cell in self._cells(segment)], str(error))
        return self.failed

    def _step(self, alive: list[Segment]) -> list[Segment]:
        """Every living segment breaks in its next place; returns those that have another one."""
        alive = self._each(alive, Segment.begin)
        alive = self._each(alive, Segment.wait_reached)
        if self.fault not in INSIDE and alive:
            break_from_outside(self.operated, self.fault, alive)
        alive = self._each(alive, Segment.wait_dead)
        alive = self._each(alive, self._look)
        last = [each for each in alive if each.step + 1 == len(each.places)]
        going = self._each([each for each in alive if each not in last], self._go_on)
        self._each(last, self._finish)
        return going

    def _look(self, segment: Segment) -> None:
        segment.look()
        for cell in self._cells(segment)[: segment.step]:
            self._pass(cell)

    def _go_on(self, segment: Segment) -> None:
        segment.mend()
        if self.way is Way.resume:
            segment.resume()
        segment.step += 1

    def _finish(self, segment: Segment) -> None:
        segment.go_on()
        segment.arrive()
        for cell in self._cells(segment):
            self._pass(cell)

    def _each(self, segments: list[Segment], do: Callable[[Segment], None]) -> list[Segment]:
        """Do something with each, side by side; returns those that lived through it."""
        with ThreadPoolExecutor(3) as pool:
            results = pool.map(functools.partial(self._try, do), segments)
        return [segment for segment, error in zip(segments, results, strict=True) if error is None]

    def _try(self, do: Callable[[Segment], None], segment: Segment) -> Exception | None:
        try:
            do(segment)
        except (AssertionError, httpx.HTTPError) as error:
            self._fail([self._cells(segment)[segment.step]], str(error))
            # It must not work on while others are broken; the worker notices.
            with contextlib.suppress(AssertionError):
                self.operated.kill_flow(segment.run_id)
            return error
        return None

    def _cells(self, segment: Segment) -> list[str]:
        return [str(Cell(self.fault, place, self.way)) for place in segment.places]

    def _pass(self, cell: str) -> None:
        if cell not in self.passed:
            self.passed.add(cell)
            self.outcomes.note(cell, passed=True)

    def _fail(self, cells: list[str], why: str) -> None:
        self.failed.append(f"{', '.join(cells)}: {why}")
        for cell in cells:
            self.outcomes.note(cell, passed=False, why=why)
