"""Checks the tables that one stage wrote, before it commits.

The compiled pass gives the verdict of the project's suites; a table that it refuses is validated by Great Expectations
for the rule and the rows to name. A user's own suites are validated by Great Expectations itself, whatever they hold.
Rules that could not be evaluated count as broken: they never pass silently. Great Expectations takes pandas frames,
where a list is an opaque object: token lists are turned into counts first, which keeps their rules checkable and cheap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.checks.compiled import broken, connected
from crl.checks.suites import SUMMARIZED, Config, applying, key_of, sentence_of, suite_of
from crl.errors import DataCheckFailed
from crl.records import Row

if TYPE_CHECKING:
    import duckdb

OwnSuites = Mapping[str, Mapping[str, Any]]
"""A user's suites by table, as Great Expectations' JSON."""
_ROUNDING = 1e-4
"""A log-softmax may come out above 0 by rounding."""


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

    return failures(name, key_of(name), validate(name, key_of(name), rules, tables).results, tables[name])


def summarize(table: pa.Table) -> pa.Table:
    """The table with `token_ids`, `loss_mask` and `logprobs` replaced by counts; unchanged if it has none of them.

    Added columns, one value per row: `n_tokens`, `n_mask`, `n_logprobs` (lengths), `trained` (mask is 1), `bad_tokens`
    (negative ids), `bad_masks` (neither 0 nor 1), `nonfinite_logprobs`, `positive_logprobs`, `unmasked_logprobs`
    (not 0 where the mask is 0; 0 where the lengths differ, which is a breach of its own), `chosen` (tokens with
    choices), `trained_since` and `trained_until` (offsets of the runs of mask 1, and one past them).
    """
    if not set(SUMMARIZED) <= set(table.column_names):
        return table
    tokens, n_tokens = _flat(table, "token_ids")
    mask, n_mask = _flat(table, "loss_mask")
    logprobs, n_logprobs = _flat(table, "logprobs")
    columns = {
        "n_tokens": n_tokens,
        "n_mask": n_mask,
        "n_logprobs": n_logprobs,
        "trained": _count(mask == 1, n_mask),
        "bad_tokens": _count(~(tokens >= 0), n_tokens),
        "bad_masks": _count((mask != 0) & (mask != 1), n_mask),
        "nonfinite_logprobs": _count(~np.isfinite(logprobs), n_logprobs),
        "positive_logprobs": _count(logprobs > _ROUNDING, n_logprobs),
    }
    if np.array_equal(n_mask, n_logprobs):
        columns["unmasked_logprobs"] = _count((mask == 0) & (logprobs != 0), n_mask)
    else:
        columns["unmasked_logprobs"] = np.zeros_like(n_mask)
    columns["chosen"] = _flat_lengths(table, "choices")
    rest = table.drop_columns(list(SUMMARIZED))
    for name, values in columns.items():
        rest = rest.append_column(name, pa.array(values))
    for name, offsets in zip(("trained_since", "trained_until"), _runs(mask == 1, n_mask), strict=True):
        rest = rest.append_column(name, offsets)
    return rest


def _flat(table: pa.Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All values of a list column in row order, and the length of each row's list. A null value becomes NaN."""
    column, lengths = table.column(name).combine_chunks(), _flat_lengths(table, name)
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return values, lengths


def _flat_lengths(table: pa.Table, name: str) -> NDArray[np.int64]:
    """The length of each row's list."""
    lengths = table.column(name).combine_chunks().value_lengths().fill_null(0)
    counted: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return counted


def _count(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many flags are set in each row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows[flags], minlength=len(lengths)).astype(np.int64)


def _runs(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> tuple[pa.ListArray, pa.ListArray]:
    """Where the runs of set flags begin and end (one past the last) in each row."""
    ends = np.cumsum(lengths)
    first = np.zeros(len(flags) + 1, dtype=np.bool_)  # of a row
    first[ends - lengths] = True
    goes_on = flags[1:] & flags[:-1] & ~first[1:-1]  # from one to the next
    begins = np.flatnonzero(flags & ~np.append(False, goes_on)[: len(flags)])
    untils = np.flatnonzero(flags & ~np.append(goes_on, False)[: len(flags)]) + 1
    rows = np.searchsorted(ends, begins, side="right")
    offsets = pa.array(np.append(0, np.cumsum(np.bincount(rows, minlength=len(lengths)))), pa.int32())
    starts = (ends - lengths)[rows]
    return pa.ListArray.from_arrays(offsets, begins - starts), pa.ListArray.from_arrays(offsets, untils - starts)
