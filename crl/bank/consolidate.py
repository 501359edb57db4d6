"""Consolidation: operations applied to a bank snapshot, as a pure function.

Operations are applied in the order given (the recipe's: distilled ones in episode order, then those of the merge). Each
leaves exactly one event, each eviction one more; nothing else changes the bank. What cannot be applied is an event
`rejected` with its reason and changes nothing. Where the reason is that an entry of the family holds the text already
(`duplicate`, or `unchanged`: the very entry that was to be updated), the event names that entry in `repeats`: the
oldest such entry of the bank as it stands at that operation.

- *add* makes a new entry. A text the family already holds is rejected, unless `duplicates: keep`: an entry then stands
  for an output, so that every output that writes the text can be used, scored and trained.
- *update* rewrites an entry of the same family in place: `entry_id`, `order` and `created_round` stay, `version` grows,
  the episodes of the new text join those of the old. Of two updates of one entry in a round the second sees the first.
- *merge* makes a new entry in place of its parents, with the episodes of all of them; it is as new as an added one.
- *drop* removes, *keep* and *return* change nothing.
- *Eviction* comes last, a family at a time: see `evict.py`.

What a person refused (`refused`) is an event `rejected` too. It can let nothing in that was not shown to them: an
operation that is rejected when nothing is refused (the twin of a refused text, say) stays rejected.

`order` grows with every add and merge; among families it is one sequence. What happens in one family does not depend on
how its operations are interleaved with another's, nor on the order of `previous` or `scores`.

A bank may hold a million entries: they stay columns, and only what operations name is looked at (`overlay.py`).
This file leaves out texts and embeddings: entries with a new text have empty paths until `segments.place` fills them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import pyarrow.compute as pc

from crl.bank.changes import Change, applied, change_rows
from crl.bank.evict import evict as make_room
from crl.bank.overlay import Named, Overlay, named_in, new_row, updated_row
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.records import BankEntry, BankEvent, EntryScore, Operation


class Rejection(StrEnum):
    """Why an operation changed nothing."""

    unknown_kind = "unknown_kind"
    unknown_entry = "unknown_entry"
    other_family = "other_family"
    entry_exists = "entry_exists"
    duplicate = "duplicate"
    unchanged = "unchanged"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    bad_parents = "bad_parents"


REPEATS = (Rejection.duplicate, Rejection.unchanged)
"""Rejections whose event names, in `repeats`, the entry that holds the text already."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Refusal:
    """Why an operation changed nothing."""

    reason: str
    repeats: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Consolidated:
    """A new snapshot and how it came about."""

    previous: Snapshot
    round: int
    changes: list[Change]
    """What became of every entry that changed, in order of entry ids; new texts have an empty `segment` and
    `embedding_file`."""
    events: list[BankEvent]
    new_texts: dict[str, str]
    """Texts by content digest that the snapshot needs and the previous one did not hold."""

    @property
    def size(self) -> int:
        """Entries of the new snapshot."""
        came = sum(change.before is None for change in self.changes)
        return len(self.previous) + came - sum(change.after is None for change in self.changes)

    @property
    def snapshot(self) -> Snapshot:
        """The new snapshot."""
        return Snapshot(self.round, applied(self.previous.table, [change_rows(self.changes)]))


def consolidate(
    previous: Snapshot,
    operations: Sequence[Operation],
    scores: Iterable[EntryScore],
    config: BankConfig,
    *,
    round: int,
    max_characters: int,
    evict: bool = True,
    refused: Mapping[str, str] | None = None,
) -> Consolidated:
    """Apply a round's operations to a snapshot; pure and deterministic.

    `scores` are read by `least_useful` only; entries without a row count as unused. `evict` False previews the bank
    that the merge stage works on: capacity is enforced once, after everything else. `refused` holds reasons by
    operation id: these operations change nothing, whatever they ask for. Raises ValueError for a previous entry without
    a segment.
    """
    _check_placed(previous)
    named = _named(previous, operations)
    reasons = dict(refused or {})
    if reasons:
        shown = _Bank(named, config, round, max_characters)
        for operation in operations:
            shown.apply(operation)
        reasons = {**shown.rejections(), **reasons}
    bank = _Bank(named, config, round, max_characters)
    for operation in operations:
        bank.apply(operation, reasons.get(operation.operation_id))
    if evict:
        bank.evict(scores)
    return bank.result()


def _check_placed(snapshot: Snapshot) -> None:
    unplaced = snapshot.table["entry_id"].filter(pc.equal(snapshot.table["segment"], ""))
    if len(unplaced):
        raise ValueError(f"entry {unplaced[0]} has no segment: snapshots go through segments.place first")


def _named(previous: Snapshot, operations: Iterable[Operation]) -> Named:
    """The entries and texts that operations name."""
    entry_ids: list[str] = []
    digests: list[str] = []
    for operation in operations:
        entry_ids += [*operation.parents, *([operation.entry_id] if operation.entry_id else [])]
        digest = _digest(operation.text or "")
        digests += [] if digest is None else [digest]
    return named_in(previous, entry_ids, digests)


def _digest(text: str) -> str | None:
    """Digest of a text; None where it cannot be written as UTF-8 (a lone surrogate)."""
    try:
        return text_digest(text)
    except UnicodeEncodeError:
        return None


class _Bank:
    """The snapshot while a round's operations are applied."""

    def __init__(self, named: Named, config: BankConfig, round: int, max_characters: int) -> None:
        self._bank, self._config, self._round, self._max_characters = Overlay(named), config, round, max_characters
        self._events: list[BankEvent] = []
        self._texts: dict[str, str] = {}
        self._appliers: dict[str, Callable[[Operation], Rejection | _Refusal | None]] = {
            "add": self._add,
            "update": self._update,
            "merge": self._merge,
            "drop": self._drop,
            "keep": self._keep,
            "return": self._return,
        }

    def apply(self, operation: Operation, refusal: str | None = None) -> None:
        """Apply one operation, unless it was refused: one event."""
        found: Rejection | _Refusal | None
        if refusal is not None:
            found = self._foretold(operation, refusal)
        else:
            applier = self._appliers.get(operation.kind)
            found = Rejection.unknown_kind if applier is None else applier(operation)
        if found is not None:
            refused = found if isinstance(found, _Refusal) else _Refusal(found)
            known = self._bank.get(operation.entry_id)
            digest = None if known is None else known.content_digest
            self._event("rejected", operation, digest, digest, reason=refused.reason, repeats=refused.repeats)

    def rejections(self) -> dict[str, str]:
        """Reason by id of the operations that were rejected so far."""
        return {
            event.operation_id: event.reason
            for event in self._events
            if event.kind == "rejected" and event.operation_id is not None and event.reason is not None
        }

    def evict(self, scores: Iterable[EntryScore]) -> None:
        """Enforce the capacity of every family."""
        config = self._config
        by_entry = {score.entry_id: score for score in scores} if config.eviction == "least_useful" else {}
        for entry in make_room(self._bank, config, by_entry, round=self._round):
            reason = f"capacity_{config.eviction}"
            self._event("evict", None, entry.content_digest, None, entry=entry, reason=reason)

    def result(self) -> Consolidated:
        """The snapshot as it stands."""
        changes = self._bank.changes()
        needed = {each.after.content_digest for each in changes if each.after is not None and not each.after.segment}
        texts = {digest: self._texts[digest] for digest in sorted(needed)}
        return Consolidated(self._bank.named.snapshot, self._round, changes, list(self._events), texts)

    def _foretold(self, operation: Operation, reason: str) -> _Refusal:
        """The refusal of an operation that is not tried: a person refused it, or something that it stands on."""
        if reason not in REPEATS:
            return _Refusal(reason)
        # The text it repeats may be one that the person refused: then nothing in the bank holds it.
        digest = _digest(operation.text or "")
        holders = [] if digest is None else self._bank.holders(operation.family, digest)
        if operation.entry_id in holders:
            return _Refusal(reason, operation.entry_id)
        return _Refusal(reason, next((each for each in holders if each not in operation.parents), None))

    def _add(self, operation: Operation) -> Rejection | _Refusal | None:
        entry_id = operation.entry_id
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if not entry_id or self._bank.get(entry_id) is not None:
            return Rejection.entry_exists if entry_id else Rejection.unknown_entry
        if (duplicate := self._duplicate(operation, digest)) is not None:
            return duplicate
        self._bank.add(new_row(self._bank, operation, entry_id, digest, round=self._round))
        self._event("add", operation, None, digest)
        return None

    def _update(self, operation: Operation) -> Rejection | _Refusal | None:
        entry = self._target(operation)
        if isinstance(entry, Rejection):
            return entry
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if digest == entry.content_digest:
            return _Refusal(Rejection.unchanged, entry.entry_id)
        if (duplicate := self._duplicate(operation, digest)) is not None:
            return duplicate
        self._bank.replace(entry, updated_row(self._bank, operation, entry, digest, round=self._round))
        self._event("update", operation, entry.content_digest, digest)
        return None

    def _merge(self, operation: Operation) -> Rejection | _Refusal | None:
        entry_id = operation.entry_id
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if not entry_id or self._bank.get(entry_id) is not None:
            return Rejection.entry_exists if entry_id else Rejection.unknown_entry
        if not operation.parents or len(set(operation.parents)) < len(operation.parents):
            return Rejection.bad_parents
        parents = [entry for parent in operation.parents if (entry := self._bank.get(parent)) is not None]
        if len(parents) < len(operation.parents):
            return Rejection.unknown_entry
        if any(parent.family != operation.family for parent in parents):
            return Rejection.other_family
        if (duplicate := self._duplicate(operation, digest)) is not None:
            return duplicate
        for parent in parents:
            self._bank.remove(parent)
        self._bank.add(new_row(self._bank, operation, entry_id, digest, parents, round=self._round))
        self._event("merge", operation, None, digest, parents=operation.parents)
        return None

    def _drop(self, operation: Operation) -> Rejection | None:
        entry = self._target(operation)
        if isinstance(entry, Rejection):
            return entry
        self._bank.remove(entry)
        self._event("drop", operation, entry.content_digest, None)
        return None

    def _keep(self, operation: Operation) -> Rejection | None:
        entry = self._target(operation)
        if isinstance(entry, Rejection):
            return entry
        self._event("keep", operation, entry.content_digest, entry.content_digest)
        return None

    def _return(self, operation: Operation) -> Rejection | None:
        self._event("return", operation, None, None)
        return None

    def _target(self, operation: Operation) -> BankEntry | Rejection:
        entry = self._bank.get(operation.entry_id)
        if entry is None:
            return Rejection.unknown_entry
        return entry if entry.family == operation.family else Rejection.other_family

    def _duplicate(self, operation: Operation, digest: str) -> _Refusal | None:
        """The refusal of a text that an entry of the family holds already, but for those it is to replace."""
        if self._config.duplicates == "keep":
            return None
        replaced = operation.parents if operation.kind == "merge" else ()
        holder = next((each for each in self._bank.holders(operation.family, digest) if each not in replaced), None)
        return None if holder is None else _Refusal(Rejection.duplicate, holder)

    def _acceptable_text(self, operation: Operation) -> str | Rejection:
        """Digest of the operation's text, which is remembered, or why it cannot stand in a bank."""
        text = operation.text or ""
        if not text.strip():
            return Rejection.empty_text
        if len(text) > self._max_characters:
            return Rejection.text_too_long
        digest = _digest(text)
        if digest is None:
            return Rejection.bad_text
        self._texts[digest] = text
        return digest

    def _event(
        self,
        kind: str,
        operation: Operation | None,
        before: str | None,
        after: str | None,
        *,
        entry: BankEntry | None = None,
        parents: Iterable[str] = (),
        reason: str | None = None,
        repeats: str | None = None,
    ) -> None:
        family = operation.family if operation else entry.family if entry else None
        entry_id = operation.entry_id if operation else entry.entry_id if entry else None
        self._events.append(
            BankEvent(
                event_id=f"r{self._round}-e{len(self._events)}",
                round=self._round,
                kind=kind,
                entry_id=entry_id,
                family=family,
                operation_id=operation.operation_id if operation else None,
                before_digest=before,
                after_digest=after,
                parents=list(parents),
                reason=None if reason is None else str(reason),
                repeats=repeats,
            )
        )
