"""Checks the tables that one stage wrote, before it commits.

The compiled pass gives the verdict of the project's suites; a table that it refuses is validated by Great Expectations
for the rule and the rows to name. A user's own suites are validated by Great Expectations itself, whatever they hold.
Rules that could not be evaluated count as broken: they never pass silently.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.checks.compiled import broken, connected
from crl.checks.suite import Config, sentence_of
from crl.checks.suites import applying, key_of, suite_of
from crl.checks.summaries import summarize
from crl.errors import DataCheckFailed
from crl.records import Row

if TYPE_CHECKING:
    import duckdb

OwnSuites = Mapping[str, Mapping[str, Any]]
"""A user's suites by table, as Great Expectations' JSON."""


@dataclass(frozen=True)
class SuiteResult:
    """What the suite of one table found, with the user's own where there is one."""

    table: str
    rows: int
    expectations: int
    """Rules checked."""
    success: bool
    seconds: float
    failures: tuple[str, ...] = ()
    """A sentence for each broken rule: how many rows, and the first of them."""

    def record(self) -> dict[str, Any]:
        """As plain data without the time: equal runs have equal results."""
        return {name: value for name, value in asdict(self).items() if name != "seconds"}


def check_tables(
    tables: Mapping[type[Row], pa.Table], *, where: str, own: OwnSuites | None = None
) -> list[SuiteResult]:
    """Check the tables that one stage wrote by their suites, and by the user's `own`.

    Raises DataCheckFailed if any rule is broken, or could not be checked; it names table, rule, columns, number of
    rows, and the position and id of the first ones.
    """
    prepared = numbered(tables)
    with connected(prepared) as connection:
        results = [_check(connection, name, prepared, (own or {}).get(name)) for name in prepared]
    failures = [failure for result in results for failure in result.failures]
    if failures:
        raise DataCheckFailed(
            "\n".join(failures),
            expected="every rule of the row types to hold (`crl checks show TABLE` lists them)",
            where=where,
            next_step="nothing was committed; correct what made these rows (see `crl checks docs`), then `crl resume`",
        )
    return results


def numbered(tables: Mapping[type[Row], pa.Table]) -> dict[str, pa.Table]:
    """The tables by name as expectations see them: token lists as counts, the position of each row in `row`."""
    return {
        row_type.table: summarize(table).append_column("row", pa.array(range(table.num_rows), pa.int64()))
        for row_type, table in tables.items()
    }


def own_expectations(own: Mapping[str, Any] | None, rows: int) -> list[Config]:
    """The expectations of a user's suite that apply: to a table without rows, those about the table only."""
    listed = [] if own is None else list(own["expectations"])
    return [each for each in listed if rows or each["type"].startswith("expect_table_")]


def _check(
    connection: duckdb.DuckDBPyConnection, name: str, tables: Mapping[str, pa.Table], own: Mapping[str, Any] | None
) -> SuiteResult:
    started = time.perf_counter()
    rules, rows = applying(suite_of(name)["expectations"], frozenset(tables)), tables[name].num_rows
    failures = _broken(connection, name, rules, tables)
    users = own_expectations(own, rows)
    if users:
        failures += _told(name, users, tables)
    seconds = time.perf_counter() - started
    return SuiteResult(name, rows, len(rules) + len(users), not failures, seconds, tuple(failures))


def _broken(
    connection: duckdb.DuckDBPyConnection, name: str, rules: list[Config], tables: Mapping[str, pa.Table]
) -> list[str]:
    """The verdict of the compiled pass; a sentence for each broken rule."""
    import duckdb

    try:
        found = broken(connection, name, tables[name], rules)
    except (duckdb.Error, pa.ArrowException, KeyError) as error:
        return [f"{name}: the rules could not be checked: {error}"]
    if not found:
        return []
    # The compiled pass decides: what it refused never passes, even if Great Expectations could not say why.
    return _told(name, [rule for rule, _ in found], tables) or [
        f"table {name}: '{sentence_of(rule)}' is broken in {count} rows" for rule, count in found
    ]


def _told(name: str, rules: list[Config], tables: Mapping[str, pa.Table]) -> list[str]:
    """What Great Expectations finds broken: a sentence for each rule."""
    from crl.checks.native import failures, validate

    return failures(name, key_of(name), validate(name, key_of(name), rules, tables), tables[name])
