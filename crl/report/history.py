"""The results of a run, round by round, read so that one more round costs the same however many there are.

A round that is complete does not change, so what was read of it is kept in this process; the time stamp of its
directory shows when a stage came or was set aside. Nothing is written.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

from crl.errors import BadInput
from crl.report.checks import StageChecks, checks_of
from crl.report.diff import BankDiff, bank_diff
from crl.report.summary import RoundSummary, summarize
from crl.run.directory import RunDirectory

_ROUND = re.compile(r"\d{4,}")
_MANY = 50
"""With more rounds to read than this, one query over all is quicker than a list of them."""
_KEPT = 64
"""Bank diffs and checks kept: they hold texts, and pages show the newest rounds only."""


class History:
    """The rounds of one run. Reading again reads only what is new."""

    def __init__(self, run_path: Path) -> None:
        self.run_path = Path(run_path)
        self._summaries: dict[int, tuple[int, list[RoundSummary]]] = {}
        self._diffs: OrderedDict[tuple[int, int], BankDiff | None] = OrderedDict()
        self._checks: OrderedDict[tuple[int, int], list[StageChecks]] = OrderedDict()

    @cached_property
    def run(self) -> RunDirectory:
        """The run directory, opened once. Raises as `RunDirectory.open`."""
        return RunDirectory.open(self.run_path)

    def rounds(self) -> list[int]:
        """Numbers of the rounds with a committed stage."""
        return [number for number, found in self._read().items() if found]

    def summaries(self) -> list[RoundSummary]:
        """As `summarize`, oldest first. Raises RecordDamaged."""
        return [summary for found in self._read().values() for summary in found]

    def diff(self, round_number: int) -> BankDiff | None:
        """What the round did to the bank; None where it has published none. Raises RecordDamaged."""
        key = (round_number, self._stamp(round_number))
        if key not in self._diffs:
            try:
                self._diffs[key] = bank_diff(self.run_path, round_number)
            except BadInput:
                self._diffs[key] = None
            if len(self._diffs) > _KEPT:
                self._diffs.popitem(last=False)
        return self._diffs[key]

    def checks(self, round_number: int) -> list[StageChecks]:
        """What the data checks of the round looked at. Raises RecordDamaged."""
        key = (round_number, self._stamp(round_number))
        if key not in self._checks:
            self._checks[key] = checks_of(self.run_path, round_number)
            if len(self._checks) > _KEPT:
                self._checks.popitem(last=False)
        return self._checks[key]

    def _read(self) -> dict[int, list[RoundSummary]]:
        stamps = self._stamps()
        new = [number for number, stamp in stamps.items() if self._summaries.get(number, (0,))[0] != stamp]
        if new:
            found: dict[int, list[RoundSummary]] = {number: [] for number in new}
            for summary in summarize(self.run_path, new if len(new) <= _MANY else None):
                found.setdefault(summary.round, []).append(summary)
            for number in new:
                self._summaries[number] = (stamps[number], found[number])
        return {number: self._summaries[number][1] for number in sorted(stamps)}

    def _stamps(self) -> dict[int, int]:
        try:
            with os.scandir(self.run_path / "rounds") as entries:
                return {int(each.name): each.stat().st_mtime_ns for each in entries if _ROUND.fullmatch(each.name)}
        except FileNotFoundError:
            return {}

    def _stamp(self, round_number: int) -> int:
        try:
            return (self.run_path / "rounds" / f"{round_number:04d}").stat().st_mtime_ns
        except OSError:
            return 0
