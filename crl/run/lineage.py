"""Where a forked run comes from: `lineage.json`, written once when the run is made, before its first stage.

A fork holds its first rounds as another run made them, manifest by manifest, so digests chain from the parent's rounds
into its own. The file names that run, the round, and the head of the parent after that round, which the stages held
here must give again; and it keeps the method that made them, so that nothing has to be looked up in the parent. Of a
fork of a fork it lists every run that made some of the rounds, the oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from crl.config import Method
from crl.errors import RecordDamaged
from crl.limits import read_limited
from crl.run.files import canonical_json, sha256_bytes
from crl.run.manifest import key_of, parse_key

LINEAGE = "lineage.json"
_PLAIN = ConfigDict(frozen=True, extra="forbid")


class Ancestor(BaseModel):
    """A run that made some of the rounds that a fork begins with."""

    model_config = _PLAIN

    experiment: str
    """Its name."""
    round: int
    """The last of its rounds that are here; those of the ancestors before it come first."""
    head: str
    """Its head after that round."""
    method_digest: str
    method: dict[str, Any]
    kept: tuple[str, ...] = ()
    """Stages of the round after that are here too, because a fork kept its rollouts: `0003/collect`."""

    def made(self, round_number: int, stage: str) -> bool:
        """Whether a stage that no older ancestor made is of this one."""
        return round_number <= self.round or key_of(round_number, stage) in self.kept

    def up_to(self, round_number: int, kept: tuple[str, ...]) -> Ancestor:
        """As an ancestor of a fork that begins after a round and with some stages of the next."""
        held = tuple(key for key in self.kept if parse_key(key)[0] <= round_number or key in kept)
        return self.model_copy(update={"round": min(self.round, round_number), "kept": held})


class _File(BaseModel):
    """Content of the file."""

    model_config = _PLAIN

    ancestors: tuple[Ancestor, ...]
    check: str


@dataclass(frozen=True)
class Lineage:
    """The ancestors of a run, the oldest first; the last is the run that it was forked from. None: it is no fork."""

    ancestors: tuple[Ancestor, ...] = ()

    @property
    def parent(self) -> Ancestor | None:
        """The run that this one was forked from."""
        return self.ancestors[-1] if self.ancestors else None

    def maker(self, round_number: int, stage: str) -> Ancestor | None:
        """The ancestor that made a stage; None for the run itself."""
        return next((each for each in self.ancestors if each.made(round_number, stage)), None)

    def render(self) -> bytes:
        """The bytes of the file."""
        content = _File(ancestors=self.ancestors, check=_check(self.ancestors))
        return content.model_dump_json(indent=1).encode() + b"\n"


def load_lineage(run_path: Path) -> Lineage:
    """What the file says; no ancestors where there is none. Raises RecordDamaged where it is not what was written."""
    path = Path(run_path) / LINEAGE
    try:
        content = read_limited(path)
    except FileNotFoundError:
        return Lineage()
    except OSError as error:
        raise _damaged(path, f"{LINEAGE} cannot be read: {error.strerror}", None) from error
    try:
        parsed = _File.model_validate_json(content)
    except ValidationError as error:
        raise _damaged(path, f"{LINEAGE} is not a lineage (its SHA-256 is {sha256_bytes(content)})", None) from error
    lineage, found = Lineage(parsed.ancestors), _check(parsed.ancestors)
    if found != parsed.check or lineage.render() != content:
        raise _damaged(path, f"{LINEAGE} was changed: its content has check {found}", parsed.check)
    return lineage


def method_in(ancestor: Ancestor) -> Method:
    """The method of an ancestor. Raises RecordDamaged where this version cannot read it."""
    try:
        return Method.model_validate(ancestor.method)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordDamaged(
            f"the method of {ancestor.experiment}, which this run was forked from, cannot be read: "
            f"{first['loc']}: {first['msg']}",
            where=LINEAGE,
            next_step="read the run with the version of crl, and the packages, that made it",
        ) from error


def _check(ancestors: tuple[Ancestor, ...]) -> str:
    return sha256_bytes(canonical_json([each.model_dump(mode="json") for each in ancestors]))


def _damaged(path: Path, found: str, expected: str | None) -> RecordDamaged:
    return RecordDamaged(
        found,
        expected=expected or "the lineage that was written when the run was forked",
        where=str(path),
        next_step="fork the parent again, under another name: `crl verify` names the command",
    )
