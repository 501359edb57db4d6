"""File primitives of the record: atomic writes, syncing, hashing, temporary names, room on the disk, and what a disk
refuses as our own error.

Temporary files and directories are named `.tmp-<name>-[<machine>-<pid>-]<token>`: whoever holds a later token may
remove them (:func:`sweep`). Token 0 stands for writers without a lease (experiment file, cache): theirs go with their
process, which only its own machine can see (:func:`left_behind`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from crl.errors import BadInput, CrlError, DiskFull, NotEnoughDisk, RecordDamaged, RunDirectoryUnusable
from crl.limits import TABLE_BYTES, read_limited
from crl.paths import quoted

_TEMPORARY = re.compile(r"^\.tmp-.*?(?:-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+))?-(?P<token>\d+)$")
_DAY = 86_400.0
_PARTS = ".parts-"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "os error 28")
_READ_ONLY_TEXT = "Read-only file system"
_ELSEWHERE = (
    "choose another place: CRL_RUNS or --runs for runs, CRL_MODELS for models, "
    "PREFECT_HOME for Prefect's files, --out FILE or --to FOLDER"
)
GIGABYTE = 10**9


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value that digests are taken over."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def sha256_bytes(content: bytes) -> str:
    """SHA-256 of bytes, as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def too_large(path: Path) -> str | None:
    """The size of a file beyond any table of a run, in words: to read it may take hours, and a file of that size need
    not have anything in it. None for others."""
    size = path.stat().st_size
    return f"{size:,} bytes" if size > TABLE_BYTES else None


def sha256_or_size(path: Path) -> str:
    """As :func:`sha256_file`, of a file of which nothing says how large it should be; its size if it is too large."""
    return too_large(path) or sha256_file(path)


def in_words(sha256: str) -> str:
    """A SHA-256 that was found, for people: that of no bytes is no digest to look for."""
    return EMPTY if sha256 == OF_NOTHING else f"SHA-256 {sha256}"


OF_NOTHING = sha256_bytes(b"")
EMPTY = "nothing: the file is empty"
_MOST_HASHED = 256
_LARGE = 1 << 20
"""Bytes of a file from which another thread takes less time than it costs."""
_hashed: dict[Path, tuple[list[int], Callable[[], str]]] = {}


def sha256_once(path: Path) -> str:
    """As :func:`sha256_file`, for a file that is asked for twice on its way into the record: a checkpoint of 28 GB is
    read once, or not at all (:func:`remember`). It is read again where its size, times or inode changed in between."""
    marks = _marks(path)
    before, digest = _hashed.get(path, (None, str))
    if before != marks:
        found = sha256_file(path)
        remember(path, found, marks)
        return found
    return digest()


def remember(path: Path, digest: str | Callable[[], str], marks: list[int] | None = None) -> None:
    """What :func:`sha256_once` is to say of a file as it is (or was): its digest, or what waits for that."""
    _hashed.pop(path, None)  # the latest are kept
    _hashed[path] = marks or _marks(path), digest if callable(digest) else lambda: digest
    if len(_hashed) > _MOST_HASHED:  # most files are hashed once
        _hashed.pop(next(iter(_hashed)))


def hash_soon(paths: Iterable[Path]) -> None:
    """Have threads hash large files that are whole, while the caller goes on: to write others, or to sync them."""
    paths = [path for path in paths if path not in _hashed and path.stat().st_size >= _LARGE]
    if paths:
        threads = ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1))
        for path in paths:
            remember(path, threads.submit(sha256_file, path).result)
        threads.shutdown(wait=False)


def _marks(path: Path) -> list[int]:
    known = path.stat()
    return [known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino]


def mending(run_path: Path) -> str:
    """What to do about damage that a reader came upon."""
    return (
        f"`crl mend {quoted(run_path)}` makes it again, or names the stage that `crl redo` takes back; "
        "`crl verify` lists everything that is damaged"
    )


def read_checked(run_path: Path, relative: str, sha256: str, size: int = TABLE_BYTES) -> bytes:
    """Content of a file of the record, of at most `size` bytes. Raises RecordDamaged, with what mends it, where it is
    not the recorded one."""
    path = run_path / relative
    try:
        content = read_limited(path, size)
        digest = sha256_bytes(content)
        found = in_words(digest)
    except OSError as error:
        content, digest, found = b"", "", f"no readable file ({error.strerror})"
    if digest != sha256:
        raise RecordDamaged(
            f"{relative} is not the file that was committed: {found}",
            expected=sha256,
            where=str(path),
            next_step=mending(run_path),
        )
    return content


def parsed_parquet(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a Parquet file's content; all columns, or some.

    Read by this thread alone: one of Arrow's that still holds `content` while the interpreter ends aborts the process
    ("terminate called without an active exception", exit code -6).
    """
    # Not `read_table`: it would import pyarrow.dataset and with it pandas, half a second of every command.
    return pq.ParquetFile(pa.BufferReader(content)).read(columns, use_threads=False)


def link_to(run_path: Path, relative: str) -> Path | None:
    """The first link on the way from a run to one of its files; None where there is none, as it should be."""
    ways = [*reversed(Path(relative).parents[:-1]), Path(relative)]
    return next((run_path / each for each in ways if (run_path / each).is_symlink()), None)


def open_own(path: str | Path, flags: int) -> int:
    """A descriptor of a file that a run writes in its place. Raises RunDirectoryUnusable for a link: what that leads to
    is not the run's to change."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        path = Path(path)
        raise RunDirectoryUnusable(
            f"{path.name} is a link to {path.readlink()}",
            expected="a file of the run itself: this one is written to",
            where=str(path),
            next_step=f"rm {quoted(path)}, and put the file itself there if you need what it holds",
        ) from error


def machine() -> str:
    """Where process ids mean the same: this machine since its start (boot id), in this container (their namespace)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def machine_digest() -> str:
    """Eight characters for this host and :func:`machine`."""
    return sha256_bytes(f"{socket.gethostname()} {machine()}".encode())[:8]


def temporary(path: Path, token: int) -> Path:
    """Sibling of `path` to write into before it is renamed; unique to this process and attempt."""
    return path.parent / f".tmp-{path.name}-{machine_digest()}-{os.getpid()}-{token}"


def fsync(path: Path) -> None:
    """Sync a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(directory: Path) -> None:
    """Sync every file and directory below and including `directory`, children first."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            fsync(Path(parent, name))
        fsync(Path(parent))


def write_atomically(path: Path, content: bytes, *, token: int = 0) -> None:
    """Write a whole file so that a reader, or a crash, sees the old content or the new one. Raises as `disk_errors`."""
    scratch = temporary(path, token)
    with disk_errors(path):
        try:
            with scratch.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        fsync(path.parent)


def write_once(path: Path, content: bytes) -> None:
    """Write a whole file unless it is there: of two that do so at once, one wins and both find a whole file. Raises as
    `disk_errors`."""
    # A name of its own even within a process: a paused flow and a command may decide in the same moment.
    scratch = temporary(path.with_name(f"{path.name}-{uuid4().hex}"), 0)
    with disk_errors(path):
        try:
            scratch.write_bytes(content)
            fsync(scratch)
            with suppress(FileExistsError):
                os.link(scratch, path)
                fsync(path.parent)
        finally:
            scratch.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Move a file or directory into another directory, which is made: on the disk there before it is gone here."""
    made = [each for each in target.parents if not each.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    for directory in (target.parent, *(each.parent for each in made), source.parent):
        fsync(directory)


def require_new(target: Path) -> None:
    """Raise BadInput where a folder exists that is to be written, or has no parent."""
    if target.exists() or target.is_symlink():
        raise BadInput(
            f"{target} already exists", expected="a folder that does not exist yet", next_step="name another folder"
        )
    if not target.absolute().parent.is_dir():
        raise BadInput(f"there is no directory {target.parent}", expected="an existing directory to write into")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` when the block ends: whole, or not there at all.

    Raises as :func:`require_new` and :func:`disk_errors`.
    """
    target = Path(target)
    require_new(target)
    remove_left_behind(target)
    scratch = temporary(target, 0)
    with disk_errors(target):
        try:
            scratch.mkdir()
            yield scratch
            fsync_tree(scratch)
            scratch.rename(target)
            fsync(target.absolute().parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def making(directory: Path) -> Iterator[None]:
    """Make a directory for what the block writes into it. Where the block fails, what was made and is empty goes."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those it came from: libraries wrap what the system said."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def tells_of_full_disk(error: BaseException) -> bool:
    """Whether an exception, or one it came from, says that no space was left."""
    return any(
        (isinstance(seen, OSError) and seen.errno in _FULL) or any(text in str(seen) for text in _FULL_TEXTS)
        for seen in _causes(error)
    )


def disk_full(where: Path | str) -> DiskFull:
    """The error for a disk that filled up while something was written at `where`."""
    return DiskFull(
        "no space was left on the disk; everything written before is intact",
        expected="room for what the command writes",
        where=str(where),
        next_step="free some space, then give the command again; `crl resume` makes an interrupted stage again",
    )


def unwritable(error: BaseException, where: Path | str, what: str) -> CrlError:
    """The error for a place that could not be written, `what` in words: DiskFull, or why the system refused."""
    if tells_of_full_disk(error):
        return disk_full(where)
    read_only = any(_READ_ONLY_TEXT in str(seen) for seen in _causes(error))
    reason = _READ_ONLY_TEXT if read_only else (isinstance(error, OSError) and error.strerror) or str(error)
    return RunDirectoryUnusable(
        f"{what} cannot be written: {reason}",
        expected="a place that this user may write",
        where=str(where),
        next_step=f"make it writable, or {_ELSEWHERE}",
    )


def disk_error(error: BaseException, where: Path | str | None = None) -> CrlError | None:
    """The error behind an exception that says that the disk is full, read-only or not this user's; None for others.

    `where` is what was written, by default the file that the exception names.
    """
    named = next((seen.filename for seen in _causes(error) if isinstance(seen, OSError) and seen.filename), None)
    if tells_of_full_disk(error) or any(_READ_ONLY_TEXT in str(seen) for seen in _causes(error)):
        place = where or str(named or "a file that the command writes, or its output")
        return unwritable(error, place, Path(str(named or place)).name)
    if isinstance(error, PermissionError) and named is not None:  # the system does not say which of the two it refused
        return RunDirectoryUnusable(
            f"{Path(str(named)).name} cannot be read or written: {error.strerror}",
            expected="a place that this user may read and write",
            where=str(named),
            next_step=f"give this user access to it, or {_ELSEWHERE}",
        )
    return None


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Raise DiskFull, or RunDirectoryUnusable, where the block failed as a disk is full or may not be written."""
    try:
        yield
    except CrlError:
        raise
    except Exception as error:
        known = disk_error(error, where)
        if known is None:
            raise
        raise known from error


def left_behind(path: Path, token: int) -> bool:
    """Whether something temporary is of an attempt before `token`, or of a process that is gone: on this machine that
    is known, elsewhere (another container, before a restart) it counts as gone after a day."""
    match = _TEMPORARY.match(path.name)
    if match is None:
        return False
    owner = int(match["token"])
    if owner:
        return owner < token
    if match["machine"] == machine_digest():
        return not psutil.pid_exists(int(match["pid"]))
    with suppress(OSError):  # removed meanwhile
        return time.time() - path.lstat().st_mtime > _DAY
    return False


def remove_left_behind(target: Path) -> None:
    """Remove what writers of `target` without a lease left beside it when they were killed."""
    beside = target.absolute().parent
    for entry in sorted(beside.iterdir()) if beside.is_dir() else []:
        if entry.name.startswith(f".tmp-{target.name}-") and left_behind(entry, 0):
            remove(entry)


def aside(run_path: Path, relative: str) -> Path:
    """A free place under `damaged/<n>/` where something damaged is kept: the record deletes nothing that it does not
    understand."""
    number = 1
    while (run_path / "damaged" / str(number)).exists():
        number += 1
    return run_path / "damaged" / str(number) / relative


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it; no error if it is gone already."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):  # a read-only file system refuses to remove even what is not there
        path.unlink(missing_ok=True)


def sweep(run_path: Path, token: int) -> list[Path]:
    """Remove what attempts before `token` left unfinished, and parts of stages that were committed; returns both.

    Looks only where the record writes temporary things; finished parts of an unfinished stage stay, they are reused.
    """
    places = [run_path, *(run_path / name for name in ("decisions", "evaluations", "imports/bank"))]
    places += _directories(run_path / "cache")
    places += _below(run_path / "bank")
    parts = []
    for round_directory in _directories(run_path / "rounds"):
        places.append(round_directory)
        parts += [entry for entry in _directories(round_directory) if entry.name.startswith(_PARTS)]
    doomed = [entry for entry in parts if (entry.parent / entry.name.removeprefix(_PARTS)).exists()]
    places += [run_path / "cache", *(entry for entry in parts if entry not in doomed)]
    for place in places:
        if place.is_dir() and not place.is_symlink():
            doomed += [entry for entry in sorted(place.iterdir()) if left_behind(entry, token)]
    for entry in doomed:
        remove(entry)
    return doomed


def _directories(place: Path) -> list[Path]:
    """Those in a directory; what a link leads to is not the run's to sweep."""
    if place.is_symlink() or not place.is_dir():
        return []
    return sorted(entry for entry in place.iterdir() if entry.is_dir() and not entry.is_symlink())


def _below(place: Path) -> list[Path]:
    return [] if place.is_symlink() else [Path(parent) for parent, _, _ in os.walk(place)]


def free_bytes(path: Path) -> int:
    """Bytes an ordinary user may still write where `path` is, or will be made."""
    room = os.statvfs(_existing(path))
    return room.f_bavail * room.f_frsize


def is_writable(path: Path) -> bool:
    """Whether this user may write where `path` is, or will be made."""
    return os.access(_existing(path), os.W_OK)


def require_writable(path: Path, what: str) -> None:
    """Raise RunDirectoryUnusable unless this user may write where `path` is, or will be made; `what` it is in words."""
    if not is_writable(path):
        code = errno.EROFS if os.statvfs(_existing(path)).f_flag & os.ST_RDONLY else errno.EACCES
        raise unwritable(OSError(code, os.strerror(code)), path, what)


def same_disk(one: Path, other: Path) -> bool:
    """Whether two paths, which need not be there yet, share the room that is free."""
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def require_free(
    path: Path,
    *,
    needed_bytes: int,
    reserve_bytes: int = 0,
    what: str = "the run directory",
    next_step: str = "free some space, put the runs elsewhere (CRL_RUNS), or lower runtime.save_total_limit",
) -> None:
    """Raise NotEnoughDisk unless `needed_bytes` fit at `path` and `reserve_bytes` stay free beside them.

    RunDirectoryUnusable where nothing may be written at all; `what` it is in words.
    """
    require_writable(path, what)
    free = free_bytes(path)
    if free >= needed_bytes + reserve_bytes:
        return
    raise NotEnoughDisk(
        f"{free / GIGABYTE:.2f} GB are free; the run is estimated to write {needed_bytes / GIGABYTE:.2f} GB",
        expected=f"{(needed_bytes + reserve_bytes) / GIGABYTE:.2f} GB, with {reserve_bytes / GIGABYTE:.2f} GB to spare",
        where=str(path),
        next_step=next_step,
    )


def _existing(path: Path) -> Path:
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return place
