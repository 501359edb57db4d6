"""Any file of a run, whatever stands in its place: verification names it, no command ends in a traceback, and with the
file back the run is what it was."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from crl.audit.remarks import remarks
from crl.audit.verify import problems_in, record_of
from crl.errors import CrlError
from crl.report.page import REPORT
from crl.run.cache import SUMS
from crl.run.files import canonical_json, sha256_bytes, sha256_file
from crl.trackers.tensorboard import FOLDER
from tests.tiny_run import crl_here, digests

DEEP = 100_000


def _link(target: str) -> Callable[[Path, bytes], None]:
    return lambda path, before: path.symlink_to(target)


def _content(change: Callable[[bytes], bytes]) -> Callable[[Path, bytes], None]:
    def write(path: Path, before: bytes) -> None:
        path.write_bytes(change(before))

    return write


DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "gone": lambda path, before: None,
    "empty": _content(lambda before: b""),
    "half": _content(lambda before: before[: len(before) // 2]),
    "bit": _content(lambda before: before[: len(before) // 2] + bytes([(before or b"\0")[len(before) // 2] ^ 16])
                    + before[len(before) // 2 + 1 :]),
    "without end": _content(lambda before: b"[" * DEEP + b"]" * DEEP),
    "objects without end": _content(lambda before: b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "another JSON": _content(lambda before: b'{"event": NaN, "token": 1e999, "round": 1e999, "stage": {"a": 1}}'),
    "a list": _content(lambda before: b"[]"),
    "a long number": _content(lambda before: b"9" * 6000),
    "bytes": _content(lambda before: bytes(range(256)) * 40),
    "a terabyte": lambda path, before: (path.write_bytes(before), os.truncate(path, 10**12)),
    "a folder": lambda path, before: path.mkdir(),
    "a pipe": lambda path, before: os.mkfifo(path),
    "a device": _link("/dev/zero"),
    "a link out": _link("/etc/hostname"),
    "a link to nothing": _link("nothing/here"),
}  # fmt: skip
UNNAMED = {("lease.lock", "empty"), ("lease.lock", "half")}
"""What is as it was: the lock is an empty file."""
COMMANDS = (["verify"], ["status"], ["sql", "SELECT count(*) FROM stages"], ["bank", "show"])


def _kinds(run: Path) -> list[str]:
    """One file of every kind: of those that differ by round and digest alone, the first. Pictures of the record, which
    are no part of it, are left out."""
    found: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_file() and name != REPORT and not name.startswith(f"{FOLDER}/"):
            found.setdefault(re.sub(r"[0-9a-f]{32,}", "X", re.sub(r"^rounds/\d+/", "rounds/N/", name)), name)
    return list(found.values())


def _told(run: Path) -> str:
    """What `crl verify` says, without its words around it."""
    try:
        record = record_of(run)
        return "\n".join([*map(str, problems_in(record)), *remarks(record)])
    except CrlError as error:
        return str(error)


def _put(path: Path, before: bytes) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(before)


@pytest.fixture(scope="module")
def victim(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = Path(shutil.copytree(finished, tmp_path_factory.mktemp("hostile") / "tiny"))
    before = digests(run)
    yield run
    assert _told(run) == _told(finished) and digests(run) == before


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in DAMAGES])
def test_every_damage_of_every_file_is_named(victim: Path, kind: str) -> None:
    said = {}
    for name in _kinds(victim):
        path = victim / name
        before = path.read_bytes()
        path.unlink()
        DAMAGES[kind](path, before)
        try:
            said[name] = _told(victim)
        finally:
            _put(path, before)
    unnamed = [name for name, told in said.items() if name not in told and (name, kind) not in UNNAMED]
    assert unnamed == []


FEW = (
    "journal.jsonl",
    "lease.json",
    "pruned.jsonl",
    "trackers.jsonl",
    "cache/seals/",
    "rounds/0001/consolidate/manifest",
)
"""Files of which the JSON is read before any digest vouches for it."""


def test_what_is_read_before_it_is_vouched_for_is_named(victim: Path) -> None:
    named = [name for name in _kinds(victim) if name.startswith(FEW)]
    for name, kind in zip(named, cycle(["without end", "another JSON", "a device"])):
        path = victim / name
        before = path.read_bytes()
        path.unlink()
        DAMAGES[kind](path, before)
        try:
            assert name in _told(victim), kind
        finally:
            _put(path, before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["without end", "another JSON", "gone", "a folder", "a pipe", "a device"])
def test_no_command_ends_in_a_traceback(victim: Path, kind: str) -> None:
    for name in [name for name in _kinds(victim) if not name.endswith(".parquet")]:
        path = victim / name
        before = path.read_bytes()
        path.unlink()
        DAMAGES[kind](path, before)
        try:
            for first, *more in COMMANDS:
                done = crl_here(victim.parent, first, "tiny", *more, code=None)
                assert done.returncode in (0, 2, 4), (name, first, done)
        finally:
            _put(path, before)


@pytest.mark.slow
def test_a_planted_index_changes_no_number(finished: Path, tmp_path: Path) -> None:
    """Other codes under the right name, with the right checksums; and no cache at all: the next round is the same."""
    ended = {}
    for how in ("as it is", "planted", "deleted"):
        run = Path(shutil.copytree(finished, tmp_path / how / "tiny"))
        (codes, *_) = run.glob("cache/codes-*/codes.arrow")
        if how == "deleted":
            shutil.rmtree(run / "cache")
        if how == "planted":
            table = feather.read_table(codes, memory_map=False)
            mixed = table.take(pa.array(range(table.num_rows))[::-1]).set_column(0, "digest", table["digest"])
            feather.write_feather(mixed, codes, compression="uncompressed")
            sums = json.loads((codes.parent / SUMS).read_bytes())
            sums["sums"]["codes.arrow"] = sha256_file(codes)
            sums["check"] = sha256_bytes(canonical_json({key: sums[key] for key in ("by", "of", "sums")}))
            (codes.parent / SUMS).write_bytes(canonical_json(sums))
            assert f"{codes.parent.relative_to(run)}/{SUMS}" in _told(run)
        crl_here(run.parent, "resume", "tiny", "--rounds", "1")
        ended[how] = digests(run)
    assert ended["planted"] == ended["deleted"] == ended["as it is"] != digests(finished)
