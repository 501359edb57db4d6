"""Digests of the data that environments read: a run keeps one of each file or folder, and takes no other content.

An environment says which files it reads (`EnvironmentConfig.data_files`) and which of its settings are their paths
(`PATHS`); the rest is here. The digest decides; size, times and inode of a file only save reading it again. Paths are
no part of the method of a run that keeps digests: files that were moved are the same experiment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crl.config import Experiment, FamilyConfig
from crl.config.environments import DataFiles
from crl.errors import CrlError, FrozenMethodChanged
from crl.run.files import sha256_file

NOTHING = "nothing there"


@dataclass(frozen=True, slots=True)
class DataFault:
    """Data of a family that is not what a run was made with."""

    family: str
    name: str
    """As the environment calls it."""
    path: Path
    expected: str
    found: str
    """A digest, or that nothing is there."""


def digest_of(files: DataFiles) -> str:
    """SHA-256 of a file's content; of a folder or of several files, over their names and digests.

    Hidden files are no part of a folder. Names of several files begin in the folder that all are in.
    """
    if isinstance(files, Path) and not files.is_dir():
        return _digest_of(files)
    folder = location_of(files)
    inside = _inside(files) if isinstance(files, Path) else files
    listed = sorted((os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in inside)
    lines = "".join(f"{_digest_of(path)}  {name}\n" for name, path in listed)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def location_of(files: DataFiles) -> Path:
    """The file or folder itself; the folder that several files are in."""
    return files if isinstance(files, Path) else Path(os.path.commonpath([path.parent for path in files]))


def _inside(folder: Path) -> Iterator[Path]:
    """Files in a folder, through links too; none twice where links go in circles."""
    seen = {folder.resolve()}
    for place, folders, names in os.walk(folder, followlinks=True):
        real = {name: Path(place, name).resolve() for name in folders if not name.startswith(".")}
        folders[:] = sorted(name for name, path in real.items() if path not in seen)
        seen.update(real.values())
        yield from (path for name in names if not name.startswith(".") and (path := Path(place, name)).is_file())


def _digest_of(path: Path) -> str:
    known = path.stat()
    return _digest(path, known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino)


@lru_cache(maxsize=1 << 16)
def _digest(path: Path, size: int, modified: int, changed: int, inode: int) -> str:
    return sha256_file(path)


def _found(files: DataFiles) -> str:
    paths = [files] if isinstance(files, Path) else files
    return digest_of(files) if paths and all(path.exists() for path in paths) else NOTHING


def digests_of(family: FamilyConfig) -> dict[str, str]:
    """Digests of what a family's environment reads, by its names for them; of what is there. `name@3` is what it reads
    from round 3 on, where that is something else."""
    found: dict[str, str] = {}
    last: dict[str, str] = {}
    for first, world in family.worlds.items():
        try:
            files = world.environment.data_files()
        except CrlError:  # said where the environment is made
            continue
        for name, each in sorted(files.items()):
            if (digest := _found(each)) not in (NOTHING, last.get(name)):
                last[name] = found[f"{name}@{first}" if first else name] = digest
    return found


def with_data_digests(experiment: Experiment) -> Experiment:
    """The experiment with a digest of all its data: the ones that it has, else those of the present content."""
    families = []
    for family in experiment.method.families:
        digests = {**digests_of(family), **(family.data_digests or {})} or None
        families.append(family.model_copy(update={"data_digests": digests}))
    if families == experiment.method.families:
        return experiment
    return experiment.model_copy(update={"method": experiment.method.model_copy(update={"families": families})})


def with_digests_of(family: FamilyConfig, before: FamilyConfig) -> FamilyConfig:
    """A changed family with the digests of what it reads from the same files as before."""
    if family.data_digests is None or (family.environment, family.changes) == (before.environment, before.changes):
        return family
    try:
        files, known = family.environment.data_files(), before.environment.data_files()
    except CrlError:  # said where the environment is made
        files, known = {}, {}
    kept = {
        name: digest for name, digest in family.data_digests.items() if name in files and files[name] == known[name]
    }
    return family.model_copy(update={"data_digests": kept or None})


def data_faults(family: FamilyConfig) -> Iterator[DataFault]:
    """Data of a family, as it is in one round, that is gone or has another content than its digests say."""
    known = family.data_digests or {}
    files: Mapping[str, DataFiles] = family.environment.data_files() if known else {}
    for name, each in files.items():
        expected = known.get(name)
        if expected is not None and (found := _found(each)) != expected:
            yield DataFault(family.name, name, location_of(each) if each else Path(name), expected, found)


def check_data(family: FamilyConfig) -> None:
    """Raise FrozenMethodChanged where data of a family is gone, or has another content than when its run was made."""
    for fault in data_faults(family):
        raise FrozenMethodChanged(
            f"the data {fault.path.name} has changed since the run was made: {fault.found}",
            expected=f"the content with SHA-256 {fault.expected}",
            where=f"family {fault.family}, {fault.name}: {fault.path}",
            next_step="put it back as it was (where you moved it: `crl train` with its new path goes on with the run), "
            "or train with the new one under another experiment name",
        )
