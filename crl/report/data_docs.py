"""The Data Docs of a run: its rows validated again by Great Expectations, as a site in `cache/data_docs/`.

Derived and disposable: not part of the record, checksummed with the rest of the cache, made again by `crl checks docs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.checks.stage import OwnSuites, numbered, own_expectations
from crl.checks.suites import applying, key_of, row_type_of, suite_of, suite_with_own
from crl.errors import BadInput
from crl.records import Row
from crl.rounds.recipe import recipe_in
from crl.run.cache import CACHE, cached
from crl.run.directory import RunDirectory
from crl.run.refused import refused

if TYPE_CHECKING:
    from crl.checks.pages import Validated

SITE = "data_docs"
INDEX = f"{CACHE}/{SITE}/index.html"
"""Where the site begins, from the run directory."""


def write_data_docs(run_path: Path, rounds: Sequence[int] = (), own: OwnSuites | None = None) -> Path:
    """Validate the tables of some rounds (default: the newest) by the project's suites and a user's own.

    Returns the path of the site's first page. Raises BadInput where there is no such round, RecordDamaged, DiskFull.
    """
    from crl.checks.pages import write_site

    run, own = RunDirectory.open(run_path), own or {}
    recipe_in(run)  # with it come its own row types, and their rules
    existing = run.rounds()
    wanted = sorted(set(rounds)) or existing[-1:]
    kept = refused(run.path, row_type_of)
    if not (wanted or kept) or not set(wanted) <= set(existing):
        raise BadInput(
            f"there is no round {', '.join(str(each) for each in wanted if each not in existing) or 'yet'}",
            expected=f"rounds up to {existing[-1]}" if existing else "a run with a committed stage",
            where=str(run_path),
        )
    stages = [
        (number, stage, _tables(run, number, stage)) for number in wanted for stage in run.complete_stages(number)
    ]
    validated = [each for number, stage, tables in stages for each in _validated(number, stage, tables, own)]
    for (number, stage), tables in kept.items():
        if not run.is_complete(number, stage):
            validated += _validated(number, stage, tables, own, committed=False)
    suites = {table: suite_with_own(table, own) for table in dict.fromkeys(each.table for each in validated)}
    cached(run.path, SITE, lambda directory: write_site(directory, run.experiment_name, validated, suites), again=True)
    return run.path / INDEX


def _tables(run: RunDirectory, number: int, stage: str) -> dict[type[Row], pa.Table]:
    """What a committed stage wrote."""
    names = [Path(name).stem for name in run.manifest(number, stage).digested.files if name.endswith(".parquet")]
    types = map(row_type_of, names)
    return {row_type: run.read(number, stage, row_type) for row_type in types if row_type is not None}


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
