"""Consolidation: operations applied to a bank snapshot, as a pure function.

Operations are applied in the order given (the recipe's: distilled ones in episode order, then those of the merge). Each
leaves exactly one event, each eviction one more; nothing else changes the bank. What cannot be applied is an event
`rejected` with its reason and changes nothing. Where the reason is that an entry says it already, the event names that
entry in `repeats`: for `duplicate` the oldest entry of the family that holds the text, for `unchanged` the very entry
that was to be updated, for `near_duplicate` the one that resembles the text most (the oldest of equals), always in the
bank as it is at that operation.

- *add* makes a new entry. A text the family already holds is rejected, unless `duplicates: keep`: an entry then stands
  for an output, so that every output that writes the text can be used, scored and trained. With `duplicates: near` a
  text that resembles an entry's is rejected as well (appendix C.2), and so is the very text of another family where
  other families count: what resembles what comes in as rows (`Resemblance`), so nothing here needs an embedder. An
  entry that is updated or merged away does not count.
- *update* rewrites an entry of the same family in place: `entry_id`, `order` and `created_round` stay, `version` grows,
  the episodes of the new text join those of the old. Of two updates of one entry in a round the second sees the first.
- *merge* makes a new entry in place of its parents, with the episodes of all of them; it is as new as an added one. Its
  parents are of its own family unless merges go across families (`merge.scope: bank`).
- *drop* removes, *keep* and *return* change nothing.
- *Proven* entries (`bank.proven`) are not replaced by a text that nobody has tried. An update of one makes an entry of
  its own, by an event `add` whose parent is the proven entry, which stays: as long as it does, the new entry is a
  version that waits beside it, one at a time. Once the version has guided as many games as prove a text, one of the two
  is evicted: the older one where the newer won as often, else the newer one. No merge or drop takes a proven entry. An
  update that was tried beside it in this round, and won as often, replaces it at once.
- With `bank.merge_contained` a text that says less than another of its family (`contained.py`) is refused, and an entry
  that says less than a new text is evicted; unless it is proven: then the new text waits beside it. The event names the
  entry that says more in `repeats`.
- *Eviction* comes last, a family at a time: see `evict.py`. What is proven goes last.

What a person refused (`refused`) is an event `rejected` too. It can let nothing in that was not shown to them: an
operation that is rejected when nothing is refused (a second copy of a refused text, say) stays rejected.

`order` grows with every add and merge; among families it is one sequence. What happens in one family does not depend on
how its operations are interleaved with another's, nor on the order of `previous` or `scores`.

A bank may hold a million entries: they stay columns, and only what operations name is looked at (`overlay.py`).
This file leaves out texts and embeddings: entries with a new text have empty paths until `segments.with_files` fills
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.changes import Change, applied, change_rows
from crl.bank.contained import Contained
from crl.bank.duplicates import SimilarPairs
from crl.bank.evict import evict as make_room
from crl.bank.evict import proves
from crl.bank.overlay import Overlay, new_row, updated_row
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.records import BankEntry, BankEvent, EntryScore, Operation, Resemblance, rows_with


class Rejection(StrEnum):
    """Why an operation changed nothing."""

    unknown_kind = "unknown_kind"
    unknown_entry = "unknown_entry"
    other_family = "other_family"
    entry_exists = "entry_exists"
    duplicate = "duplicate"
    near_duplicate = "near_duplicate"
    unchanged = "unchanged"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    bad_parents = "bad_parents"
    contained = "contained"
    proven = "proven"
    version_waits = "version_waits"


class Leaving(StrEnum):
    """Why an entry was evicted, other than for room; the event names, in `repeats`, the one that stays."""

    contained = "contained"
    newer_version = "newer_version"
    """Its newer version won as often."""
    older_version = "older_version"
    """The version that it waited to replace won more often."""


WAITS = "waits_beside"
"""Reason of an `add` that makes a version of its parents, which are proven."""
REPEATS = (Rejection.duplicate, Rejection.near_duplicate, Rejection.unchanged, Rejection.contained)
"""Rejections whose event names, in `repeats`, the entry that says it already."""


class Refusal(Exception):
    """Why one operation changes nothing: a :class:`Rejection`, or what a person said."""

    def __init__(self, reason: str, repeats: str | None = None) -> None:
        """`repeats`: the entry that says it already, where that is the reason."""
        super().__init__(reason)
        self.reason, self.repeats = reason, repeats


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


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What decides about an operation, beside the bank."""

    bank: BankConfig
    max_characters: int
    resemblance_anywhere: bool = False
    """Whether a text must resemble no entry of any family, or none of its own (`retrieval.scope`)."""
    partitions: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    """By family: those no entry of which its texts may resemble (None: all), where that is not as for the others."""
    capacities: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By family: entries that it may hold; of others `bank.capacity`."""
    merges_across: bool = False
    """Whether a merge may have parents of other families."""
    texts: Callable[[pa.Table], Mapping[str, str]] = lambda entries: {}
    """Texts of rows of a bank by digest; asked for with `bank.merge_contained` only."""
    tried: Mapping[tuple[str, str], tuple[int, int]] = dataclasses.field(default_factory=dict)
    """By task family and digest: the pairs and the wins of each text that was tried in this round, on the same layouts.
    """


def consolidate(
    previous: Snapshot,
    operations: Sequence[Operation],
    scores: Sequence[EntryScore],
    rules: Rules,
    *,
    round: int,
    evict: bool = True,
    refused: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
    resemblances: Iterable[Resemblance] = (),
) -> Consolidated:
    """Apply a round's operations to a snapshot; pure and deterministic.

    `scores` are read by `least_useful` and `proven` only; entries without a row are unused. `evict` False previews the
    bank that the merge stage works on: capacity is enforced once, after everything else. `refused` holds reasons by
    operation id: these operations change nothing, whatever they ask for. `failed` likewise holds those that were out
    before anybody was asked. `resemblances` are read by `duplicates: near`. Raises ValueError for a previous entry
    without a segment.
    """
    alike = SimilarPairs(resemblances)
    reasons = dict(failed or {})
    if refused:
        reasons = {**closed(previous, operations, rules, alike, reasons, scores, round=round), **refused}
    bank = Consolidation(previous, rules, alike, scores, round=round)
    bank.apply(operations, reasons)
    if evict:
        bank.evict()
    return bank.result()


def closed(
    previous: Snapshot,
    operations: Sequence[Operation],
    rules: Rules,
    alike: SimilarPairs,
    refused: Mapping[str, str],
    scores: Iterable[EntryScore] = (),
    *,
    round: int,
) -> dict[str, str]:
    """Reasons by id of every operation that changes nothing where `refused` do not.

    Whoever refuses more of the operations together with these lets nothing in that would not have come in before: the
    second copy of a refused text stays a duplicate.
    """
    shown = Consolidation(previous, rules, alike, scores, round=round)
    shown.apply(operations, refused)
    return shown.rejections()


def version_id(operation: Operation) -> str:
    """Id of the entry that an update of a proven entry makes."""
    return f"x-{operation.operation_id}"


def _check_placed(snapshot: Snapshot) -> None:
    unplaced = snapshot.table["entry_id"].filter(pc.equal(snapshot.table["segment"], ""))
    if len(unplaced):
        raise ValueError(f"entry {unplaced[0]} has no segment: snapshots need segments.with_files first")


def _digest(text: str) -> str | None:
    """Digest of a text; None where it cannot be written as UTF-8 (a lone surrogate)."""
    try:
        return text_digest(text)
    except UnicodeEncodeError:
        return None


class Consolidation:
    """A snapshot while operations are applied to it, all at once or some now and some later."""

    def __init__(
        self,
        previous: Snapshot,
        rules: Rules,
        alike: SimilarPairs,
        scores: Iterable[EntryScore] = (),
        *,
        round: int,
    ) -> None:
        """Raises ValueError for a previous entry without a segment."""
        _check_placed(previous)
        asked = rules.bank.proven is not None or rules.bank.eviction == "least_useful"
        self._scores = {score.entry_id: score for score in scores} if asked else {}
        self._contained: dict[str, Contained] = {}
        self._bank, self._rules, self._alike, self._round = Overlay(previous), rules, alike, round
        self._events: list[BankEvent] = []
        self._texts: dict[str, str] = {}
        self._appliers: dict[str, Callable[[Operation], None]] = {
            "add": self._add,
            "update": self._update,
            "merge": self._merge,
            "drop": self._drop,
            "keep": self._keep,
            "return": self._return,
        }
        self._versions = self._waiting_versions() if rules.bank.proven is not None else {}

    def apply(self, operations: Sequence[Operation], refused: Mapping[str, str] | None = None) -> list[BankEvent]:
        """Apply operations in their order; the event of each. `refused` holds reasons by operation id."""
        self._look_up(operations)
        before = len(self._events)
        for operation in operations:
            self._apply(operation, (refused or {}).get(operation.operation_id))
        return self._events[before:]

    def _look_up(self, operations: Iterable[Operation]) -> None:
        """Find the entries and texts that operations name, and those that the texts resemble."""
        entry_ids: list[str] = []
        digests: list[str] = []
        for operation in operations:
            entry_ids += [*operation.parents, *([operation.entry_id] if operation.entry_id else [])]
            digest = _digest(operation.text or "")
            digests += [] if digest is None else [digest, *self._alike.of(digest)]
        self._bank.look_up(entry_ids, digests)

    def _apply(self, operation: Operation, refused: str | None) -> None:
        try:
            if refused is not None:
                raise self._foretold(operation, refused)
            if operation.kind not in self._appliers:
                raise Refusal(Rejection.unknown_kind)
            self._appliers[operation.kind](operation)
        except Refusal as refusal:
            known = self._bank.get(operation.entry_id)
            digest = None if known is None else known.content_digest
            self._event("rejected", operation, digest, digest, reason=refusal.reason, repeats=refusal.repeats)

    def rejections(self) -> dict[str, str]:
        """Reason by id of the operations that were rejected so far."""
        return {
            event.operation_id: event.reason
            for event in self._events
            if event.kind == "rejected" and event.operation_id is not None and event.reason is not None
        }

    def evict(self) -> None:
        """Choose between versions, then enforce the capacity of every family."""
        config = self._rules.bank
        self._choose_versions()
        for entry in make_room(self._bank, config, self._scores, round=self._round, capacities=self._rules.capacities):
            reason = f"capacity_{config.eviction}"
            self._event("evict", None, entry.content_digest, None, entry=entry, reason=reason)

    def result(self) -> Consolidated:
        """The snapshot as it is."""
        changes = self._bank.changes()
        needed = {each.after.content_digest for each in changes if each.after is not None and not each.after.segment}
        texts = {digest: self._texts[digest] for digest in sorted(needed)}
        return Consolidated(self._bank.snapshot, self._round, changes, list(self._events), texts)

    def _foretold(self, operation: Operation, reason: str) -> Refusal:
        """The refusal of an operation that is not tried: a person refused it, or something that it builds on."""
        if reason not in REPEATS:
            return Refusal(reason)
        # What it repeats may be what the person refused: then nothing in the bank says it.
        digest = _digest(operation.text or "")
        if digest is not None and operation.entry_id in self._bank.holders(operation.family, digest):
            return Refusal(reason, operation.entry_id)
        repeated = None if digest is None else self._repeated(operation, digest)
        return Refusal(reason, None if repeated is None else repeated.repeats)

    def _add(self, operation: Operation) -> None:
        digest = self._acceptable_text(operation)
        entry_id = self._new_id(operation)
        self._check_new(operation, digest)
        self._put(operation, entry_id, digest, self._that_say_less(operation, digest))

    def _update(self, operation: Operation) -> None:
        entry = self._target(operation)
        digest = self._acceptable_text(operation)
        if digest == entry.content_digest:
            raise Refusal(Rejection.unchanged, entry.entry_id)
        self._check_new(operation, digest)
        less = [each for each in self._that_say_less(operation, digest) if each.entry_id != entry.entry_id]
        if self._proven(entry) and not self._won_trial(entry, digest):
            if self._bank.get(self._versions.get(entry.entry_id)) is not None:
                raise Refusal(Rejection.version_waits)
            self._put(operation, version_id(operation), digest, [entry, *less])
            return
        self._bank.replace(entry, updated_row(self._bank, operation, entry, digest, round=self._round))
        self._event("update", operation, entry.content_digest, digest)
        self._evict(less, Leaving.contained, entry.entry_id)

    def _merge(self, operation: Operation) -> None:
        digest = self._acceptable_text(operation)
        entry_id = self._new_id(operation)
        if not operation.parents or len(set(operation.parents)) < len(operation.parents):
            raise Refusal(Rejection.bad_parents)
        parents = [entry for parent in operation.parents if (entry := self._bank.get(parent)) is not None]
        if len(parents) < len(operation.parents):
            raise Refusal(Rejection.unknown_entry)
        if not self._rules.merges_across and any(parent.family != operation.family for parent in parents):
            raise Refusal(Rejection.other_family)
        if any(map(self._proven, parents)):
            raise Refusal(Rejection.proven)
        self._check_new(operation, digest)
        for parent in parents:
            self._bank.remove(parent)
        self._bank.add(new_row(self._bank, operation, entry_id, digest, parents, round=self._round))
        self._event("merge", operation, None, digest, parents=operation.parents)
        less = [each for each in self._that_say_less(operation, digest) if not self._proven(each)]
        self._evict([each for each in less if each.entry_id != entry_id], Leaving.contained, entry_id)

    def _put(self, operation: Operation, entry_id: str, digest: str, less: Sequence[BankEntry]) -> None:
        """Add an entry in place of those that say `less`; those of them that are proven stay, and it waits beside
        them."""
        older = [entry for entry in less if self._proven(entry)]
        row = new_row(self._bank, operation, entry_id, digest, older, round=self._round)
        self._bank.add(row)
        self._versions |= dict.fromkeys(row.parents, entry_id)
        self._event(
            "add", operation, None, digest, entry=row, parents=row.parents, reason=WAITS if row.parents else None
        )
        self._evict([entry for entry in less if entry not in older], Leaving.contained, entry_id)

    def _evict(self, entries: Iterable[BankEntry], reason: Leaving, stays: str) -> None:
        for entry in entries:
            self._bank.remove(entry)
            self._event("evict", None, entry.content_digest, None, entry=entry, reason=reason, repeats=stays)

    def _drop(self, operation: Operation) -> None:
        entry = self._target(operation)
        if self._proven(entry):
            raise Refusal(Rejection.proven)
        self._bank.remove(entry)
        self._event("drop", operation, entry.content_digest, None)

    def _keep(self, operation: Operation) -> None:
        entry = self._target(operation)
        self._event("keep", operation, entry.content_digest, entry.content_digest)

    def _return(self, operation: Operation) -> None:
        self._event("return", operation, None, None)

    def _target(self, operation: Operation) -> BankEntry:
        entry = self._bank.get(operation.entry_id)
        if entry is None:
            raise Refusal(Rejection.unknown_entry)
        if entry.family != operation.family:
            raise Refusal(Rejection.other_family)
        return entry

    # -- proven entries and their versions; texts that say less ----------------------------------------------------

    def _score(self, entry: BankEntry) -> EntryScore | None:
        """Of the entry's present text."""
        score = self._scores.get(entry.entry_id)
        return score if score is not None and score.content_digest == entry.content_digest else None

    def _proven(self, entry: BankEntry) -> bool:
        return proves(self._scores.get(entry.entry_id), entry.content_digest, self._rules.bank)

    def _won_trial(self, entry: BankEntry, digest: str) -> bool:
        """Whether a text was tried beside that of an entry and won as large a share of its games, of as many, or of
        more because the entry was not ahead and was given up."""
        old, new = (self._rules.tried.get((entry.family, each), (0, 0)) for each in (entry.content_digest, digest))
        return 0 < old[0] <= new[0] and new[1] * old[0] >= old[1] * new[0]

    def _waiting_versions(self) -> dict[str, str]:
        """The newest version that waits beside an entry, by the entry's id, of the bank before."""
        table = self._bank.snapshot.table
        derived = table.filter(pc.greater(pc.list_value_length(table["parents"]), 0)).select(["entry_id", "parents"])
        pairs = [(parent, row["entry_id"]) for row in derived.to_pylist() for parent in row["parents"]]
        self._bank.look_up([name for pair in pairs for name in pair], ())
        return {older: newer for older, newer in pairs if self._bank.get(older) is not None}

    def _choose_versions(self) -> None:
        """Of a version that was tried often enough and an entry that it waits to replace, evict one."""
        config = self._rules.bank.proven
        if config is None:
            return
        for older_id, newer_id in sorted(self._versions.items()):
            older, newer = self._bank.get(older_id), self._bank.get(newer_id)
            if older is None or newer is None:
                continue
            before, now = self._score(older), self._score(newer)
            if before is None or now is None or now.uses < config.uses:
                continue
            if now.mean_outcome >= before.mean_outcome:
                self._evict([older], Leaving.newer_version, newer_id)
            else:
                self._evict([newer], Leaving.older_version, older_id)

    def _that_say_less(self, operation: Operation, digest: str) -> list[BankEntry]:
        """Entries of the family that say less than a text, by age."""
        if not self._rules.bank.merge_contained:
            return []
        known = self._texts_of(operation.family)
        found = self._held(operation, known.that_say_less(self._texts[digest]) - {digest})
        known.add(digest, self._texts[digest])
        return found

    def _held(self, operation: Operation, digests: set[str]) -> list[BankEntry]:
        """Entries of the operation's family that hold one of some texts, by age."""
        self._bank.look_up((), digests)
        names = [name for digest in digests for name in self._bank.holders(operation.family, digest)]
        self._bank.look_up(names, ())
        entries = [entry for name in names if (entry := self._bank.get(name)) is not None]
        return sorted(entries, key=lambda entry: entry.order)

    def _texts_of(self, family: str) -> Contained:
        if family not in self._contained:
            rows = rows_with(self._bank.snapshot.table, "family", [family])
            self._contained[family] = Contained(self._rules.texts(rows))
        return self._contained[family]

    def _new_id(self, operation: Operation) -> str:
        if not operation.entry_id or self._bank.get(operation.entry_id) is not None:
            raise Refusal(Rejection.entry_exists if operation.entry_id else Rejection.unknown_entry)
        return operation.entry_id

    def _check_new(self, operation: Operation, digest: str) -> None:
        if (repeated := self._repeated(operation, digest)) is not None:
            raise repeated

    def _repeated(self, operation: Operation, digest: str) -> Refusal | None:
        """The refusal of a text that the bank says already, in an entry that the operation does not replace."""
        duplicates, bank = self._rules.bank.duplicates, self._bank
        replaced = set(operation.parents) if operation.kind == "merge" else {operation.entry_id}
        for holder in bank.holders(operation.family, digest) if duplicates != "keep" else ():
            if holder not in replaced:
                return Refusal(Rejection.duplicate, holder)
        if self._rules.bank.merge_contained:
            more = self._texts_of(operation.family).that_say_more(operation.text or "") - {digest}
            for entry in self._held(operation, more):
                if entry.entry_id not in replaced:
                    return Refusal(Rejection.contained, entry.entry_id)
        if duplicates != "near":
            return None
        shared = None if self._rules.resemblance_anywhere else (operation.family,)
        partition = self._rules.partitions.get(operation.family, shared)
        families: Sequence[str | None] = (None,) if partition is None else partition
        # The same text resembles itself most: that of another family is no `duplicate`, but no less the same text.
        alike = {digest: 1.0, **self._alike.of(digest)}
        nearest = [
            (-similarity, bank.order_of(holder, other), holder)
            for other, similarity in alike.items()
            for family in families
            for holder in bank.holders(family, other)
            if holder not in replaced
        ]
        return Refusal(Rejection.near_duplicate, min(nearest)[2]) if nearest else None

    def _acceptable_text(self, operation: Operation) -> str:
        """Digest of the operation's text, which is remembered; raises Refusal where it cannot be in a bank."""
        text = operation.text or ""
        if not text.strip():
            raise Refusal(Rejection.empty_text)
        if len(text) > self._rules.max_characters:
            raise Refusal(Rejection.text_too_long)
        digest = _digest(text)
        if digest is None:
            raise Refusal(Rejection.bad_text)
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
        about = entry or operation
        family = None if about is None else about.family
        entry_id = None if about is None else about.entry_id
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
