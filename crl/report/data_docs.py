"""What the data checks of a round looked at, and the Data Docs: a run's rows validated again, in `cache/data_docs/`.

A committed stage passed: nothing is committed otherwise. What was broken is in the error of the attempt that failed.
The Data Docs (Great Expectations' site) are derived and disposable: not part of the record, checksummed with the rest
of the cache, made again by `crl checks docs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.checks.stage import OwnSuites, numbered, own_expectations
from crl.checks.suites import applying, key_of, row_types, suite_of, suite_with_own
from crl.errors import BadInput
from crl.records import Row
from crl.rounds.recipe import recipe_in
from crl.run.cache import CACHE, cached
from crl.run.directory import RunDirectory, complete_stages
from crl.run.manifest import Manifest
from crl.run.manifest import key_of as stage_key
from crl.run.refused import refused

if TYPE_CHECKING:
    from crl.checks.pages import Validated

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


def write_data_docs(run_path: Path, rounds: Sequence[int] = (), own: OwnSuites | None = None) -> Path:
    """Validate the tables of some rounds (default: the newest) by the project's suites and a user's own.

    Returns the path of the site's first page. Raises BadInput where there is no such round, RecordDamaged, DiskFull.
    """
    from crl.checks.pages import write_site

    run, own = RunDirectory.open(run_path), own or {}
    recipe_in(run)  # with it come its own row types, and their rules
    existing = run.rounds()
    wanted = sorted(set(rounds)) or existing[-1:]
    kept = refused(run.path, row_types().get)
    if not (wanted or kept) or not set(wanted) <= set(existing):
        raise BadInput(
            f"there is no round {', '.join(str(each) for each in wanted if each not in existing) or 'yet'}",
            expected=f"rounds up to {existing[-1]}" if existing else "a run with a committed stage",
            where=str(run_path),
        )
    validated: list[Validated] = []
    for number, stage in [(at, name) for at in wanted for name in run.complete_stages(at)]:
        names = [Path(name).stem for name in run.manifest(number, stage).digested.files if name.endswith(".parquet")]
        types = filter(None, map(row_types().get, names))
        written = {row_type: run.read(number, stage, row_type) for row_type in types}
        validated += _validated(number, stage, written, own)
    for (number, stage), tables in kept.items():
        if not run.is_complete(number, stage):
            validated += _validated(number, stage, tables, own, committed=False)
    suites = {table: suite_with_own(table, own) for table in dict.fromkeys(each.table for each in validated)}
    cached(run.path, SITE, lambda directory: write_site(directory, run.experiment_name, validated, suites), again=True)
    return run.path / INDEX


def _validated(
    number: int,
    stage: str,
    written: Mapping[type[Row], pa.Table],
    own: Mapping[str, Mapping[str, Any]],
    *,
    committed: bool = True,
) -> Iterator[Validated]:
    """What Great Expectations finds in every table of a stage."""
    from crl.checks.native import failures, validate
    from crl.checks.pages import Validated

    tables = numbered(written)
    for name, table in tables.items():
        rules = applying(suite_of(name)["expectations"], frozenset(tables))
        rules = [*rules, *own_expectations(own.get(name), table.num_rows)]
        result = validate(name, key_of(name), rules, tables)
        broken = failures(name, key_of(name), result, table)
        yield Validated(number, stage, name, table.num_rows, result, broken, committed)
