"""The head of a run: one digest that vouches for all of it, to be kept elsewhere and compared later.

The head of a round is the SHA-256 of the canonical JSON of the digests of all complete stages up to that round, by
`<round, four digits>/<stage>`; the head of the run is that of its last round. Whoever changes or forges any stage, and
seals every manifest again, gets another head. A run that goes on keeps the heads of the rounds it has, so the head of a
complete round holds for good. In the middle of a round there is none to tell: it would fit no later state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

from crl.errors import BadInput, RecordDamaged
from crl.run.directory import round_numbers, stage_manifests
from crl.run.files import canonical_json, sha256_bytes
from crl.run.manifest import Manifest, key_of

Stages = Mapping[tuple[int, str], Manifest | RecordDamaged]
"""What `crl.run.directory.manifests` gives."""
_SHOWN = 5
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def heads(stages: Stages) -> dict[int, str]:
    """The head of each round, in order. Raises RecordDamaged where a manifest cannot be read."""
    return {number: _head(stages, number) for number in _rounds(stages)}


def head_after(run_path: Path, round_number: int) -> str:
    """The head of a complete round, to be told when it ends; rounds before it that are as they were are not read again.

    Raises RecordDamaged.
    """
    digests: dict[str, str] = {}
    for number in round_numbers(run_path):
        if number <= round_number:
            directory = run_path.resolve() / "rounds" / f"{number:04d}"
            digests |= _digests_of(run_path.resolve(), number, directory.stat().st_mtime_ns)
    return sha256_bytes(canonical_json(digests))


def head_line(stages: Stages, complete: Callable[[int], bool]) -> str | None:
    """The head of the newest round up to which all are `complete`, in one line; None where there is none."""
    rounds = list(takewhile(complete, _rounds(stages)))
    try:
        return f"head: {_head(stages, rounds[-1])} (after round {rounds[-1]})" if rounds else None
    except RecordDamaged as error:
        return f"head: unknown, {error.where} is damaged"


def checked_form(head: str) -> str:
    """A head as it was typed. Raises BadInput for what cannot be one."""
    if not _SHA256.match(head.strip().lower()):
        raise BadInput(
            f"--head {head!r} is not a digest", expected="64 hexadecimal digits, as `crl status` and `crl verify` print"
        )
    return head.strip().lower()


def hold_against(run_path: Path, stages: Stages, head: str) -> int:
    """The round of which `head` is the head. Raises RecordDamaged where it is that of none."""
    known = heads(stages)
    for number, each in reversed(known.items()):
        if each == head:
            return number
    last = [f"round {number}: {each}" for number, each in list(known.items())[-_SHOWN:]]
    raise RecordDamaged(
        "the run has a different head: " + ("; ".join(last) if last else "it has no complete stage"),
        expected=f"{head}, kept elsewhere",
        where=str(run_path),
        next_step="compare the digests of the stages (`digest` in rounds/*/*/manifest.json, `stage_committed` in "
        "journal.jsonl) with a copy that has this head; a head noted in the middle of a round fits no later state",
    )


def _rounds(stages: Stages) -> list[int]:
    return sorted({number for number, _ in stages})


def _head(stages: Stages, round_number: int) -> str:
    digests = {}
    for (number, stage), manifest in stages.items():
        if number > round_number:
            continue
        if isinstance(manifest, RecordDamaged):
            raise manifest
        digests[key_of(number, stage)] = manifest.digest
    return sha256_bytes(canonical_json(digests))


@cache
def _digests_of(run_path: Path, round_number: int, changed: int) -> dict[str, str]:
    """Of the stages of a round, whose directory was `changed` then: its time stamp shows what comes and goes."""
    found = {}
    for stage, manifest in stage_manifests(run_path, round_number).items():
        if isinstance(manifest, RecordDamaged):
            raise manifest
        found[key_of(round_number, stage)] = manifest.digest
    return found
