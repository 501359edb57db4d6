"""What the data checks of a round looked at before its stages were committed, and where the Data Docs are.

A committed stage passed: nothing is committed otherwise. What was broken is in the error of the attempt that failed.
The Data Docs (Great Expectations' pages, `crl/validation/round.py`) are derived and disposable: not part of the record,
checksummed with the rest of the cache, made again by `crl checks docs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crl.run.cache import CACHE
from crl.run.directory import complete_stages
from crl.run.manifest import Manifest
from crl.run.manifest import key_of as stage_key

SITE = "data_docs"
INDEX = f"{CACHE}/{SITE}/index.html"
"""Where the site begins, from the run directory."""


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
        kept = Manifest.load(run_path / "rounds" / stage_key(round_number, stage)).provenance.get("checks", ())
        found.append(StageChecks(stage, tuple(TableCheck(**each) for each in kept)))
    return found
