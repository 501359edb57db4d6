"""The Data Docs of a run: its rows validated again by Great Expectations, as a site in `cache/data_docs/`.

Derived and disposable: not part of the record, checksummed with the rest of the cache, made again by `crl checks docs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crl.checks.stage import numbered, own_expectations
from crl.checks.suites import applying, key_of, suite_of
from crl.engine.targets import last_runtime
from crl.errors import BadInput
from crl.records import ROW_TYPE_BY_TABLE
from crl.run.cache import CACHE, cached
from crl.run.directory import RunDirectory
from crl.run.files import remove

SITE = "data_docs"
INDEX = f"{CACHE}/{SITE}/index.html"
"""Where the site begins, from the run directory."""


def write_data_docs(run_path: Path, rounds: Sequence[int] = ()) -> Path:
    """Validate the tables of some rounds (default: the newest), with the suites that the run was last asked to use.

    Returns the path of the site's first page. Raises BadInput where there is no such round, RecordDamaged, DiskFull.
    """
    from crl.checks.pages import Validated, write_site

    run, own = RunDirectory.open(run_path), last_runtime(run_path).expectations
    existing = run.rounds()
    wanted = list(rounds) or existing[-1:]
    if not wanted or not set(wanted) <= set(existing):
        raise BadInput(
            f"there is no round {', '.join(str(each) for each in wanted if each not in existing) or 'yet'}",
            expected=f"rounds up to {existing[-1]}" if existing else "a run with a committed stage",
            where=str(run_path),
        )
    validated = [
        Validated(number, stage, table, rows, result)
        for number in wanted
        for stage in run.complete_stages(number)
        for table, rows, result in _validated(run, number, stage, own)
    ]
    suites = {table: suite_with_own(table, own) for table in dict.fromkeys(each.table for each in validated)}
    remove(run.path / CACHE / SITE)
    cached(run.path, SITE, lambda directory: write_site(directory, run.experiment_name, validated, suites))
    return run.path / INDEX


def suite_with_own(table: str, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The suite of a table with the expectations that a user added."""
    suite = suite_of(table)
    return {**suite, "expectations": [*suite["expectations"], *own.get(table, {}).get("expectations", ())]}


def _validated(
    run: RunDirectory, number: int, stage: str, own: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, int, Any]]:
    """(table, rows, result) of every table that a stage wrote."""
    from crl.checks.native import validate

    names = [Path(name).stem for name in run.manifest(number, stage).digested.files if name.endswith(".parquet")]
    types = [ROW_TYPE_BY_TABLE[name] for name in names if name in ROW_TYPE_BY_TABLE]
    tables = numbered({row_type: run.read(number, stage, row_type) for row_type in types})
    found = []
    for name, table in tables.items():
        rules = applying(suite_of(name)["expectations"], frozenset(tables))
        rules = [*rules, *own_expectations(own.get(name), table.num_rows)]
        found.append((name, table.num_rows, validate(name, key_of(name), rules, tables)))
    return found
