"""docs/schema.md: every column of every view is there once, or among those that nearly all views have."""

from __future__ import annotations

import re

from crl.records import ROW_TYPES, BankChange, BankEntry
from crl.report.view_sql import columns_of
from docs.schema_page import page

PAGE = page()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_column_is_in_its_section_or_explained_for_all_views() -> None:
    head = PAGE.partition("## Views put together")[0]
    for row_type in ROW_TYPES:
        section = SECTIONS[row_type.table]
        if row_type is BankChange:
            assert "(#bank)" in section
            section += SECTIONS[BankEntry.table]
        for name, kind, _ in columns_of(row_type):
            assert f"- `{name}` `{kind}`: " in section or f"`{name}`" in head, f"{row_type.table}.{name}"


def test_no_line_begins_a_list_by_chance() -> None:
    assert re.findall(r"^ +(?:[-+*]|\d+[.)]) .*$", PAGE, re.MULTILINE) == []
