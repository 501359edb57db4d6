"""A new run directory that holds the first rounds of another one: the part of a fork that works with files.

Files of the record are never written twice, so they are shared by hard links where the file system has them, and copied
elsewhere: each run may be pruned, redone, mended and deleted without the other. Every file is read and held against its
manifest in its new place. All of it happens in a directory whose name begins with a dot, `.tmp-<name>-…`, which no
command takes for a run; one rename, after everything is on the disk, makes it one. What a killed fork left is removed
by the next one of the same name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from crl.config import Experiment
from crl.errors import BadInput, RecordDamaged
from crl.run import experiment_file
from crl.run.decisions import decided_rounds, decision_path
from crl.run.directory import RunDirectory, manifests
from crl.run.files import disk_errors, fsync, fsync_tree, mending, remove, remove_left_behind, sha256_file, temporary
from crl.run.head import heads
from crl.run.journal import Journal
from crl.run.lineage import LINEAGE, Ancestor, Lineage
from crl.run.manifest import MANIFEST, Manifest, StageKey, key_of, stage_directory
from crl.run.pruned import Pruned, add_pruned, is_pruned, pruned
from crl.run.retention import CHECKPOINT

FORKED = "forked"
"""Event of the journal that the run begins with."""


@dataclass(frozen=True)
class Branch:
    """What is taken from which run."""

    parent: RunDirectory
    round: int
    kept: tuple[str, ...] = ()
    """Stages of the round after that are taken too."""

    def takes(self, key: StageKey) -> bool:
        """Whether a stage of the parent is taken."""
        return key[0] <= self.round or (key[0] == self.round + 1 and key[1] in self.kept)


def lineage_of(branch: Branch) -> Lineage:
    """The ancestors of a run that is branched off. Raises RecordDamaged where a manifest cannot be read."""
    kept = tuple(key_of(branch.round + 1, stage) for stage in branch.kept)
    head = heads({place: each for place, each in manifests(branch.parent.path).items() if place[0] <= branch.round})
    parent = Ancestor(
        experiment=branch.parent.experiment_name,
        round=branch.round,
        head=head[branch.round],
        method_digest=branch.parent.method_digest,
        method=branch.parent.method.model_dump(mode="json"),
        kept=kept,
    )
    older = [each.up_to(branch.round, kept) for each in branch.parent.lineage.ancestors]
    clipped = [each if each.round < branch.round else each.model_copy(update={"head": parent.head}) for each in older]
    return Lineage((*clipped, parent))


def check_name_is_free(root: Path, name: str) -> None:
    """Raise BadInput where there is a run, or anything else, of this name."""
    path = Path(root) / name
    if path.exists() or path.is_symlink():
        raise BadInput(
            f"{path} already exists", expected="a name that no run has", where="--name", next_step="choose another"
        )


def make_branch(branch: Branch, experiment: Experiment, root: Path, also: Callable[[Path], None]) -> RunDirectory:
    """Make the run `root/<name>` of these stages. `also` may add to the directory before it becomes a run.

    Raises BadInput where the name is taken, RecordDamaged, naming the parent's file, where what was taken is not what
    its manifest says, DiskFull, RunDirectoryUnusable. Whatever is raised, there is no run of this name.
    """
    check_name_is_free(root, experiment.name)
    lineage, target = lineage_of(branch), Path(root) / experiment.name
    scratch = temporary(target, 0)
    with disk_errors(target):
        remove_left_behind(target)
        try:
            scratch.mkdir(parents=True)
            _fill(branch, scratch)
            (scratch / LINEAGE).write_bytes(lineage.render())
            experiment_file.create(scratch, experiment)
            also(scratch)
            fsync_tree(scratch)
            check_name_is_free(root, experiment.name)
            scratch.rename(target)
        finally:
            remove(scratch)
        fsync(target.parent)
    return RunDirectory.open(target)


def _fill(branch: Branch, scratch: Path) -> None:
    source, journal = branch.parent.path, Journal(scratch)
    parent = branch.parent
    journal.record(FORKED, token=0, parent=str(source.absolute()), round=branch.round, kept=list(branch.kept))
    deleted = pruned(source)
    taken = {place: each for place, each in manifests(source).items() if branch.takes(place)}
    for (number, stage), manifest in taken.items():
        if isinstance(manifest, RecordDamaged):
            raise manifest
        try:
            gone = _take_stage(source, scratch, (number, stage), manifest, deleted)
        except RecordDamaged:
            _check_still_kept(source, (number, stage), manifest)
            raise
        _tell(journal, (number, stage), manifest)
        for entry in gone:
            add_pruned(scratch, entry, 0)
    for number in decided_rounds(source):
        if number <= branch.round:
            _take(decision_path(source, number), decision_path(scratch, number))
    _check_still_there(parent, taken.keys())


def _take_stage(
    source: Path, scratch: Path, place: StageKey, manifest: Manifest, deleted: Sequence[Pruned]
) -> list[Pruned]:
    """Take the files of a stage and those that it shares; returns what was pruned of them."""
    directory = f"rounds/{key_of(*place)}"
    gone = [
        entry
        for entry in deleted
        if is_pruned([entry], *place, entry.path, manifest) and not (source / directory / entry.path).exists()
    ]
    for name, file in manifest.digested.files.items():
        if not any(name in entry.sha256s for entry in gone):
            _take_checked(source, scratch, f"{directory}/{name}", file.sha256)
    for relative, sha256 in manifest.digested.shared.items():
        if not (scratch / relative).exists():
            _take_checked(source, scratch, relative, sha256)
    _take(source / directory / MANIFEST, scratch / directory / MANIFEST)
    return gone


def _take_checked(source: Path, scratch: Path, relative: str, sha256: str) -> None:
    try:
        _take(source / relative, scratch / relative)
        found = sha256_file(scratch / relative)
    except FileNotFoundError:
        found = "no such file"
    if found != sha256:
        raise RecordDamaged(
            f"{relative} of the parent is not the file that was committed: {found}",
            expected=sha256,
            where=str(source / relative),
            next_step=mending(source),
        )


def _take(source: Path, target: Path) -> None:
    """A hard link; a copy where the file system has none, or the file is elsewhere."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _tell(journal: Journal, place: StageKey, manifest: Manifest) -> None:
    """What the parent's journal says of a stage: without it nobody would miss a stage that is deleted."""
    token = manifest.provenance.get("token")
    told = token if isinstance(token, int) else 0
    journal.record("stage_started", token=told, round_number=place[0], stage=place[1], inherited=True)
    journal.record(
        "stage_committed", token=told, round_number=place[0], stage=place[1], digest=manifest.digest, inherited=True
    )


def _check_still_there(parent: RunDirectory, taken: Collection[StageKey]) -> None:
    """Another process may take stages of the parent back meanwhile: what was taken would be of two makings."""
    gone = [key_of(*place) for place in taken if not parent.is_complete(*place)]
    if gone:
        raise RecordDamaged(
            f"{gone[0]} of the parent was taken back while the run was forked",
            expected="a parent whose rounds do not change",
            where=str(parent.path),
            next_step="wait until `crl redo` and `crl resume` of the parent have ended, then fork it again",
        )


def _check_still_kept(source: Path, place: StageKey, manifest: Manifest) -> None:
    """A parent that trains may delete a checkpoint meanwhile: no damage, but the next rounds may begin with it."""
    checkpoint = stage_directory(source, *place) / CHECKPOINT
    if not checkpoint.exists() and is_pruned(pruned(source), *place, CHECKPOINT, manifest):
        raise RecordDamaged(
            f"the checkpoint of {key_of(*place)} of the parent was pruned while the run was forked",
            expected="a parent whose checkpoints stay",
            where=str(checkpoint),
            next_step="fork it again",
        )
