"""Which files a diff touches, whatever they are called."""

from __future__ import annotations

import pytest

from crl.worlds.swe.patches import touched
from tests.worlds.swe.world import make_repository


def test_paths_that_a_diff_touches():
    diff = "diff --git a/x.py b/y z.py\nrename from x.py\n--- a/x.py\n+++ b/y z.py\n@@ -1 +1 @@\n-a\n+b\n"
    assert touched(diff) == {"x.py", "y z.py"}
    assert touched("--- a/x.py\t2020\n+++ b/x.py\t2020\n") == {"x.py"} and touched("") == frozenset()
    assert touched("--- /dev/null\n+++ b/x y.py\n") == {"x y.py"}
    assert touched('--- "a/\\303\\251.py"\n+++ /dev/null\n') == {"é.py"}


NAMES = ("plain.py", "tests/test_é.py", "a b/c.py", "a/a b/a b/c.py", 'a "b" \\ c.py', "tab\tand\nline.py", "\x01é~.py")


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_read_as_git_writes_them(tmp_path, name):
    _, made, changed = make_repository(tmp_path / "r", {"README": ""}, {name: "x = 1\n"}, {name: "x = 2\n"})
    assert touched(made) == touched(changed) == {name}


def test_a_quoted_path_beside_a_plain_one(tmp_path):
    old = {"a b.py": "x = 1\n" * 9}
    moved = {"a b.py": None, "é.py": "x = 1\n" * 9}
    _, there, back = make_repository(tmp_path / "r", old, moved, {**old, "é.py": None})
    assert touched(there) == touched(back) == {"a b.py", "é.py"}
