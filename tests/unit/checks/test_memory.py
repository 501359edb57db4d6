"""Checks of many rounds hold no more memory than those of few."""

from __future__ import annotations

import ctypes
import gc

import pytest

from crl.checks import check_tables, compiled
from crl.records import table_of
from tests.unit.checks import example_rows as examples

pytestmark = pytest.mark.slow


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _in_use() -> int:
    """Bytes that the process has allocated and not freed."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this C library does not count what is allocated")
    library.mallinfo2.restype = _Mallinfo
    gc.collect()
    return int(library.mallinfo2().uordblks)


def test_what_duckdb_keeps_of_a_query_goes_with_its_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_CHECKS_OF_A_DATABASE", 10)
    tables = {row_type: table_of(row_type, rows) for row_type, rows in examples.collect().items()}
    for _ in range(10):
        check_tables(tables, where="here")
    before = _in_use()
    for _ in range(50):
        check_tables(tables, where="here")
    assert _in_use() - before < 10**6  # 3 MB where the database stays
