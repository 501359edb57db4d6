"""What a reader of the cache sees while its run replaces and removes directories: whole ones, or none."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crl.run import cache
from crl.run.cache import SUMS, CacheFault, Shelf, cached, faults, foreign, is_usable
from crl.run.files import canonical_json, sha256_bytes, sha256_file


def _build(directory: Path) -> None:
    for number in range(8):
        (directory / f"{number}.bin").write_bytes(bytes([number]) * 4096)


def test_what_a_run_removes_while_it_is_checked_is_no_damage(tmp_path: Path) -> None:
    shelf, ends = Shelf(tmp_path), threading.Event()

    def check() -> list[CacheFault]:
        found: list[CacheFault] = []
        while not ends.is_set():
            found += faults(tmp_path)
        return found

    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check)
        try:
            for number in range(40):
                shelf.made(f"index-{number % 3}", _build)
                shelf.keep("index-", 1)
                cached(tmp_path, "index-again", _build, again=True)
        finally:
            ends.set()
        assert not checked.result()
    assert not [entry.name for entry in (tmp_path / "cache").iterdir() if entry.name.startswith(".")]


def test_a_directory_that_took_the_place_of_the_one_that_was_read_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has the number of the inode that became free, as it often has."""
    directory, read = cached(tmp_path, "index", _build), cache._directory_faults

    def replaced(run_path: Path, place: Path) -> list[CacheFault]:
        shutil.rmtree(place)
        found = read(run_path, place)
        cached(run_path, "index", _build, again=True)
        return found

    monkeypatch.setattr(cache, "_directory_faults", replaced)
    for _ in range(20):
        assert not faults(tmp_path)
    assert directory.is_dir()


def test_damage_is_still_found(tmp_path: Path) -> None:
    directory = cached(tmp_path, "index", _build)
    (directory / "3.bin").write_bytes(b"other")
    (directory / "4.bin").unlink()
    assert [Path(fault.file).name for fault in faults(tmp_path)] == ["3.bin", "4.bin"]
    assert faults(tmp_path)[1].found == "no such file"


def _planted(directory: Path, **changes: str) -> None:
    """Another content, and the checksums of it: what anybody can write who may write the run."""
    (directory / "3.bin").write_bytes(b"other")
    written = json.loads((directory / SUMS).read_bytes())
    written["sums"]["3.bin"] = sha256_file(directory / "3.bin")
    content = {key: value for key, value in (written | changes).items() if key not in ("check", "seal")}
    check = sha256_bytes(canonical_json(content))
    (directory / SUMS).write_bytes(canonical_json({**content, "check": check, "seal": written["seal"]}))


def test_what_somebody_put_there_is_made_anew(tmp_path: Path) -> None:
    directory = cached(tmp_path, "index", _build)
    assert is_usable(tmp_path, directory)
    _planted(directory)
    assert [Path(fault.file).name for fault in faults(tmp_path)] == [SUMS]
    assert Shelf(tmp_path).newest("index") is None
    cached(tmp_path, "index", _build)
    assert (directory / "3.bin").read_bytes() == bytes([3]) * 4096 and not faults(tmp_path)


def test_what_another_user_made_is_no_damage_and_made_anew(tmp_path: Path) -> None:
    directory = cached(tmp_path, "index", _build)
    _planted(directory, by="0123456789abcdef")
    assert faults(tmp_path) == [] and foreign(tmp_path) == ["cache/index"]
    assert Shelf(tmp_path).newest("index") is None
    cached(tmp_path, "index", _build)
    assert is_usable(tmp_path, directory) and foreign(tmp_path) == []


def test_deleted_at_any_moment_it_is_made_again(tmp_path: Path) -> None:
    tries = []

    def build(directory: Path) -> None:
        tries.append(directory)
        _build(directory)
        if len(tries) < 3:
            shutil.rmtree(tmp_path / "cache")

    assert is_usable(tmp_path, cached(tmp_path, "index", build)) and len(tries) == 3
