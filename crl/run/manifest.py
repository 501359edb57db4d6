"""The manifest of a stage: what it wrote, from what, by which method and seed. Written last, it makes a stage complete.

`manifest.json` has two sections. `digested` is the digest section: files (SHA-256, rows, bytes), shared files, digests
of the stages read, method, seed; `digest` is the SHA-256 of its canonical JSON, and because inputs are digests, the
digest of a stage vouches for everything before it. `provenance` (times, host, attempt, versions, command) stands
beside, outside the chain. `check` covers the whole file, so that a changed provenance is found too.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from crl.errors import RecordDamaged
from crl.limits import DEEPEST, LARGEST_NUMBER, depth, read_limited
from crl.run.files import canonical_json, mending, sha256_bytes, sha256_file
from crl.run.logs import NOTED

MANIFEST = "manifest.json"
_PLAIN = ConfigDict(frozen=True, extra="forbid")
KEY = re.compile(r"^\d{4,15}/[a-z][a-z0-9_]*$")
"""How a stage is named: :func:`key_of`."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("sequence", "token", "attempt", "pid", "memory_bytes"), int),
    **dict.fromkeys(("seconds", "processor_seconds"), (int, float)),
    **dict.fromkeys(("started", "committed", "host"), str),
    **dict.fromkeys(("timings", "broken", "decision", "settings", "versions", NOTED), dict),
}
"""What is in a provenance that readers count with."""


class FileDigest(BaseModel):
    """One file of a stage."""

    model_config = _PLAIN

    sha256: str
    bytes: int
    rows: int | None = None
    """Rows of a table; null for other files."""

    def is_at(self, path: Path) -> bool:
        """Whether the file there is the one that was written. One of another size is not read."""
        return path.stat().st_size == self.bytes and sha256_file(path) == self.sha256


class Digested(BaseModel):
    """The digest section."""

    model_config = _PLAIN

    stage: str
    round: int = Field(ge=0, lt=LARGEST_NUMBER)
    files: dict[str, FileDigest]
    """By path inside the stage directory (POSIX)."""
    shared: dict[str, str]
    """SHA-256 of content-addressed files outside the stage, by run-relative path."""
    inputs: dict[str, str]
    """Digests of the stages read, by `<round, four digits>/<stage>`."""
    method: str
    seed: int | list[int]
    """What the stage's random streams derive from."""

    @field_validator("files", "shared")
    @classmethod
    def _check_paths(cls, named: dict[str, Any]) -> dict[str, Any]:
        for name in named:
            if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name!r} is no path inside the run")
        return named

    @field_validator("inputs")
    @classmethod
    def _check_keys(cls, inputs: dict[str, str]) -> dict[str, str]:
        for key in inputs:
            if not KEY.match(key):
                raise ValueError(f"{key!r} names no stage")
        return inputs

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of this section."""
        return sha256_bytes(canonical_json(self.model_dump(mode="json")))


class Manifest(BaseModel):
    """`manifest.json` of a stage or of a part."""

    model_config = _PLAIN

    digest: str
    digested: Digested
    provenance: dict[str, Any]
    check: str

    @field_validator("provenance")
    @classmethod
    def _check_provenance(cls, provenance: dict[str, Any]) -> dict[str, Any]:
        """Others take these for what they are called; what a stage adds of its own is shown as it is."""
        for name, kind in _KINDS.items():
            if name in provenance and not (isinstance(provenance[name], kind) and _is_small(provenance[name])):
                raise ValueError(f"the provenance has {name} {provenance[name]!r:.40}")
        if depth(provenance) > DEEPEST:
            raise ValueError(f"the provenance is nested deeper than {DEEPEST} levels")
        return provenance

    @classmethod
    def seal(cls, digested: Digested, provenance: dict[str, Any]) -> Manifest:
        """A manifest with its digest and check computed."""
        plain = json.loads(json.dumps(provenance, default=str))
        digest = digested.digest()
        return cls(digest=digest, digested=digested, provenance=plain, check=_check(digest, digested, plain))

    @property
    def seconds(self) -> float:
        """How long the stage or part took; 0 where it was not noted."""
        return float(self.provenance.get("seconds", 0.0))

    def rows(self) -> dict[str, int]:
        """Rows of each table of the stage, by table name."""
        tables = {name: file.rows for name, file in self.digested.files.items() if file.rows is not None}
        return {name.removesuffix(".parquet"): rows for name, rows in tables.items()}

    def render(self) -> bytes:
        """The bytes of the file."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
        return text.encode() + b"\n"

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """The manifest of a stage directory: shared, so not to be changed.

        Raises RecordDamaged if it is missing or not what was written.
        """
        path = directory / MANIFEST
        try:
            content = read_limited(path)
        except OSError as error:
            raise _damaged(path, f"{MANIFEST} cannot be read: {error.strerror}", None) from error
        try:
            return _parsed(content)
        except _NotAsWritten as error:
            raise _damaged(path, error.found, error.expected) from error


class _NotAsWritten(ValueError):
    """The content of a file is no manifest as it was written."""

    def __init__(self, found: str, expected: str | None) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected


@lru_cache(maxsize=256)
def _parsed(content: bytes) -> Manifest:
    """The manifest in a file's content. A round reads each manifest dozens of times; equal bytes are parsed once.

    Raises _NotAsWritten.
    """
    try:
        manifest = Manifest.model_validate_json(content)
    except (ValidationError, ValueError) as error:
        raise _NotAsWritten(f"{MANIFEST} is not a manifest (its SHA-256 is {sha256_bytes(content)})", None) from error
    expected = _check(manifest.digest, manifest.digested, manifest.provenance)
    if manifest.digested.digest() != manifest.digest:
        raise _NotAsWritten(f"its digest section has digest {manifest.digested.digest()}", manifest.digest)
    if expected != manifest.check or manifest.render() != content:
        raise _NotAsWritten(f"its content has check {expected}", manifest.check)
    return manifest


def _is_small(value: Any) -> bool:
    """Whether a number is one to count with."""
    return not isinstance(value, int | float) or -LARGEST_NUMBER < value < LARGEST_NUMBER


def _check(digest: str, digested: Digested, provenance: dict[str, Any]) -> str:
    whole = {"digest": digest, "digested": digested.model_dump(mode="json"), "provenance": provenance}
    return sha256_bytes(canonical_json(whole))


def _damaged(path: Path, found: str, expected: str | None) -> RecordDamaged:
    return RecordDamaged(
        found,
        expected=expected or "the manifest that was committed with the stage",
        where=str(path),
        next_step=mending(next((each.parent for each in path.parents if each.name == "rounds"), path)),
    )


StageKey = tuple[int, str]
"""A stage of a run: its round and its name."""


def stage_directory(run_path: Path, round_number: int, stage: str) -> Path:
    """Where a stage is, complete or not."""
    return run_path / "rounds" / key_of(round_number, stage)


def key_of(round_number: int, stage: str) -> str:
    """How a stage of a round is named in `inputs` and on the command line: `0007/collect`."""
    return f"{round_number:04d}/{stage}"


def parse_key(key: str) -> StageKey:
    """(round, stage) of a key (the inverse of :func:`key_of`)."""
    number, _, stage = key.partition("/")
    return int(number), stage
