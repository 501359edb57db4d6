"""What Great Expectations found in a round after it was committed: `validations/0007.json`, beside the record.

No digest depends on it, and it names the digests of the stages that were validated: where one was redone since, it says
nothing about the round that is there now. A verdict that is lost is made again (`crl/validation/`). No lease is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from crl.errors import RecordDamaged
from crl.limits import read_limited
from crl.run.directory import is_round, stage_manifests
from crl.run.files import disk_errors, making, write_atomically

VALIDATIONS = "validations"
Outcome = Literal["passed", "failed", "not validated"]


class TableVerdict(BaseModel):
    """One table of one stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    table: str
    rows: int
    rules: int
    """Rules that Great Expectations evaluated."""
    queries: int
    """Of them SQL, which DuckDB answers for it."""
    only_compiled: int
    """Rules that only the compiled pass evaluated: Great Expectations cannot, as the columns are."""
    passed: bool
    """Whether every rule that Great Expectations evaluated holds."""
    broken: tuple[str, ...] = ()
    """A sentence for each that does not."""
    alarms: tuple[str, ...] = ()
    """Where it disagrees with the compiled pass, at the commit or now."""


class Verdict(BaseModel):
    """What became of the validation of a round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    outcome: Outcome
    reason: str | None = None
    """Why the round was not validated."""
    stages: dict[str, str]
    """Digests of the stages that were there, by name."""
    tables: tuple[TableVerdict, ...] = ()
    great_expectations: str | None = None
    """Its version."""
    seconds: float = 0.0
    megabytes: float = 0.0
    """Memory of the process that validated, behind it."""

    @property
    def rules(self) -> int:
        """Rules that Great Expectations evaluated, over all tables."""
        return sum(each.rules for each in self.tables)

    @property
    def queries(self) -> int:
        """Of them SQL."""
        return sum(each.queries for each in self.tables)

    @property
    def only_compiled(self) -> int:
        """Rules that only the compiled pass evaluated, over all tables."""
        return sum(each.only_compiled for each in self.tables)

    @property
    def alarms(self) -> list[str]:
        """Every disagreement with the compiled pass, with its place."""
        return [f"{each.stage}, {each.table}: {alarm}" for each in self.tables for alarm in each.alarms]

    def summary(self) -> str:
        """In one line: `passed: 455 rules, 119 of them queries; 0 more by the compiled pass only`."""
        if self.outcome == "not validated":
            return f"not validated: {self.reason}"
        return (
            f"{self.outcome}: {len(self.tables)} tables, {self.rules} rules by Great Expectations ({self.queries} of "
            f"them SQL, answered by DuckDB), {self.only_compiled} by the compiled pass only"
        )


def stage_digests(run_path: Path, round_number: int) -> dict[str, str]:
    """Digests of the complete stages of a round, by name; empty for one whose manifest cannot be read."""
    manifests = stage_manifests(run_path, round_number)
    return {name: "" if isinstance(each, RecordDamaged) else each.digest for name, each in manifests.items()}


def keep_verdict(run_path: Path, verdict: Verdict) -> None:
    """Write a verdict in place of an earlier one of its round. Raises DiskFull, RunDirectoryUnusable."""
    path = verdict_path(run_path, verdict.round)
    with disk_errors(path), making(path.parent):
        write_atomically(path, verdict.model_dump_json(indent=1).encode() + b"\n")


def load_verdict(run_path: Path, round_number: int) -> Verdict | None:
    """The verdict about a round as it is now; None where there is none, or where it is of other stages."""
    try:
        verdict = Verdict.model_validate_json(read_limited(verdict_path(run_path, round_number)))
    except (OSError, ValidationError):
        return None
    return verdict if verdict.stages == stage_digests(run_path, round_number) else None


def verdict_faults(run_path: Path) -> Iterator[tuple[Path, str]]:
    """Verdicts that cannot be read, and why."""
    place = Path(run_path) / VALIDATIONS
    for path in sorted(place.iterdir()) if place.is_dir() and not place.is_symlink() else ():
        if not is_round(path.stem) or path.suffix != ".json":
            continue
        try:
            Verdict.model_validate_json(read_limited(path))
        except OSError as error:
            yield path, str(error.strerror)
        except ValidationError as error:
            yield path, str(error.errors()[0]["msg"])


def verdict_path(run_path: Path, round_number: int) -> Path:
    """Where the verdict about a round is."""
    return Path(run_path) / VALIDATIONS / f"{round_number:04d}.json"
