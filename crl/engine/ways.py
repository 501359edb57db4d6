"""The ways in which a run computes its models: chosen once, before anything is sampled, and kept beside its record.

Another way may change the last digit of a number. So whatever process samples or updates for a run, now or when it goes
on, reads the same files, `ways/<owner>.json`; a fork takes those of its parent that its own method leaves as they are.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from crl.config import Method
from crl.config.models import WAYS, Ways
from crl.errors import RecordDamaged
from crl.policies.verdicts import computed_here, kept_ways, use_of
from crl.run.directory import RunDirectory
from crl.run.files import canonical_json, write_once


def ways_of(run: RunDirectory) -> dict[str, Ways]:
    """The ways of a run's sets of weights, by their owners. Those that are not written yet are of the verdicts that
    this machine keeps, and are written; a set without a verdict is left out, and tried whenever it is loaded.

    Raises RecordDamaged for a file, or folder, that cannot be read.
    """
    folder = Path(run.path) / WAYS
    owners = computed_here(run.method)
    for owner, ways in kept_ways(run.method, [each for each in owners if not _file(folder, each).is_file()]).items():
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise _damaged(folder, WAYS, "it is no folder") from error
        write_once(_file(folder, owner), canonical_json(_plain(ways)))
    return {owner: _read(_file(folder, owner)) for owner in owners if _file(folder, owner).is_file()}


def inherit(directory: Path, parent: RunDirectory, method: Method) -> None:
    """Take the ways of a parent's weights into the directory of its fork, where this method uses them alike."""
    for owner in set(computed_here(method)) & set(computed_here(parent.method)):
        file = _file(Path(parent.path) / WAYS, owner)
        if file.is_file() and use_of(method, owner) == use_of(parent.method, owner):
            (directory / WAYS).mkdir(exist_ok=True)
            write_once(_file(directory / WAYS, owner), file.read_bytes())


def _file(folder: Path, owner: str) -> Path:
    return folder / f"{owner}.json"


def _read(file: Path) -> Ways:
    try:
        return Ways.read(file)
    except (OSError, ValueError) as error:
        raise _damaged(file, f"{WAYS}/{file.name}", str(error)) from error


def _damaged(path: Path, name: str, why: str) -> RecordDamaged:
    return RecordDamaged(
        f"{name} cannot be read: {why}",
        expected="how a model of the run is sampled from and updated",
        where=str(path),
        next_step="Delete it: the ways are chosen again, as when a run begins.",
    )


def _plain(ways: Ways) -> dict[str, Any]:
    return {name: value for name, value in asdict(ways).items() if value is not None}
