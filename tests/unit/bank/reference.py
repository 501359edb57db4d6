"""Consolidation the plain way, over a dict of all entries: what the columnar one is compared with.

It was the implementation while banks were small. Every rule stands here once more, without an index, an overlay or a
column, so that the two can only agree where both are right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from crl.bank.consolidate import Rejection
from crl.bank.segments import text_digest
from crl.config import BankConfig
from crl.records import BankEntry, BankEvent, EntryScore, Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A new snapshot and how it came about."""

    entries: list[BankEntry]
    """By `order`; those with a new text have an empty `segment` and `embedding_file`."""
    events: list[BankEvent]
    new_texts: dict[str, str]
    """Texts by content digest that the snapshot needs and the previous one did not hold."""


def reference(
    previous: Iterable[BankEntry],
    operations: Sequence[Operation],
    scores: Iterable[EntryScore],
    config: BankConfig,
    *,
    round: int,
    max_characters: int,
    evict: bool = True,
    refused: Mapping[str, str] | None = None,
    alike: Mapping[tuple[str, str], float] | None = None,
    anywhere: bool = False,
) -> Reference:
    """Apply a round's operations to a snapshot; pure and deterministic.

    `scores` are read by `least_useful` only; entries without a row count as unused. `evict` False previews the bank
    that the merge stage works on: capacity is enforced once, after everything else. `refused` holds reasons by
    operation id: these operations change nothing, whatever they ask for. `alike` holds the cosine of texts that
    resemble each other, by their digests, both ways round; `anywhere`: entries of other families count too. Raises
    ValueError for a previous entry without a segment.
    """
    previous, reasons = list(previous), dict(refused or {})
    near = dict(alike or {}) if config.duplicates == "near" else {}
    if reasons:
        shown = _Bank(previous, round, max_characters, config.duplicates, near, anywhere)
        for operation in operations:
            shown.apply(operation)
        reasons = {**shown.rejections(), **reasons}
    bank = _Bank(previous, round, max_characters, config.duplicates, near, anywhere)
    for operation in operations:
        bank.apply(operation, reasons.get(operation.operation_id))
    if evict:
        bank.evict(config, {score.entry_id: score for score in scores})
    return bank.result()


class _Bank:
    """The snapshot while a round's operations are applied."""

    def __init__(
        self,
        previous: Iterable[BankEntry],
        round: int,
        max_characters: int,
        duplicates: str,
        near: Mapping[tuple[str, str], float],
        anywhere: bool,
    ) -> None:
        self._near, self._anywhere, self._refuses_near = near, anywhere, duplicates == "near"
        self._round, self._max_characters, self._twins = round, max_characters, duplicates == "keep"
        listed = sorted(previous, key=lambda entry: (entry.order, entry.entry_id))
        for entry in listed:
            if not entry.segment:
                raise ValueError(f"entry {entry.entry_id} has no segment: snapshots need segments.with_files first")
        self._entries = {entry.entry_id: entry for entry in listed}
        self._files = {entry.content_digest: (entry.segment, entry.embedding_file) for entry in listed}
        self._holders: dict[tuple[str, str], set[str]] = {}
        for entry in listed:
            self._hold(entry)
        self._next_order = max((entry.order for entry in listed), default=-1) + 1
        self._events: list[BankEvent] = []
        self._texts: dict[str, str] = {}
        self._appliers: dict[str, Callable[[Operation], Rejection | None]] = {
            "add": self._add,
            "update": self._update,
            "merge": self._merge,
            "drop": self._drop,
            "keep": self._keep,
            "return": self._return,
        }

    def apply(self, operation: Operation, refusal: str | None = None) -> None:
        """Apply one operation, unless it was refused: one event."""
        applier = self._appliers.get(operation.kind)
        rejection: str | None = refusal
        if rejection is None:
            rejection = Rejection.unknown_kind if applier is None else applier(operation)
        if rejection is not None:
            known = self._entries.get(operation.entry_id or "")
            digest = None if known is None else known.content_digest
            repeats = self._repeated(operation) if rejection in ("duplicate", "near_duplicate", "unchanged") else None
            self._event("rejected", operation, digest, digest, reason=rejection, repeats=repeats)

    def _repeated(self, operation: Operation) -> str | None:
        """The entry that says the text of a rejected operation: that which was to be updated, else the oldest that
        holds it, else the one that resembles it most."""
        digest = text_digest(operation.text or "")
        holding = [
            entry
            for entry in self._entries.values()
            if (entry.family, entry.content_digest) == (operation.family, digest)
            and (operation.kind != "merge" or entry.entry_id not in operation.parents)
        ]
        holding.sort(key=lambda entry: (entry.entry_id != operation.entry_id, entry.order))
        return holding[0].entry_id if holding else self._resembled(operation)

    def _resembled(self, operation: Operation) -> str | None:
        """The entry that resembles the text most, the oldest of equals; those that it replaces do not count."""
        if not self._refuses_near:
            return None
        digest = text_digest(operation.text or "")
        replaced = operation.parents if operation.kind == "merge" else [operation.entry_id]
        near = {**self._near, (digest, digest): 1.0}
        found = [
            (-near[digest, entry.content_digest], entry.order, entry.entry_id)
            for entry in self._entries.values()
            if (digest, entry.content_digest) in near
            and entry.entry_id not in replaced
            and (self._anywhere or entry.family == operation.family)
        ]
        return min(found)[2] if found else None

    def rejections(self) -> dict[str, str]:
        """Reason by id of the operations that were rejected so far."""
        return {
            event.operation_id: event.reason
            for event in self._events
            if event.kind == "rejected" and event.operation_id is not None and event.reason is not None
        }

    def evict(self, config: BankConfig, scores: Mapping[str, EntryScore]) -> None:
        """Enforce the capacity of every family."""

        def usefulness(entry: BankEntry) -> tuple[bool, float, int]:
            score = scores.get(entry.entry_id)
            value = 0.0 if score is None else score.mean_outcome * score.uses / (score.uses + 1)
            if score is not None and score.content_digest != entry.content_digest and value < 0:
                value = 0.0
            return entry.updated_round == self._round, value, entry.order

        by_family: dict[str, list[BankEntry]] = {}
        for entry in self._entries.values():
            by_family.setdefault(entry.family, []).append(entry)
        for family in sorted(by_family):
            listed = by_family[family]
            if config.eviction == "fifo":
                listed = sorted(listed, key=lambda entry: entry.order)
            else:
                listed = sorted(listed, key=usefulness)
            reason = f"capacity_{config.eviction}"
            for entry in listed[: max(0, len(listed) - config.capacity)]:
                self._remove(entry)
                self._event("evict", None, entry.content_digest, None, entry=entry, reason=reason)

    def result(self) -> Reference:
        """The snapshot as it stands."""
        entries = sorted(self._entries.values(), key=lambda entry: entry.order)
        needed = {entry.content_digest for entry in entries if not entry.segment}
        return Reference(entries, list(self._events), {digest: self._texts[digest] for digest in sorted(needed)})

    def _add(self, operation: Operation) -> Rejection | None:
        entry_id = operation.entry_id
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if not entry_id or entry_id in self._entries:
            return Rejection.entry_exists if entry_id else Rejection.unknown_entry
        if not self._twins and self._holders.get((operation.family, digest)):
            return Rejection.duplicate
        if self._resembled(operation) is not None:
            return Rejection.near_duplicate
        self._create(operation, entry_id, digest, operation.episode_ids, [])
        self._event("add", operation, None, digest)
        return None

    def _update(self, operation: Operation) -> Rejection | None:
        entry = self._target(operation)
        if isinstance(entry, Rejection):
            return entry
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if digest == entry.content_digest:
            return Rejection.unchanged
        if not self._twins and self._holders.get((operation.family, digest)):
            return Rejection.duplicate
        if self._resembled(operation) is not None:
            return Rejection.near_duplicate
        self._remove(entry)
        segment, embedding_file = self._files.get(digest, ("", ""))
        self._put(
            dataclasses.replace(
                entry,
                content_digest=digest,
                segment=segment,
                embedding_file=embedding_file,
                version=entry.version + 1,
                updated_round=self._round,
                operation_id=operation.operation_id,
                distillation_id=operation.distillation_id,
                generation_id=operation.generation_id,
                episode_ids=_union(entry.episode_ids, operation.episode_ids),
                embedder_cut=bool(operation.embedder_cut),
            )
        )
        self._event("update", operation, entry.content_digest, digest)
        return None

    def _merge(self, operation: Operation) -> Rejection | None:
        entry_id = operation.entry_id
        digest = self._acceptable_text(operation)
        if isinstance(digest, Rejection):
            return digest
        if not entry_id or entry_id in self._entries:
            return Rejection.entry_exists if entry_id else Rejection.unknown_entry
        if not operation.parents or len(set(operation.parents)) < len(operation.parents):
            return Rejection.bad_parents
        parents = [self._entries[parent] for parent in operation.parents if parent in self._entries]
        if len(parents) < len(operation.parents):
            return Rejection.unknown_entry
        if any(parent.family != operation.family for parent in parents):
            return Rejection.other_family
        if not self._twins and self._holders.get((operation.family, digest), set()) - set(operation.parents):
            return Rejection.duplicate
        if self._resembled(operation) is not None:
            return Rejection.near_duplicate
        for parent in parents:
            self._remove(parent)
        episodes = _union(*(parent.episode_ids for parent in parents), operation.episode_ids)
        self._create(operation, entry_id, digest, episodes, operation.parents)
        self._event("merge", operation, None, digest, parents=operation.parents)
        return None

    def _drop(self, operation: Operation) -> Rejection | None:
        entry = self._target(operation)
        if isinstance(entry, Rejection):
            return entry
        self._remove(entry)
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
        entry = self._entries.get(operation.entry_id or "")
        if entry is None:
            return Rejection.unknown_entry
        return entry if entry.family == operation.family else Rejection.other_family

    def _acceptable_text(self, operation: Operation) -> str | Rejection:
        """Digest of the operation's text, which is remembered, or why it cannot stand in a bank."""
        text = operation.text or ""
        if not text.strip():
            return Rejection.empty_text
        if len(text) > self._max_characters:
            return Rejection.text_too_long
        try:
            digest = text_digest(text)
        except UnicodeEncodeError:
            return Rejection.bad_text
        self._texts[digest] = text
        return digest

    def _create(
        self, operation: Operation, entry_id: str, digest: str, episodes: Iterable[str], parents: Iterable[str]
    ) -> None:
        segment, embedding_file = self._files.get(digest, ("", ""))
        self._put(
            BankEntry(
                entry_id=entry_id,
                family=operation.family,
                content_digest=digest,
                segment=segment,
                embedding_file=embedding_file,
                version=1,
                created_round=self._round,
                updated_round=self._round,
                order=self._next_order,
                operation_id=operation.operation_id,
                distillation_id=operation.distillation_id,
                generation_id=operation.generation_id,
                episode_ids=_union(episodes),
                parents=list(parents),
                embedder_cut=bool(operation.embedder_cut),
            )
        )
        self._next_order += 1

    def _put(self, entry: BankEntry) -> None:
        self._entries[entry.entry_id] = entry
        self._hold(entry)

    def _hold(self, entry: BankEntry) -> None:
        self._holders.setdefault((entry.family, entry.content_digest), set()).add(entry.entry_id)

    def _remove(self, entry: BankEntry) -> None:
        del self._entries[entry.entry_id]
        self._holders[(entry.family, entry.content_digest)].discard(entry.entry_id)

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


def _union(*lists: Iterable[str]) -> list[str]:
    """Each item once, in order of first appearance."""
    return list(dict.fromkeys(item for items in lists for item in items))
