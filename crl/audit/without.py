"""Going on without a file that is damaged, where no later round reads it: the run keeps its rounds, and says what it
lacks.

The file moves to `damaged/<n>/`, and an entry in `pruned.jsonl` names it, as for a checkpoint that retention deleted:
verification accepts exactly this file of this manifest, and remarks on it. Forks take the entry along. A file from a
backup that is put back later ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted, short
from crl.records import BankChange, BankEntry, BankSnapshot, Operation, Row
from crl.rounds.stage import Recipe
from crl.run.aside import take_file
from crl.run.directory import RunDirectory
from crl.run.manifest import Manifest, StageKey, key_of, parse_key
from crl.run.pruned import Pruned
from crl.run.retention import CHECKPOINT, recorded_checkpoints

_OF_A_BANK: tuple[type[Row], ...] = (BankEntry, BankChange, BankSnapshot, Operation)
"""A bank is put together from these of several rounds, whatever stages declare, and mended from its operations."""


def why_needed(run: RunDirectory, recipe: Recipe, relative: str) -> str | None:
    """Why the run cannot go on without a file of a stage, or of the bank's store; None where no later round reads it.
    Raises BadInput for what is neither, RecordDamaged where its manifest cannot be read."""
    if relative.startswith("bank/"):
        return "later rounds read the bank"
    key, name, _ = _located(run, relative)
    if recipe.from_rows(run.method, *key):
        return f"it can be made again: crl mend {quoted(run.path)}"
    places = set(_read_later(run, recipe))
    if name.startswith(f"{CHECKPOINT}/"):
        directory = f"rounds/{key_of(*key)}/{CHECKPOINT}"
        return "later rounds begin with this checkpoint" if directory in _checkpoints(run, places) else None
    table = name.removesuffix(".parquet")
    if key in places:
        return "the next rounds read it"
    if any(row_type.table == table for row_type in (*recipe.recalls, *_OF_A_BANK)):
        return f"any later round may read {table} of this one"
    return None


def lacked(run: RunDirectory, recipe: Recipe, relative: str) -> Pruned:
    """What the run would go on without: a damaged or missing file, or the checkpoint that it belongs to.

    Raises BadInput where the file is whole, or needed (:func:`why_needed`), RecordDamaged.
    """
    key, name, manifest = _located(run, relative)
    path, file = run.path / relative, manifest.digested.files[name]
    if path.is_file() and file.is_at(path):
        raise BadInput(f"{relative} is the file that was committed: there is nothing to leave out", where="--without")
    if (why := why_needed(run, recipe, relative)) is not None:
        raise BadInput(
            f"the run cannot go on without {relative}: {why}",
            expected="a file that no later round reads",
            where="--without",
            next_step=f"restore it from a backup (SHA-256 {file.sha256}), or "
            f"crl redo {quoted(run.path)} --from {key_of(*key)}",
        )
    place = CHECKPOINT if name.startswith(f"{CHECKPOINT}/") else name
    return Pruned.of(key, place, manifest)


def leave_out(run: RunDirectory, entry: Pruned, *, token: int) -> None:
    """Go on without it. Raises StaleAttempt, DiskFull."""
    take_file(run.path, entry, token=token)


def _located(run: RunDirectory, relative: str) -> tuple[StageKey, str, Manifest]:
    """The stage of a file, its name there, and the manifest that names it."""
    match Path(relative).parts:
        case ("rounds", number, stage, *inner) if inner and run.path.joinpath("rounds", number, stage).is_dir():
            key, name = parse_key(f"{number}/{stage}"), "/".join(inner)
            manifest = Manifest.load(run.stage_path(*key))
            if name in manifest.digested.files:
                return key, name, manifest
    raise BadInput(
        f"{short(relative)} is no file that a stage of this run wrote",
        expected="a path as `crl verify` prints it, such as rounds/0003/collect/turns.parquet",
        where=str(run.path),
    )


def _read_later(run: RunDirectory, recipe: Recipe) -> Iterator[StageKey]:
    """The stages that rounds which are not complete yet read by declaration."""
    method, complete = run.method, True
    number = -1
    while complete:
        number += 1
        complete = all(run.is_complete(number, stage.name) for stage in recipe.stages_of(method, number))
    back = max((-read.offset for stage in recipe.stages for read in stage.reads), default=0)
    for due in range(number, number + back + 1):
        for stage in recipe.stages_of(method, due):
            yield from recipe.inputs(method, due, stage)


def _checkpoints(run: RunDirectory, places: set[StageKey]) -> set[str]:
    found: set[str] = set()
    for place in places:
        try:
            found |= recorded_checkpoints(run.path, place)
        except RecordDamaged:  # no weights, or not there yet
            continue
    return found
