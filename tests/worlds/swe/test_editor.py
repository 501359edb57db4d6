"""What the editor replaces and inserts, on files alone: no sandbox is needed."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.worlds.swe.editor import LARGEST, Editor, Refused
from crl.worlds.swe.oracle import calls_of


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


WINDOWS = "def double(x):\r\n    # twice\r\n    y = x + 1\r\n    return y\r\n"


def test_windows_line_ends_are_shown_as_line_breaks_and_kept(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(WINDOWS.encode())
    editor = Editor(tmp_path, 1000, None)
    shown = editor.run({"command": "view", "path": "file"})
    assert "\r" not in shown and "CR LF" in shown and "     4\t    return y\n" in shown
    old, new = "    # twice\n    y = x + 1\n", "    # doubled\n    # twice\n    y = x + x\n"
    assert "\r" not in editor.run({"command": "str_replace", "path": "file", "old_str": old, "new_str": new})
    editor.run({"command": "insert", "path": "file", "insert_line": 1, "new_str": "    # first"})
    editor.run({"command": "str_replace", "path": "file", "old_str": "return y", "new_str": "z = y\n    return z"})
    wanted = "def double(x):\n    # first\n    # doubled\n    # twice\n    y = x + x\n    z = y\n    return z\n"
    assert file.read_bytes() == wanted.replace("\n", "\r\n").encode()
    assert "CR LF" not in Editor(tmp_path, 1000, None).run({"command": "create", "path": "other", "file_text": "x\n"})
    for _ in range(3):
        editor.run({"command": "undo_edit", "path": "file"})
    assert file.read_bytes() == WINDOWS.encode()


LINES = st.lists(st.tuples(st.sampled_from(["a", "b", "", "  c"]), st.sampled_from(["\n", "\r\n"])), max_size=12)


@given(LINES, st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_seen_can_be_replaced_whatever_ends_lines(tmp_path, lines, data):
    """Any lines, copied from a view, are replaced where they are there once; other lines keep their bytes."""
    text = "".join(map("".join, lines))
    (tmp_path / "file").write_bytes(text.encode())
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    old = "".join(f"{line}\n" for line, _ in lines[first:last])
    shown = text.replace("\r\n", "\n")
    try:
        Editor(tmp_path, 1000, None).run(
            {"command": "str_replace", "path": "file", "old_str": old, "new_str": "x\ny\n"}
        )
    except Refused:
        assert not old or shown.count(old) != 1 or shown.find(old, shown.find(old) + 1) >= 0
        return
    found = (tmp_path / "file").read_bytes().decode()
    heads = (n for n in range(len(lines)) if "".join(f"{line}\n" for line, _ in lines[n : n + last - first]) == old)
    at = next(heads, None)
    if at is None:  # it ends within a line, as "\n" alone does
        assert found.replace("\r\n", "\n") == shown.replace(old, "x\ny\n")
        return
    ends = lines[at][1]
    before, after = ("".join(map("".join, part)) for part in (lines[:at], lines[at + last - first :]))
    assert found == before + f"x{ends}y{ends}" + after


@given(LINES, LINES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_oracle_s_calls_make_one_file_the_other(tmp_path, before, after):
    for name, lines in (("base", before), ("fixed", after)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "file").write_bytes("".join(map("".join, lines)).encode())
    diff = "diff --git a/file b/file\n--- a/file\n+++ b/file\n"
    calls = calls_of(diff, tmp_path / "base", tmp_path / "fixed", 1000)
    editor = Editor(tmp_path / "base", 1000, None)
    for call in calls[:-1]:
        editor.run(call.arguments)
    assert (tmp_path / "base/file").read_bytes() == (tmp_path / "fixed/file").read_bytes()


@pytest.mark.parametrize("line", ["x\n", "x\r\n", "\n"])
def test_the_oracle_takes_no_longer_where_lines_are_alike(tmp_path, line):
    """As many equal lines as fit, with changes among them; difflib would take hours."""
    count = LARGEST // 20 // len(line)
    for name, text in (("base", line * count), ("fixed", line * (count // 2) + "new\n" + line * (count // 2 - 3))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(text.encode())
    began = time.process_time()
    diff = "diff --git a/file b/file\n--- a/file\n+++ b/file\n"
    calls = calls_of(diff, tmp_path / "base", tmp_path / "fixed", 1000)
    assert time.process_time() - began < 10
    editor = Editor(tmp_path / "base", 1000, None)
    for call in calls[:-1]:
        editor.run(call.arguments)
    assert (tmp_path / "base/file").read_bytes() == (tmp_path / "fixed/file").read_bytes()
