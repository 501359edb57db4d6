"""Retention: which checkpoints are kept, and how the others are deleted so that a crash leaves nothing in doubt.

A checkpoint is the directory `checkpoint/` of a committed stage. Before one is deleted, a line in `pruned.jsonl` says
so, and a `pruned` event of the journal, so that neither file alone can lose an entry; verification accepts exactly
those. An entry names the manifest it was taken from, so it never excuses a checkpoint that a redone stage wrote later
in the same place. Deleting is one rename out of the record, then the removal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from crl.errors import RecordDamaged
from crl.records import Weights
from crl.run.directory import complete_stages, round_numbers
from crl.run.files import fsync, mending, remove
from crl.run.lease import commit_guard
from crl.run.manifest import Manifest, StageKey, key_of, stage_directory
from crl.run.pruned import Pruned, add_pruned, is_pruned, pruned

CHECKPOINT = "checkpoint"
_WEIGHTS = f"{Weights.table}.parquet"


def prune(
    run_path: Path,
    role_stages: Mapping[str, Sequence[str] | str],
    keep_last: int,
    keep_every: int,
    *,
    keep: Collection[int] = (),
    token: int,
) -> list[Pruned]:
    """Delete checkpoints that nothing needs any more; returns what was deleted.

    `role_stages` names, for each role, the stages that write its checkpoints. Kept are the newest `keep_last` of each
    role, those that every `keep_every`-th round (0: none) and the rounds `keep` wrote or went on with, and whatever the
    newest `weights` row of the role points to. `token` is the lease's: raises StaleAttempt if it was lost,
    RecordDamaged where a row cannot be read.
    """

    def stays(place: StageKey) -> bool:
        return place[0] in keep or (keep_every > 0 and place[0] % keep_every == 0)

    deleted = []
    for stages in role_stages.values():
        names = [stages] if isinstance(stages, str) else list(stages)
        committed = _committed(run_path, names)
        present = [place for place in committed if (stage_directory(run_path, *place) / CHECKPOINT).is_dir()]
        kept = set(present[-keep_last:] if keep_last else [])
        kept |= set(filter(stays, present))
        needed = _in_use(run_path, committed, stays)
        for place in present:
            if place in kept or f"rounds/{key_of(*place)}/{CHECKPOINT}" in needed:
                continue
            with commit_guard(run_path, token):
                if not (
                    stage_directory(run_path, *place) / CHECKPOINT
                ).is_dir():  # another round of this run was faster
                    continue
                entry, grave = _set_aside(run_path, place, token)
            remove(grave)  # a large one takes long, and another round may have to commit meanwhile
            deleted.append(entry)
    return deleted


def _set_aside(run_path: Path, place: StageKey, token: int) -> tuple[Pruned, Path]:
    """Note a deletion and move the checkpoint to where the sweep of a later attempt finds it; what was noted, where."""
    directory = stage_directory(run_path, *place)
    manifest = Manifest.load(directory)
    entry = Pruned.of(place, CHECKPOINT, manifest)
    # After a crash between these steps the line exists already, and the next call finishes this one.
    if not is_pruned(pruned(run_path), *place, CHECKPOINT, manifest):
        add_pruned(run_path, entry, token)
    grave = directory.parent / f".tmp-{place[1]}.{CHECKPOINT}-{token}"
    remove(grave)
    (directory / CHECKPOINT).rename(grave)
    fsync(directory)
    fsync(directory.parent)
    return entry, grave


def _committed(run_path: Path, stages: Collection[str]) -> list[StageKey]:
    """Complete stages of these names, oldest first."""
    found = []
    for round_number in round_numbers(run_path):
        present = [name for name in dict.fromkeys(stages) if stage_directory(run_path, round_number, name).is_dir()]
        if len(present) > 1:  # which of them came first, their manifests say; for one nothing is read
            present = [name for name in complete_stages(run_path, round_number) if name in present]
        found += [(round_number, name) for name in present]
    return found


def _in_use(run_path: Path, committed: Sequence[StageKey], stays: Callable[[StageKey], bool]) -> set[str]:
    """Checkpoints that the newest weights rows point to, and those of rounds that are kept: a role that was not updated
    still needs an old one."""
    told = [place for place in committed if (stage_directory(run_path, *place) / _WEIGHTS).is_file()]
    told = [place for place in told if place == told[-1] or stays(place)]
    return {checkpoint for place in told for checkpoint in recorded_checkpoints(run_path, place)}


def recorded_checkpoints(run_path: Path, key: StageKey) -> set[str]:
    """The checkpoints that the weights rows of a stage point to. Raises RecordDamaged where they cannot be read."""
    path = stage_directory(run_path, *key) / _WEIGHTS
    if _WEIGHTS not in Manifest.load(path.parent).digested.files:
        return set()
    try:
        rows = pq.read_table(path).column("checkpoint").to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise RecordDamaged(
            f"{key_of(*key)}/{_WEIGHTS} cannot be read: {error}",
            expected="the file that was committed",
            where=str(path),
            next_step=mending(run_path),
        ) from error
    return {row for row in rows if row is not None}
