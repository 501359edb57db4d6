"""Readers of what others wrote: too deep, too large, and no file at all are errors like any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crl.limits import DEEPEST, is_count, parse_json, read_limited


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900, 200_000])
@pytest.mark.parametrize("shape", ["[{}]", '{{"a":{}}}'])
def test_json_without_end_is_an_error_and_not_the_end(levels: int, shape: str) -> None:
    before, after = shape.format("|").split("|")
    text = before * levels + "1" + after * levels
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match="nested deeper than"):
            parse_json(given)
    assert parse_json(before * DEEPEST + "1" + after * DEEPEST)
    assert len(parse_json("[" + "[1]," * 10_000 + "2]")) == 10_001, "many brackets are not deep"


def test_only_plain_files_of_a_size_are_read(tmp_path: Path) -> None:
    small, pipe, link = tmp_path / "small", tmp_path / "pipe", tmp_path / "link"
    small.write_bytes(b"12345")
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    assert read_limited(small, 5) == b"12345"
    for path, said in ((small, "more than the 4 bytes"), (pipe, "a pipe"), (link, "a device"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=said):
            read_limited(path, 4)


def test_a_number_that_nobody_counts_to_is_none() -> None:
    assert [is_count(each) for each in (0, 3, True, -1, 2**60, 1.0, "1", None)] == [True, True, *[False] * 6]
