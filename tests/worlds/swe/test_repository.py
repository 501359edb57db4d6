"""Trees and repositories that are kept: they are complete, and no more than are needed."""

from __future__ import annotations

import os

import pytest

from crl.worlds.sandbox import workplace
from crl.worlds.sandbox.workplace import remove
from crl.worlds.swe.repository import Clones, Repositories
from crl.worlds.swe.rows import row_of
from tests.worlds.swe.world import FIXED, MEAN, files_below, make_row


@pytest.fixture
def row(tmp_path):
    return row_of(make_row(tmp_path), "here")


@pytest.fixture
def repositories(tmp_path):
    return Repositories(Clones(tmp_path).of, tmp_path / "cache")


def test_a_tree_that_could_not_be_copied_is_not_kept(tmp_path, monkeypatch, row, repositories):
    """As on a disk that is full for a while."""
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "cp"
    broken.write_text('#!/bin/sh\nfor last; do :; done\nmkdir "$last/.git"\necho "no room" >&2\nexit 1\n')
    broken.chmod(0o755)
    with monkeypatch.context() as full:
        full.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(OSError, match=r"cannot be copied to .*: no room"):
            repositories.fixed(row)
    assert files_below(repositories.fixed(row)) == ["README.md", "tally.py", "tests", "tests/test_tally.py"]


def test_files_and_links_are_removed_without_a_process_each(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    with monkeypatch.context() as alone:
        alone.setattr(workplace, "_quietly", lambda *command: pytest.fail(f"{command} was started"))
        for name in ("folder/file", "link", "gone"):
            remove(tmp_path / name)
    assert files_below(tmp_path) == ["folder"]
    remove(tmp_path / "folder")
    assert files_below(tmp_path) == []


def test_a_diff_fits_files_whose_line_breaks_git_converts(tmp_path, repositories):
    base = {"tally.py": MEAN, ".gitattributes": "*.py text eol=crlf\n"}
    row = row_of(make_row(tmp_path, "windows", base=base), "here")
    assert (repositories.fixed(row) / "tally.py").read_bytes() == FIXED.replace("\n", "\r\n").encode()
    assert files_below(repositories.fixed(row)) == [".gitattributes", "tally.py"]
