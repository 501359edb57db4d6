"""Rows for people: what fits is a table, what does not are records, and no word is broken in any of them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from crl.report.terminal import Listing

ID = "x-d-r0003-a-family-with-a-long-name-g0012-m003-o0"
WORDS = "if the door in the north is locked, take the key that lies beside the fountain first"
MAP = "@..\n. >"


def listing(*, packed: bool = False) -> Listing:
    cells = [["added", ID, "7", WORDS], ["updated", f"{ID}1", "12", MAP], ["gone", "short", "–", ""]]
    rows = [[Text(cell) for cell in row] for row in cells]
    return Listing(("change", "entry", "uses", "experience"), rows, words={"experience"}, right={"uses"},
                   title="the bank", packed=packed)  # fmt: skip


def printed(shown: Listing, width: int | None) -> list[str]:
    out = Console(file=io.StringIO(), width=width or shown.natural_width())
    out.print(shown.rendered(width), soft_wrap=True)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def words_of(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


def test_without_a_terminal_nothing_wraps() -> None:
    lines = printed(listing(), None)
    assert len(lines) == 2 + 3 + 1, "title, heading, a line a row, and one more for the map"
    assert any(ID in line and line.endswith(WORDS) for line in lines)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("width", [30, 60, 80, 100, 110, 140, 200])
def test_no_word_is_broken_and_nothing_is_lost_at_any_width(width: int, packed: bool) -> None:
    shown = listing(packed=packed)
    lines = printed(shown, width)
    found = words_of(lines)
    for row in shown.rows:
        for cell in row:
            for word in cell.plain.split():
                assert word in found, (word, width)
    assert all(len(line) <= width or " " not in line.strip() or ID in line for line in lines)
    joined = " ".join(found)
    assert all(piece in joined for piece in ("north is locked,", "take the key"))


def test_a_table_keeps_its_form_while_its_words_stay_readable() -> None:
    assert printed(listing(), 110)[1].split() == ["change", "entry", "uses", "experience"]
    narrow = printed(listing(), 80)
    assert narrow[:4] == ["the bank", "change      added", f"entry       {ID}", "uses        7"]
    assert narrow[4].startswith("experience  if the door") and narrow[5].startswith("            ")
    at = next(place for place, line in enumerate(narrow) if line.endswith("@.."))
    assert narrow[at] == "experience  @.." and narrow[at + 1] == "            . >", "a map keeps its spaces"


def test_packed_records_put_short_columns_side_by_side() -> None:
    lines = printed(listing(packed=True), 80)
    assert lines[1] == f"change added  entry {ID}  uses 7" and lines[2].startswith("    if the door")
    assert lines[lines.index("") + 1].startswith("change updated  entry")


def test_an_empty_listing_is_its_heading() -> None:
    empty = Listing(("round", "condition"), [])
    assert printed(empty, 80) == ["round  condition"] == printed(empty, None)
