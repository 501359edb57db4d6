"""The run directory: what is complete, what it holds, and where the next stage is written. The record itself.

    <run>/experiment.yaml                     the format of the record, the frozen method
    <run>/lineage.json                        of a fork: which rounds another run made, and by which method
    <run>/rounds/0007/<stage>/                Parquet files, manifest.json, perhaps checkpoint/
    <run>/rounds/0007/.parts-<stage>/0003/    finished parts of a stage that is not complete yet
    <run>/rounds/0007/.parts-<stage>/steps-*  what environments answered in finished episodes of its unfinished waves
    <run>/bank/…                              content-addressed, written once
    <run>/decisions/0007.json                 what a person decided about a round, until a stage records it
    <run>/evaluations/0007-<digest>/          evaluations that a person asked for; no part of the record
    <run>/validations/0007.json               what Great Expectations found in a committed round; no part of the record
    <run>/cache/…, catalog.duckdb             derived
    <run>/journal.jsonl, lease.json, lease.lock, pruned.jsonl
    <run>/trackers.jsonl, tensorboard/        for people who watch; no part of the record

A stage directory that exists is complete. Reading checks every file against its manifest, so damage stops whoever would
build on it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from crl.config import Experiment, Method
from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.paths import possible_path
from crl.records import Row, schema_of, with_added
from crl.run import experiment_file
from crl.run import files as files_
from crl.run.data_files import with_data_digests
from crl.run.lineage import Lineage, load_lineage, method_in
from crl.run.manifest import MANIFEST, Manifest, parse_key, stage_directory
from crl.run.pruned import is_left_out
from crl.run.writer import StageWriter

_ROUND = re.compile(r"^[0-9]{4,15}$")


class RunDirectory:
    """One run. Opening costs one small file; nothing is kept in memory but the method."""

    def __init__(self, path: Path, experiment_name: str, method: Method) -> None:
        self.path, self.experiment_name, self.method = path, experiment_name, method

    @classmethod
    def create_or_open(cls, experiment: Experiment, root: Path) -> RunDirectory:
        """The run `root/<name>`, made if it is not there.

        Raises FrozenMethodChanged if it was made with another method, OtherFormat if its record has another format,
        RunDirectoryUnusable if it cannot be written.
        """
        path = possible_path(Path(root) / experiment.name, "the run directory")
        if "\\" in str(path.absolute()):
            raise RunDirectoryUnusable(
                "the path of the run has a backslash, which DuckDB takes for a slash",
                expected="a path without one",
                where=str(path.absolute()),
                next_step="choose another place with CRL_RUNS or --runs",
            )
        experiment = with_data_digests(experiment)
        with _usable(path), files_.making(path):
            files_.temporary(path / "writable", 0).touch()
            files_.temporary(path / "writable", 0).unlink()
            if not (path / experiment_file.EXPERIMENT).exists():
                _check_against_manifests(path, experiment)
                experiment_file.create(path, experiment)
        try:
            experiment_file.check_same(path, experiment)
        except RecordDamaged:
            _check_against_manifests(path, experiment)
            experiment_file.replace(path, experiment)
        else:
            if experiment_file.load(path)[1] != experiment.method:  # its data is elsewhere now
                experiment_file.replace(path, experiment)
        return cls(path, experiment.name, experiment.method)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. Raises RunDirectoryUnusable if there is none, OtherFormat if its record has another format,
        RecordDamaged if its method was changed."""
        path = Path(path)
        name, method = experiment_file.load(path)
        return cls(path, name, method)

    @cached_property
    def method_digest(self) -> str:
        """Digest of the frozen method."""
        return self.method.digest()

    @cached_property
    def lineage(self) -> Lineage:
        """Which of its rounds other runs made. Raises RecordDamaged where that is not what was written."""
        return load_lineage(self.path)

    def method_of(self, round_number: int, stage: str) -> Method:
        """The method that a stage is made with: of a fork's first rounds that of the run that made them."""
        maker = self.lineage.maker(round_number, stage)
        return self.method if maker is None else method_in(maker)

    def stage_path(self, round_number: int, stage: str) -> Path:
        """Directory of a stage, complete or not."""
        return stage_directory(self.path, round_number, stage)

    def is_complete(self, round_number: int, stage: str) -> bool:
        """Whether a stage was committed."""
        return self.stage_path(round_number, stage).is_dir()

    def manifest(self, round_number: int, stage: str) -> Manifest:
        """Manifest of a complete stage. Raises RecordDamaged."""
        return Manifest.load(self.stage_path(round_number, stage))

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        """Rows of a complete stage; an empty table if it wrote none of this type.

        Raises RecordDamaged if the stage is missing or the file is not the one that was committed.
        """
        return self._read(self.stage_path(round_number, stage), row_type)

    def rounds(self) -> list[int]:
        """Rounds of which at least one stage is complete, in order."""
        return round_numbers(self.path)

    def complete_stages(self, round_number: int) -> list[str]:
        """Complete stages of a round, in the order they were committed (a damaged one last)."""
        return complete_stages(self.path, round_number)

    def begin(self, round_number: int, stage: str, *, token: int) -> StageWriter:
        """Start writing a stage under a lease's token. Raises StaleAttempt, StageAlreadyComplete, DiskFull."""
        parts = self.unfinished_path(round_number, stage)
        return StageWriter(
            self.path,
            round_number,
            stage,
            token=token,
            target=self.stage_path(round_number, stage),
            resolve=self._digest,
            shared_by_parts=lambda: _shared(parts),
            parts=parts,
        )

    def begin_part(self, round_number: int, stage: str, part: int, *, token: int) -> StageWriter:
        """Start writing one part of a stage; parts are kept until the stage is committed."""
        target = self.unfinished_path(round_number, stage) / f"{part:04d}"
        return StageWriter(self.path, round_number, stage, token=token, target=target, resolve=self._digest)

    def part_is_complete(self, round_number: int, stage: str, part: int) -> bool:
        """Whether a part can be used: committed, undamaged, and made from the present inputs and method.

        One that cannot is removed: a part is an unfinished stage's, not yet part of the record.
        """
        directory = self.unfinished_path(round_number, stage) / f"{part:04d}"
        if not directory.is_dir():
            return False
        if self._part_is_sound(directory):
            return True
        files_.remove(directory)
        return False

    def read_part(self, round_number: int, stage: str, part: int, row_type: type[Row]) -> pa.Table:
        """Rows of a complete part. Raises RecordDamaged."""
        return self._read(self.unfinished_path(round_number, stage) / f"{part:04d}", row_type)

    def part_inputs(self, round_number: int, stage: str, part: int) -> set[tuple[int, str]]:
        """Stages that a complete part read, as (round, stage)."""
        manifest = Manifest.load(self.unfinished_path(round_number, stage) / f"{part:04d}")
        return {parse_key(key) for key in manifest.digested.inputs}

    def part_provenance(self, round_number: int, stage: str, part: int) -> dict[str, Any]:
        """What is in the manifest of a complete part beside its digest. Raises RecordDamaged."""
        return Manifest.load(self.unfinished_path(round_number, stage) / f"{part:04d}").provenance

    def discard_parts(self, round_number: int, stage: str, unwanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove finished parts of an unfinished stage whose provenance is `unwanted`, and what environments answered:
        both are made again."""
        unfinished = self.unfinished_path(round_number, stage)
        for manifest in unfinished.glob(f"[0-9]*/{MANIFEST}"):
            if unwanted(Manifest.load(manifest.parent).provenance):
                files_.remove(manifest.parent)
        for answers in unfinished.glob("steps-*"):
            files_.remove(answers)

    def sweep(self, token: int) -> list[Path]:
        """Remove what attempts before `token` left unfinished; taking a lease does this."""
        return files_.sweep(self.path, token)

    def _read(self, directory: Path, row_type: type[Row]) -> pa.Table:
        name = f"{row_type.table}.parquet"
        recorded = Manifest.load(directory).digested.files.get(name)
        if recorded is None:
            return schema_of(row_type).empty_table()
        relative = (directory / name).relative_to(self.path).as_posix()
        if not (directory / name).exists() and is_left_out(self.path, relative):
            raise RecordDamaged(
                f"this run goes on without {relative}, which was damaged",
                expected=recorded.sha256,
                where=str(directory / name),
                next_step="put it back from a backup, if there is one",
            )
        content = files_.read_checked(self.path, relative, recorded.sha256, recorded.bytes)
        return with_added(row_type, files_.parsed_parquet(content))

    def unfinished_path(self, round_number: int, stage: str) -> Path:
        """Where finished parts of a stage are until it is committed, and what its attempts leave to later ones."""
        path = self.stage_path(round_number, stage)
        return path.parent / f".parts-{path.name}"

    def _digest(self, round_number: int, stage: str) -> str:
        return self.manifest(round_number, stage).digest

    def _part_is_sound(self, directory: Path) -> bool:
        try:
            digested = Manifest.load(directory).digested
            current = {key: self._digest(*parse_key(key)) for key in digested.inputs}
            return (
                digested.method == self.method_digest
                and digested.inputs == current
                and all(file.is_at(directory / name) for name, file in digested.files.items())
                and all(files_.sha256_or_size(self.path / name) == sha256 for name, sha256 in digested.shared.items())
            )
        except (OSError, RecordDamaged):
            return False


def round_numbers(run_path: Path) -> list[int]:
    """As :meth:`RunDirectory.rounds`, for a run whose experiment file may be damaged."""
    numbers = [int(entry.name) for entry in _entries(run_path / "rounds") if is_round(entry.name)]
    return [number for number in sorted(numbers) if _entries(run_path / "rounds" / f"{number:04d}")]


def is_round(name: str) -> bool:
    """Whether the directory of a round has this name: `00001` would be a second one of round 1."""
    return bool(_ROUND.match(name)) and name == f"{int(name):04d}"


def complete_stages(run_path: Path, round_number: int) -> list[str]:
    """As :meth:`RunDirectory.complete_stages`, for a run whose experiment file may be damaged."""
    return list(stage_manifests(run_path, round_number))


def stage_manifests(run_path: Path, round_number: int) -> dict[str, Manifest | RecordDamaged]:
    """Of the complete stages of a round, in the order they were committed; last, why one cannot be read."""
    found: dict[str, Manifest | RecordDamaged] = {}
    for entry in _entries(run_path / "rounds" / f"{round_number:04d}"):
        try:
            found[entry.name] = Manifest.load(entry)
        except RecordDamaged as error:
            found[entry.name] = error
    return dict(sorted(found.items(), key=lambda item: (_sequence(item[1]), item[0])))


def manifests(run_path: Path) -> dict[tuple[int, str], Manifest | RecordDamaged]:
    """As :func:`stage_manifests`, of every round in order."""
    numbers = round_numbers(run_path)
    return {(number, name): each for number in numbers for name, each in stage_manifests(run_path, number).items()}


def stage_seconds(run_path: Path) -> dict[str, float]:
    """How long each stage of the rounds after the first took when it last ran, in order."""
    taken: dict[str, float] = {}
    for (number, name), manifest in manifests(run_path).items():
        if number and not isinstance(manifest, RecordDamaged):
            taken[name] = manifest.seconds
    return taken


def _sequence(manifest: Manifest | RecordDamaged) -> float:
    try:
        return float("inf") if isinstance(manifest, RecordDamaged) else float(manifest.provenance["sequence"])
    except (KeyError, TypeError, ValueError):
        return float("inf")


def _shared(parts: Path) -> dict[str, str]:
    shared: dict[str, str] = {}
    for entry in _entries(parts):
        shared.update(Manifest.load(entry).digested.shared)
    return shared


def _entries(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(entry for entry in directory.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _check_against_manifests(path: Path, experiment: Experiment) -> None:
    """A run without a readable experiment file takes a new one only if its stages were made with the same method."""
    lineage = load_lineage(path)
    for entry in _entries(path / "rounds"):
        for stage in _entries(entry):
            if is_round(entry.name) and lineage.maker(int(entry.name), stage.name) is not None:
                continue
            with contextlib.suppress(RecordDamaged):
                method = Manifest.load(stage).digested.method
                if method != experiment.method.digest():
                    raise RunDirectoryUnusable(
                        f"{experiment_file.EXPERIMENT} is missing or damaged, and the stages in {path} were made with "
                        f"method {method}, not with this one ({experiment.method.digest()})",
                        expected="the config this run was made with",
                        where=str(path),
                        next_step="give the experiment another name, or restore its config",
                    )


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise files_.unwritable(error, path, "the run directory") from error
