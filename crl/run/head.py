"""The head of a run: one digest that vouches for all of it, to be kept elsewhere and compared later.

The head of a round is the SHA-256 of the canonical JSON of the digests of all complete stages up to that round, by
`<round, four digits>/<stage>`; the head of the run is that of its last round. Whoever changes or forges any stage, and
seals every manifest again, gets another head. A run that goes on keeps the heads of the rounds it has, so a head that
was noted after a complete round holds for good.
"""

from __future__ import annotations

import re
from pathlib import Path

from crl.errors import BadInput, RecordDamaged
from crl.run.directory import complete_stages, round_numbers
from crl.run.files import canonical_json, sha256_bytes
from crl.run.manifest import Manifest, key_of

_SHOWN = 5
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def heads(run_path: Path) -> dict[int, str]:
    """The head of each round, in order. Raises RecordDamaged where a manifest cannot be read."""
    stages: dict[str, str] = {}
    found = {}
    for number in round_numbers(run_path):
        for stage in complete_stages(run_path, number):
            key = key_of(number, stage)
            stages[key] = Manifest.load(run_path / "rounds" / key).digest
        found[number] = sha256_bytes(canonical_json(stages))
    return found


def told_head(run_path: Path) -> str | None:
    """The head in one line; None for a run without a stage."""
    try:
        known = heads(run_path)
    except RecordDamaged as error:
        return f"head: unknown, {error.where} is damaged"
    return f"head: {list(known.values())[-1]} (after round {list(known)[-1]})" if known else None


def checked_form(head: str) -> str:
    """A head as it was typed. Raises BadInput for what cannot be one."""
    if not _SHA256.match(head.strip().lower()):
        raise BadInput(
            f"--head {head!r} is no digest", expected="64 hexadecimal digits, as `crl status` and `crl verify` print"
        )
    return head.strip().lower()


def hold_against(run_path: Path, head: str) -> int:
    """The round of which `head` is the head. Raises RecordDamaged where it is that of none."""
    known = heads(run_path)
    for number, each in reversed(known.items()):
        if each == head:
            return number
    last = [f"round {number}: {each}" for number, each in list(known.items())[-_SHOWN:]]
    raise RecordDamaged(
        "the run has another head: " + ("; ".join(last) if last else "it has no complete stage"),
        expected=f"{head}, kept elsewhere",
        where=str(run_path),
        next_step="compare the digests of the stages (`digest` in rounds/*/*/manifest.json, `stage_committed` in "
        "journal.jsonl) with a copy that has this head; a head noted in the middle of a round fits no later state",
    )
