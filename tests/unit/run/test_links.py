"""A link in the place of something that a run writes or deletes: what it leads to stays as it is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from crl.audit.remarks import remarks
from crl.audit.verify import problems_in, record_of, verify
from crl.errors import CrlError, RunDirectoryUnusable
from crl.run import cache
from crl.run.directory import RunDirectory
from crl.run.files import temporary
from crl.run.lease import Lease
from tests.unit.run.support import finished_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = finished_run(tmp_path, rounds=1)
    cache.cached(made.path, "key", lambda place: (place / "codes").write_bytes(b"codes") and None)
    return made


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of somebody's, with names that a run takes for its own."""
    folder = tmp_path / "mine"
    (folder / "key").mkdir(parents=True)
    (folder / "key" / "letter.txt").write_text("mine")
    for name in ("letter.txt", "catalog.duckdb.json", temporary(Path("catalog.duckdb"), 0).name, ".tmp-x-1-0-0"):
        (folder / name).write_text("mine")
    return folder


def _content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["lease.lock", "journal.jsonl"])
def test_what_is_written_in_its_place_is_not_written_elsewhere(run: RunDirectory, tmp_path: Path, name: str) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("mine")
    (run.path / name).unlink()
    (run.path / name).symlink_to(letter)
    with pytest.raises(RunDirectoryUnusable, match=f"{name} is a link") as refused:
        Lease.acquire(run.path, seconds=30)
    assert letter.read_text() == "mine" and f"rm {run.path / name}" in str(refused.value.next_step)


@pytest.mark.parametrize("name", ["cache", "cache/seals", "cache/key", "cache/other"])
def test_a_folder_that_is_a_link_is_named_and_only_the_link_is_deleted(
    run: RunDirectory, mine: Path, name: str
) -> None:
    before = _content(mine)
    cache.remove(run.path / name)
    (run.path / name).symlink_to(mine)
    assert name in [problem.file for problem in verify(run.path)]
    cache.discard_damaged(run.path)
    assert _content(mine) == before and not (run.path / name).is_symlink()
    (run.path / "catalog").write_bytes(b"views")
    for again in range(2):
        if again:
            cache.remove(run.path / name)
            (run.path / name).symlink_to(mine)
        cache.seal(run.path, "catalog.duckdb", run.path / "catalog")
        cache.cached(run.path, "key", lambda place: (place / "codes").write_bytes(b"codes") and None)
        cache.Shelf(run.path).keep("key", 0)
    assert _content(mine) == before


@pytest.mark.parametrize("name", ["cache", "cache/key", "bank", "bank/segments", "rounds", "rounds/0001", "decisions"])
def test_nothing_is_swept_behind_a_link(run: RunDirectory, mine: Path, name: str) -> None:
    before = _content(mine)
    place = run.path / name
    if place.exists():
        place.rename(mine.with_name("kept"))
    place.symlink_to(mine)
    with Lease.acquire(run.path, seconds=30):
        pass
    assert _content(mine) == before


def test_a_file_of_a_terabyte_is_named_and_not_read(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of it is on the disk: anybody can make one, and hashing it takes half an hour."""
    real = hashlib.file_digest

    def read(file: Any, kind: str) -> Any:
        assert os.fstat(file.fileno()).st_size < 10**12, file.name
        return real(file, kind)

    monkeypatch.setattr("hashlib.file_digest", read)
    cache.seal(run.path, "catalog.duckdb", run.path / "experiment.yaml")
    (run.path / "catalog.duckdb").write_bytes((run.path / "experiment.yaml").read_bytes())
    names = [path.relative_to(run.path).as_posix() for path in sorted(run.path.rglob("*")) if path.is_file()]
    assert len(names) > 15
    for name in names:
        path = run.path / name
        before = path.read_bytes()
        os.truncate(path, 10**12)
        try:
            record = record_of(run.path)
            told = "\n".join([*map(str, problems_in(record)), *remarks(record)])
        except CrlError as error:
            told = str(error)
        assert name in told, name
        path.write_bytes(before)


FOLDERS = (
    "bank", "bank/embeddings", "decisions", "imports", "imports/bank", "evaluations", "validations",
    "validations/0001.json", "cache", "ways",
)  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_what_stands_in_the_place_of_a_folder_is_named(run: RunDirectory, mine: Path, name: str) -> None:
    place = run.path / name
    if place.exists():
        place.rename(mine.with_name("kept"))
    place.parent.mkdir(exist_ok=True)
    for make in (
        lambda: place.write_bytes(b"x"),
        lambda: os.mkfifo(place),
        lambda: place.symlink_to(mine),
        lambda: place.symlink_to("nothing"),
    ):
        make()
        named = [problem for problem in verify(run.path) if problem.file == name]
        assert (len(named) == 1 and str(place) in named[0].mend) or name == "cache"
        place.unlink()
