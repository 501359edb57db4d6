"""What is moved out of the record, and files that are put back into it. Nothing is deleted: `damaged/<n>/` keeps it.

Which stages are taken back is decided in `crl/audit/redo.py`; that the content of a file is the one that was committed
is proven in `crl/audit/again.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from crl.run.files import aside, disk_errors, fsync, move, temporary
from crl.run.journal import Journal
from crl.run.lease import commit_guard
from crl.run.manifest import StageKey, key_of
from crl.run.pruned import Pruned, add_pruned, pruned


def take_out(
    run_path: Path, stages: Sequence[StageKey], gone: Sequence[StageKey], *, first_round: int, token: int
) -> None:
    """Move stages, listed from the oldest on, to `damaged/<n>/rounds/`, with what is unfinished from a round on; `gone`
    are taken back as well and have no directory any more.

    The newest moves first, so that a crash in the middle leaves a record that is whole up to some stage. Raises
    StaleAttempt if `token` does not hold the lease.
    """
    target = aside(run_path, "rounds")
    with commit_guard(run_path, token):
        for number, name in reversed(stages):
            move(run_path / "rounds" / key_of(number, name), target / key_of(number, name))
            _move_parts(run_path, target, number, name)
        _move_unfinished(run_path, target, first_round)
        if stages or gone:
            keys = [key_of(*place) for place in [*stages, *gone]]
            where = target.parent.relative_to(run_path).as_posix() if stages else None
            Journal(run_path).record("set_aside", token=token, stages=keys, directory=where)


def take_file(run_path: Path, entry: Pruned, *, token: int) -> None:
    """List what a stage is to lack from now on, and move what is left of it to `damaged/<n>/`.

    In this order: after a crash in between it is listed and still there, damaged, and the next call ends the move.
    Raises StaleAttempt if `token` does not hold the lease.
    """
    with commit_guard(run_path, token):
        if entry not in pruned(run_path):
            add_pruned(run_path, entry, token)
        if (run_path / entry.location).exists():
            move(run_path / entry.location, aside(run_path, entry.location))


def put_back(run_path: Path, contents: Mapping[str, bytes], *, token: int) -> Path | None:
    """Put files, by run-relative path, into their places in order; returns where the damaged ones are kept, None for
    none.

    A crash in between leaves each file damaged, missing or whole: with the manifest last, a stage whose directory was
    gone is found damaged until all of it is back. Raises StaleAttempt if `token` does not hold the lease, DiskFull.
    """
    kept = aside(run_path, "")
    with commit_guard(run_path, token):
        for relative, content in contents.items():
            path = run_path / relative
            for parent in reversed(Path(relative).parents[:-1]):  # what a link leads to stays as it is
                if (place := run_path / parent).is_symlink() or (place.exists() and not place.is_dir()):
                    move(place, kept / parent)
            # Written beside the stage's directory, where a later attempt sweeps.
            beside = path.parent.parent if path.is_relative_to(run_path / "rounds") else path.parent
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                scratch = temporary(beside / path.name, token)
                try:
                    scratch.write_bytes(content)
                    fsync(scratch)
                    if path.exists():
                        move(path, kept / relative)
                    scratch.rename(path)
                except OSError:
                    scratch.unlink(missing_ok=True)
                    raise
                fsync(path.parent)
                fsync(path.parent.parent)
        where = kept.relative_to(run_path).as_posix() if kept.is_dir() else None
        Journal(run_path).record("mended", token=token, files=list(contents), directory=where)
    return kept if kept.is_dir() else None


def _move_parts(run_path: Path, target: Path, number: int, stage: str) -> None:
    source = run_path / "rounds" / f"{number:04d}" / f".parts-{stage}"
    if source.is_dir():
        move(source, target / f"{number:04d}" / source.name)


def _move_unfinished(run_path: Path, target: Path, first_round: int) -> None:
    """Parts of stages that were not complete: they may have been made from what is set aside."""
    for directory in sorted((run_path / "rounds").glob("[0-9]*/.parts-*")):
        if int(directory.parent.name) >= first_round:
            move(directory, target / directory.parent.name / directory.name)
