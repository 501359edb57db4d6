"""What the editor replaces and inserts, on files alone: no sandbox is needed."""

from __future__ import annotations

import time

import pytest

from crl.worlds.swe.editor import LARGEST, Editor, Refused


@pytest.fixture
def edit(tmp_path):
    def edit(text, command, **arguments):
        (tmp_path / "file").write_text(text)
        Editor(tmp_path, 1000, None).run({"command": command, "path": "file", **arguments})
        return (tmp_path / "file").read_text()

    return edit


def test_a_text_that_is_there_once_is_replaced(edit):
    assert edit("aXb", "str_replace", old_str="X", new_str="Y") == "aYb"
    assert edit("aXb", "str_replace", old_str="X") == "ab"


@pytest.mark.parametrize(
    ("text", "old", "said"),
    [
        ("aXb", "Y", "is not in"),
        ("aXb", "", "is not in"),
        ("X\n\nX", "X", r"2 times \(lines 1, 3\)"),
        ("aXaXa", "aXa", r"2 times \(lines 1, 1\)"),
        ("x\n" * 20, "x", r" 20 times \(lines 1, .*, 20\)"),
        ("x\n" * 21, "x", r"more than 20 times \(lines 1, .*, 20\)"),
    ],
)
def test_a_text_that_is_not_there_once_is_refused(edit, text, old, said):
    with pytest.raises(Refused, match=said):
        edit(text, "str_replace", old_str=old, new_str="")


def test_a_text_that_is_there_very_often_is_refused_at_once(edit):
    before = time.process_time()
    with pytest.raises(Refused, match="more than 20 times"):
        edit("x\n" * (LARGEST // 2), "str_replace", old_str="x", new_str="")
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("text", "line", "new", "then"),
    [
        ("a\nb\n", 1, "x", "a\nx\nb\n"),
        ("a\n", 1, "x", "a\nx\n"),
        ("a\n", 1, "x\n", "a\nx\n"),
        ("a", 1, "x", "a\nx"),
        ("a", 0, "x", "x\na"),
        ("", 0, "x", "x"),
        ("", 0, "x\n", "x\n"),
    ],
)
def test_a_file_ends_after_an_insertion_as_it_did_before(edit, text, line, new, then):
    assert edit(text, "insert", insert_line=line, new_str=new) == then
