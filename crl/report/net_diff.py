"""What became of the bank between two rounds: the net difference of two snapshots, and why entries left."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crl.errors import BadInput
from crl.records import BankEvent
from crl.report.bank import BankAfter
from crl.report.listing import Listing
from crl.report.tables import Tables
from crl.run.directory import RunDirectory

KINDS = ("added", "updated", "removed")


@dataclass(frozen=True, slots=True)
class NetChange:
    """One entry that is not in both banks with the same text."""

    kind: str
    """One of :data:`KINDS`."""
    entry_id: str
    family: str
    before: str | None
    """Text in the older bank."""
    after: str | None
    """Text in the newer bank."""
    version_before: int | None
    version_after: int | None
    how: str
    """How it came in, was rewritten or left, as a phrase."""


@dataclass(frozen=True, slots=True)
class NetDiff:
    """The difference between the banks of two rounds: added, then updated, then removed, each by age."""

    first: int
    last: int
    size_before: int
    """Entries."""
    size_after: int
    changes: tuple[NetChange, ...]

    def of(self, kind: str) -> tuple[NetChange, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def headline(self) -> str:
        """One line: which rounds, sizes and counts."""
        counts = ", ".join(f"{kind} {len(self.of(kind))}" for kind in KINDS if self.of(kind)) or "no change"
        sizes = f"{self.size_before} → {self.size_after} entries"
        return f"bank from round {self.first} to round {self.last}: {sizes}: {counts}"

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return dataclasses.asdict(self)


def net_diff(run_path: Path, first: int, last: int) -> NetDiff:
    """The net difference of two snapshots: what came and went in between does not show.

    Raises BadInput where a round has no bank or the rounds are not in order, RecordDamaged.
    """
    if first >= last:
        raise BadInput(
            f"there is nothing between round {first} and round {last}",
            expected="the older round first",
            next_step=f"crl bank diff {run_path} {min(first, last)} {max(first, last)}"
            if first > last
            else f"`crl bank diff {run_path} {first}` says what round {first} did",
        )
    run = RunDirectory.open(run_path)
    before, after = BankAfter(run, first), BankAfter(run, last)
    old, new = _states(before), _states(after)
    listed = {
        "added": [name for name in new if name not in old],
        "updated": [name for name in new if name in old and new[name][1] != old[name][1]],
        "removed": [name for name in old if name not in new],
    }
    how = _reasons(run_path, first, last)
    was = _texts(before, old, [*listed["updated"], *listed["removed"]])
    now = _texts(after, new, [*listed["added"], *listed["updated"]])
    changes = []
    for kind in KINDS:
        for name in listed[kind]:
            _, _, version_before, _ = old.get(name, _NOTHING)
            _, _, version_after, _ = new.get(name, _NOTHING)
            changes.append(
                NetChange(
                    kind=kind,
                    entry_id=name,
                    family=(new.get(name) or old[name])[3] or "",
                    before=was.get(name),
                    after=now.get(name),
                    version_before=version_before,
                    version_after=version_after,
                    how=how.get((kind == "removed", name), ""),
                )
            )
    return NetDiff(first, last, len(before.snapshot), len(after.snapshot), tuple(changes))


def net_listing(diff: NetDiff) -> Listing:
    """The changes for a terminal, one row per entry."""
    from rich.text import Text

    rows = []
    for change in diff.changes:
        told = [f"was: {change.before}"] if change.before is not None else []
        told += [f"now: {change.after}" if told else change.after] if change.after is not None else []
        cells = (change.kind, change.entry_id, change.family, change.how, "\n".join(told))
        rows.append([Text(cell) for cell in cells])
    return Listing(("change", "entry", "family", "how", "experience"), rows, words={"how", "experience"}, packed=True)


_State = tuple[int, str | None, int | None, str | None]
"""Row, content digest, version, family."""
_NOTHING: _State = (-1, None, None, None)


def _states(bank: BankAfter) -> dict[str, _State]:
    names = ("entry_id", "content_digest", "version", "family")
    columns = (bank.snapshot.table[name].to_pylist() for name in names)
    return {
        entry_id: (row, digest, version, family)
        for row, (entry_id, digest, version, family) in enumerate(zip(*columns, strict=True))
    }


def _texts(bank: BankAfter, states: dict[str, _State], names: list[str]) -> dict[str, str]:
    rows = np.array([states[name][0] for name in names], dtype=np.int64)
    return dict(zip(names, bank.texts(rows), strict=True)) if names else {}


def _reasons(run_path: Path, first: int, last: int) -> dict[tuple[bool, str], str]:
    """How entries came in or were rewritten (False) and how they left (True): the last event of either kind."""
    columns = ["kind", "entry_id", "round", "parents", "reason"]
    with Tables(run_path) as tables:
        events = tables.select(
            BankEvent,
            columns,
            where="kind IN ('add', 'update', 'merge', 'drop', 'evict', 'import')",
            rounds=range(first + 1, last + 1),
        )
    found: dict[tuple[bool, str], str] = {}
    for event in events:
        kind, entry_id, number = event["kind"], event["entry_id"], event["round"]
        if kind in ("drop", "evict"):
            why = f" ({event['reason']})" if event["reason"] else ""
            found[True, entry_id] = f"{'dropped' if kind == 'drop' else 'evicted'} in round {number}{why}"
            continue
        for parent in event["parents"]:
            found[True, parent] = f"merged into {entry_id} in round {number}"
        of = f" of {', '.join(event['parents'])}" if kind == "merge" else ""
        earlier = found.get((False, entry_id))
        told = f"{kind}{of} in round {number}"
        # An entry that came in and was rewritten since has both to tell.
        found[False, entry_id] = f"{earlier}, {told}" if earlier is not None and kind == "update" else told
    return found
