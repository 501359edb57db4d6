"""The cache of trees: what is in it is complete."""

from __future__ import annotations

import os

import pytest

from crl.envs.swe.repository import Clones, Repositories
from crl.envs.swe.rows import row_of
from tests.unit.envs.swe.world import files_below, make_row


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
