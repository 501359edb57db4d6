"""What the data checks of a round looked at, from the manifests of its stages.

A committed stage passed: nothing is committed otherwise. What was broken is in the error of the attempt that failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crl.checks.cross import CROSS_RULES
from crl.checks.rules import SUITES
from crl.checks.suite import Suite
from crl.run.directory import complete_stages
from crl.run.manifest import Manifest, key_of

BETWEEN = "between tables"
"""The suite of the rules that speak of several tables of a stage."""


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
        """Rows checked; those that rules between tables looked at again are not counted twice."""
        return sum(each.rows for each in self.suites if each.table != BETWEEN)

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


def rules_of(table: str) -> list[str]:
    """The rules of a suite as sentences; of `between tables` all there are, whichever stage they apply to."""
    if table == BETWEEN:
        return [f"{rule.rule} ({' and '.join(rule.tables)})" for rule in CROSS_RULES]
    suite = next((suite for row_type, suite in SUITES.items() if row_type.table == table), None)
    return [] if suite is None else _sentences(suite)


def _sentences(suite: Suite) -> list[str]:
    key = " and ".join(suite.key)
    found = [f"{key} {'is' if len(suite.key) == 1 else 'are'} unique"]
    found += [f"{column} is one of {', '.join(allowed)}" for column, allowed in suite.sets.items()]
    for column, (low, high) in suite.ranges.items():
        found.append(f"{column} is at least {low}" if high is None else f"{column} is between {low} and {high}")
    return [*found, *suite.rows]
