"""Digests of the data that environments read: a run keeps one of each file or folder, and takes no other content.

An environment says which files it reads (`EnvironmentConfig.data_files`); the rest is here. The digest decides; size
and time of a file only save reading it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from crl.config import Experiment, FamilyConfig
from crl.errors import BadInput, CrlError
from crl.run.files import sha256_file


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content; of a folder, over the names and digests of the files in it."""
    if path.is_file():
        return _digest(path, (stat := path.stat()).st_mtime_ns, stat.st_size)
    names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    listed = "".join(f"{digest_of(path / name)}  {name}\n" for name in names)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


@lru_cache(maxsize=1024)
def _digest(path: Path, modified: int, size: int) -> str:
    return sha256_file(path)


def digests_of(family: FamilyConfig) -> dict[str, str]:
    """Digests of what a family's environment reads in any round, by the names in its settings; of what is there."""
    files: dict[str, Path] = {}
    for world in family.worlds.values():
        try:
            files |= world.environment.data_files()
        except CrlError:  # said where the environment is made
            continue
    return {name: digest_of(path) for name, path in sorted(files.items()) if path.exists()}


def with_data_digests(experiment: Experiment) -> Experiment:
    """The experiment with a digest of all its data: the one that it has, else that of the present content."""
    families = []
    for family in experiment.method.families:
        found, known = digests_of(family), family.data_digests or {}
        kept = {name: known.get(name, digest) for name, digest in found.items()} or None
        families.append(family.model_copy(update={"data_digests": kept}) if found.keys() != known.keys() else family)
    if families == experiment.method.families:
        return experiment
    return experiment.model_copy(update={"method": experiment.method.model_copy(update={"families": families})})


def check_data(family: FamilyConfig) -> None:
    """Raise BadInput where data of a family is gone, or has another content than when its run was made."""
    if family.data_digests is None:
        return
    files: Mapping[str, Path] = family.environment.data_files()
    for name, path in files.items():
        expected = family.data_digests.get(name)
        if expected is not None and (found := digest_of(path) if path.exists() else "nothing there") != expected:
            raise BadInput(
                f"the data {name} has changed since the run was made: {found}",
                expected=f"the content with SHA-256 {expected}",
                where=f"family {family.name}, {path}",
                next_step="put the file back as it was, or train with the new one under another experiment name",
            )
