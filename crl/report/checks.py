"""What the data checks of a round looked at, from the manifests of its stages.

A committed stage passed: nothing is committed otherwise. What was broken is in the error of the attempt that failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crl.run.directory import complete_stages
from crl.run.manifest import Manifest, key_of


@dataclass(frozen=True, slots=True)
class TableCheck:
    """One suite on what one stage wrote."""

    table: str
    rows: int
    rules: int
    passed: bool


@dataclass(frozen=True, slots=True)
class StageChecks:
    """The suites of one stage."""

    stage: str
    suites: tuple[TableCheck, ...]

    @property
    def rules(self) -> int:
        """Rules checked, over all tables."""
        return sum(each.rules for each in self.suites)

    @property
    def rows(self) -> int:
        """Rows checked, over all tables."""
        return sum(each.rows for each in self.suites)

    @property
    def passed(self) -> bool:
        """Whether every rule held."""
        return all(each.passed for each in self.suites)


def checks_of(run_path: Path, round_number: int) -> list[StageChecks]:
    """The checks of every committed stage of a round, in the order the stages ran. Raises RecordDamaged."""
    found = []
    for stage in complete_stages(run_path, round_number):
        kept = Manifest.load(run_path / "rounds" / key_of(round_number, stage)).provenance.get("checks", ())
        found.append(StageChecks(stage, tuple(TableCheck(**each) for each in kept)))
    return found
