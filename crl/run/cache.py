"""What can be rebuilt: indexes under `cache/<key>/`, and single derived files such as the catalog.

Everything here is checksummed, so that a damaged file is noticed and rebuilt rather than used, and disposable: deleting
it at any moment loses time, nothing else. No lease is needed. A directory holds `sums.json` with the SHA-256 of its
files, sealed with a key of this user that lies outside of all runs: whoever may write the run can put an index there
with the right checksums, and still not one that is used. What another user or machine made is made anew.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from crl.limits import parse_json, read_limited
from crl.run.files import (
    canonical_json,
    disk_errors,
    fsync_tree,
    remove,
    sha256_bytes,
    sha256_file,
    sha256_or_size,
    temporary,
    write_atomically,
)
from crl.run.journal import Journal

CACHE = "cache"
SUMS = "sums.json"
_SEALS = "seals"
CATALOG = "catalog.duckdb"
_KEY = "~/.cache/crl/cache.key"
_TRIES = 3
NO_FILE = "no such file"


@dataclass(frozen=True)
class CacheFault:
    """A derived file that is not what was written; `expected` and `found` are SHA-256 where there is one."""

    file: str
    expected: str
    found: str


def cached(run_path: Path, key: str, build: Callable[[Path], None], *, again: bool = False) -> Path:
    """The directory `cache/<key>/`: as it is if this user sealed it and every checksum holds, else (or `again`) made by
    `build(directory)`.

    `key` names the content it is derived from (a digest). Raises as `disk_errors`, and what `build` raises.
    """
    target = run_path / CACHE / key
    if not again and is_usable(run_path, target):
        return target
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):  # somebody deletes the cache
            return _made(run_path, key, build)
    return _made(run_path, key, build)


def is_usable(run_path: Path, directory: Path) -> bool:
    """Whether a directory of the cache may be read: this user sealed it, and every checksum holds."""
    sums = _read(directory / SUMS, directory.name)
    return sums is not None and sums.by == _key_name() and not _directory_faults(run_path, directory)


def _made(run_path: Path, key: str, build: Callable[[Path], None]) -> Path:
    target = _own(run_path) / key
    scratch = temporary(target, 0)
    with disk_errors(target):
        try:
            scratch.mkdir(parents=True)
            build(scratch)
            sums = {name: sha256_file(scratch / name) for name in _names(scratch)}
            (scratch / SUMS).write_bytes(_sealed(sums, key))
            fsync_tree(scratch)
            _withdraw(target)
            # Another process may have finished the same content meanwhile: then its directory serves.
            try:
                scratch.rename(target)
            except OSError as error:
                if not is_usable(run_path, target):
                    raise FileNotFoundError(f"{target} was removed or replaced meanwhile") from error
        finally:
            remove(scratch)
    return target


@dataclass(frozen=True)
class Shelf:
    """Directories of a run's cache, each checked before it is handed out."""

    run_path: Path

    def made(self, key: str, build: Callable[[Path], None]) -> Path:
        """See :func:`cached`."""
        return cached(self.run_path, key, build)

    def newest(self, prefix: str) -> Path | None:
        """The youngest directory whose key begins so and whose checksums hold; None where there is none."""
        whole = (each for each in self._by_age(prefix) if is_usable(self.run_path, each))
        return next(whole, None)

    def keep(self, prefix: str, count: int) -> None:
        """Remove all but the `count` youngest directories whose keys begin so."""
        _own(self.run_path)
        for directory in self._by_age(prefix)[count:]:
            _withdraw(directory)

    def _by_age(self, prefix: str) -> list[Path]:
        found = []
        for directory in (self.run_path / CACHE).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):  # another process removed it
                found.append((directory.stat().st_mtime_ns, directory))
        return [directory for _, directory in sorted(found, reverse=True)]


def seal(run_path: Path, relative: str, content: Path) -> None:
    """Remember the checksum of a derived file outside the cache (the catalog), so that damage is noticed.

    `content` is the file that will be put in that place: sealed first, a disk that fills up leaves the old one. The
    journal says it too: where file and seal disagree, it tells which of the two is the wrong one.
    """
    seals = _own(run_path) / _SEALS
    with disk_errors(seals):
        seals.mkdir(parents=True, exist_ok=True)
        sha256 = sha256_file(content)
        write_atomically(seals / f"{relative}.json", _sealed({relative: sha256}, relative))
        if (journal := Journal(run_path)).path.is_file():
            journal.record("sealed", token=0, file=relative, sha256=sha256)


def faults(run_path: Path) -> list[CacheFault]:
    """Every derived file that is missing, damaged or unknown."""
    cache = run_path / CACHE
    if cache.is_symlink():
        return [_linked(run_path, cache)]
    if not cache.is_dir():
        return []
    found = []
    for entry in sorted(cache.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            found.append(_linked(run_path, entry))
        elif entry.is_file():
            found.append(CacheFault(f"{CACHE}/{entry.name}", NO_FILE, sha256_or_size(entry)))
        elif entry.name == _SEALS:
            found += _seal_faults(run_path, entry)
        else:
            found += _faults_unless_withdrawn(run_path, entry)
    return found


def foreign(run_path: Path) -> list[str]:
    """Directories of the cache that another user or machine sealed, and that are made anew when they are needed."""
    found = []
    for directory in sorted((run_path / CACHE).glob("[!.]*/")):
        sums = _read(directory / SUMS, directory.name)
        if sums is not None and sums.by != _key_name():
            found.append(f"{CACHE}/{directory.name}")
    return found


def discard_damaged(run_path: Path) -> list[CacheFault]:
    """Delete whatever of the cache is damaged: its next use rebuilds it. Returns what was damaged."""
    found = faults(run_path)
    _own(run_path)
    for fault in found:
        parts = Path(fault.file).parts
        if parts[0] == CACHE and len(parts) > 1:
            remove(run_path.joinpath(*parts[:2] if parts[1] != _SEALS else parts))
    return found


def clear(run_path: Path) -> None:
    """Delete the cache."""
    remove(run_path / CACHE)


def _own(run_path: Path) -> Path:
    """The directory of the cache. A link in its place, or in that of the seals, goes: what it leads to is not the run's
    to change or delete."""
    for place in (run_path / CACHE, run_path / CACHE / _SEALS):
        if place.is_symlink():
            remove(place)
    return run_path / CACHE


def _linked(run_path: Path, link: Path) -> CacheFault:
    return CacheFault(link.relative_to(run_path).as_posix(), "no link", f"a link to {link.readlink()}")


def _withdraw(directory: Path) -> None:
    """Remove a directory that others may be reading: it is whole until its name is gone."""
    hidden = temporary(directory.with_name(f"{directory.name}-old"), 0)
    with contextlib.suppress(OSError):  # another process removed it
        directory.rename(hidden)
    remove(hidden)


def _faults_unless_withdrawn(run_path: Path, directory: Path) -> list[CacheFault]:
    """None of a directory that its run replaces or removes while it is read: that is no damage."""
    before = _which(directory)
    found = _directory_faults(run_path, directory)
    return found if before is not None and _which(directory) == before else []


def _which(path: Path) -> tuple[int, int] | None:
    """What tells a directory from another that took its place. An inode does not: a new one may have its number."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_ctime_ns


def _directory_faults(run_path: Path, directory: Path) -> list[CacheFault]:
    place = directory.relative_to(run_path).as_posix()
    sums = _read(directory / SUMS, directory.name)
    if sums is None:
        return [_unreadable(run_path, directory / SUMS)]
    found = []
    for name in sorted({*sums.sums, *_names(directory)}):
        actual = _found(directory / name)
        if actual != sums.sums.get(name):
            found.append(CacheFault(f"{place}/{name}", sums.sums.get(name, NO_FILE), actual))
    return found


def _seal_faults(run_path: Path, seals: Path) -> list[CacheFault]:
    found = []
    for path in sorted(entry for entry in seals.iterdir() if not entry.name.startswith(".")):
        sums = _read(path, path.stem)
        if sums is None:
            found.append(_unreadable(run_path, path))
            continue
        for name, expected in sums.sums.items():
            actual = _found(run_path / name)
            if actual != expected and actual == _sealed_last(run_path, name):
                place = path.relative_to(run_path).as_posix()
                found.append(CacheFault(place, f"the seal of {actual} (the journal)", f"an older one, of {expected}"))
            elif actual != expected:
                found.append(CacheFault(name, expected, actual))
    # The directory exists, so there was a seal.
    if (run_path / CATALOG).exists() and not (seals / f"{CATALOG}.json").exists():
        found.append(_unreadable(run_path, seals / f"{CATALOG}.json"))
    return found


def _found(path: Path) -> str:
    """Its SHA-256. A run may remove it at any moment."""
    try:
        return sha256_or_size(path) if path.is_file() else NO_FILE
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return NO_FILE


def _names(directory: Path) -> list[str]:
    # Not `rglob`: it raises where a run removes the directory meanwhile.
    paths = (Path(parent, name) for parent, _, names in os.walk(directory) for name in names)
    return sorted(name for path in paths if (name := path.relative_to(directory).as_posix()) != SUMS)


def _sealed_last(run_path: Path, name: str) -> str | None:
    events = [event for event in Journal(run_path).read() if event.get("event") == "sealed"]
    return next((event.get("sha256") for event in reversed(events) if event.get("file") == name), None)


@dataclass(frozen=True)
class _Sums:
    """What a list of checksums says."""

    sums: dict[str, str]
    by: str
    """Name of the key that sealed it."""


def _sealed(sums: dict[str, str], of: str) -> bytes:
    """`of`: what they are the checksums of."""
    content = {"by": _key_name(), "of": of, "sums": sums}
    return _with_seal(content, hmac.digest(_key(), canonical_json(content), "sha256").hex())


def _with_seal(content: dict[str, Any], seal: str) -> bytes:
    return canonical_json({"check": sha256_bytes(canonical_json(content)), **content, "seal": seal})


def _read(path: Path, of: str) -> _Sums | None:
    """The list as it was written; None for one that is damaged, or that pretends that this user's key sealed it."""
    try:
        written = read_limited(path)
        parsed = parse_json(written)
        sums = _Sums({str(name): str(digest) for name, digest in parsed["sums"].items()}, str(parsed["by"]))
        if sums.by == _key_name():
            expected = _sealed(sums.sums, of)
        else:
            expected = _with_seal({"by": sums.by, "of": of, "sums": sums.sums}, str(parsed["seal"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return sums if written == expected else None


@once
def _key() -> bytes:
    """The secret of this user. Where it can be neither read nor kept, one of this process alone."""
    made = secrets.token_bytes(32)
    with contextlib.suppress(OSError, RuntimeError):
        path = Path(_KEY).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".cache.key-") as file:  # readable by this user only
            file.write(made)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
        kept = path.read_bytes()
        return kept if len(kept) == len(made) else made
    return made


@once
def _key_name() -> str:
    return sha256_bytes(b"name of " + _key())[:16]


def _unreadable(run_path: Path, path: Path) -> CacheFault:
    actual = sha256_or_size(path) if path.is_file() else NO_FILE
    return CacheFault(path.relative_to(run_path).as_posix(), "a list of checksums as it was written", actual)
