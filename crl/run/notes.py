"""What verification does not know: files that nobody names, and what beside the record says otherwise.

Notes are no problems and fail nothing. Files in the bank's store that no stage names were written by an attempt that
was killed or set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crl.errors import RecordDamaged
from crl.run.committed import committed
from crl.run.directory import complete_stages, is_round, round_numbers
from crl.run.journal import JOURNAL, Journal
from crl.run.jsonlines import JsonLines
from crl.run.manifest import Manifest, key_of
from crl.run.prunelog import PRUNED

_STORES = ("bank/segments", "bank/embeddings")


def notes(run_path: Path) -> list[str]:
    """What is to be said of a run beside its problems, one line each."""
    run_path = Path(run_path)
    manifests = _manifests(run_path)
    return [*_journal(run_path, manifests), *_pruned(run_path), *_rounds(run_path), *_stores(run_path, manifests)]


def _manifests(run_path: Path) -> dict[tuple[int, str], Manifest | None]:
    """By stage; None where it cannot be read."""
    found: dict[tuple[int, str], Manifest | None] = {}
    for number in round_numbers(run_path):
        for stage in complete_stages(run_path, number):
            try:
                found[number, stage] = Manifest.load(run_path / "rounds" / key_of(number, stage))
            except RecordDamaged:
                found[number, stage] = None
    return found


def _journal(run_path: Path, manifests: dict[tuple[int, str], Manifest | None]) -> Iterator[str]:
    if not (run_path / JOURNAL).is_file():
        if manifests:
            yield f"{JOURNAL} is missing: whether a stage that no other one read was deleted is not known"
        return
    if not any(isinstance(event.get("event"), str) for event in Journal(run_path).read()):
        yield f"{JOURNAL} holds no event: it is damaged, or another file in its place"
        return
    for place, commit in committed(run_path).items():
        manifest = manifests.get(place)
        # A manifest of another attempt is one that was made again by an attempt that was killed before it said so.
        if manifest is None or commit.digest is None or manifest.provenance.get("token") != commit.token:
            continue
        if manifest.digest != commit.digest:
            file = f"rounds/{key_of(*place)}/manifest.json"
            yield f"{file} has digest {manifest.digest}, and {JOURNAL} says that {commit.digest} was committed"


def _pruned(run_path: Path) -> Iterator[str]:
    if any("event" in line for line in JsonLines(run_path / PRUNED).read()):
        yield f"{PRUNED} holds events of a journal: another file in its place"


def _rounds(run_path: Path) -> Iterator[str]:
    rounds = run_path / "rounds"
    for entry in sorted(rounds.iterdir()) if rounds.is_dir() else []:
        if entry.is_dir() and not entry.name.startswith(".") and not is_round(entry.name):
            yield f"rounds/{entry.name} is unknown: the directory of a round has four digits or more, as in rounds/0001"


def _stores(run_path: Path, manifests: dict[tuple[int, str], Manifest | None]) -> Iterator[str]:
    if None in manifests.values():
        return  # what a manifest names that cannot be read is not known
    named = {name for manifest in manifests.values() if manifest for name in manifest.digested.shared}
    for part in (run_path / "rounds").glob("*/.parts-*/*/"):
        try:
            named |= set(Manifest.load(part).digested.shared)
        except RecordDamaged:
            continue
    for store in _STORES:
        for path in sorted((run_path / store).rglob("*")):
            file = path.relative_to(run_path).as_posix()
            if path.is_file() and not path.name.startswith(".") and file not in named:
                yield f"{file} is unknown: no complete stage names it"
