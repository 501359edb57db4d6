"""How a bank differs: what a round did to it, or would do, or what became of it between two rounds; texts and reasons.

:func:`bank_diff` is about a committed round. :func:`proposed_diff` is about a round whose bank is not published yet: it
applies the recorded operations in memory; nothing is written. :func:`net_diff` compares the banks of two rounds: what
came and went in between is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crl.bank.changes import summary_of
from crl.bank.segments import load_texts, text_digest
from crl.bank.snapshot import Snapshot
from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted
from crl.records import BankEvent, Operation, rows_of, rows_with
from crl.report.bank import banked_round, banked_rounds
from crl.report.story import reason_words
from crl.report.terminal import Listing
from crl.report.view_files import Tables
from crl.report.views import query
from crl.rounds.bank_tables import publishing_stage, tables_of
from crl.rounds.context import BANK
from crl.rounds.proposal import Proposal, proposal_of
from crl.rounds.recipe import recipe_in, recorded_bank, recorded_rows
from crl.rounds.stage import PUBLISHES, maker_of
from crl.run.directory import RunDirectory
from crl.text.unicode import hidden_in

_MOST_NAMED = 5
_KINDS = {
    "import": "imported",
    "add": "added",
    "update": "updated",
    "merge": "merged",
    "remove": "removed",
    "drop": "dropped",
    "evict": "evicted",
    "rejected": "rejected",
}
KINDS: tuple[str, ...] = tuple(_KINDS.values())
"""Kinds of changes, in the order they are shown; of a net difference, those that are added, updated or removed."""


@dataclass(frozen=True, slots=True)
class Parent:
    """An entry that a merge replaced."""

    entry_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the bank, or one that was asked for and not made."""

    kind: str
    """One of :data:`KINDS`."""
    entry_id: str | None
    family: str | None
    operation_id: str | None
    """Operation behind it; None for an eviction."""
    asked: str | None
    """Kind of that operation: add, update, merge, drop."""
    before: str | None
    """Text of the entry before; None where there was none."""
    after: str | None
    """Text of the entry after; None where it is gone or was never made."""
    wanted: str | None
    """Text that a rejected operation asked for."""
    parents: tuple[Parent, ...]
    """Entries merged into it; of a rejected merge, those that stay."""
    reason: str | None
    """Why it was rejected or evicted; of a net difference, how the entry came in, was rewritten or left."""
    repeats: str | None = None
    """Of a rejected duplicate, the entry that holds the text already."""
    version_before: int | None = None
    """Of a net difference, the version of the entry in the older bank."""
    version_after: int | None = None


@dataclass(frozen=True, slots=True)
class BankDiff:
    """The changes of one round, in order of application; or the net difference of two rounds, by kind and age."""

    round: int
    proposed: bool
    """Whether the bank of the round is not published yet."""
    size_before: int
    """Entries."""
    size_after: int
    changes: tuple[Change, ...]
    since: int | None = None
    """Of a net difference, the older round."""

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def counts(self) -> dict[str, int]:
        """How many changes of each kind; kinds without any are left out."""
        return {kind: len(found) for kind in KINDS if (found := self.of(kind))}

    def summary(self) -> str:
        """One line: `12 → 15 entries: added 4, merged 1, evicted 1`."""
        told = ", ".join(f"{kind} {count}" for kind, count in self.counts().items()) or "no change"
        hidden = self.hidden()
        more = f"; HIDDEN CHARACTERS in {len(hidden)}: {'; '.join(hidden[:_MOST_NAMED])}" if hidden else ""
        return f"{self.size_before} → {self.size_after} entries: {told}{more}"

    def hidden(self) -> list[str]:
        """The new texts in which there is more than is seen (zero-width, direction, tag characters), and what."""
        texts = ((each.operation_id or each.entry_id, each.after or each.wanted) for each in self.changes)
        return [f"{name} has {found}" for name, text in texts if text is not None and (found := hidden_in(text))]

    def headline(self) -> str:
        """Which round it is, and :meth:`summary`."""
        if self.since is not None:
            return f"bank from round {self.since} to round {self.round}: {self.summary()}"
        return f"bank of round {self.round}{', as proposed' if self.proposed else ''}: {self.summary()}"


def bank_diff(run_path: Path, round_number: int) -> BankDiff:
    """What a committed round did to the bank; of round 0, the entries the experiment started with.

    Raises BadInput where the round has published no bank, RecordDamaged where a file is not what was committed.
    """
    run = RunDirectory.open(run_path)
    recipe = recipe_in(run)
    place = publishing_stage(recipe, run.method, round_number)
    if place is None or place[0] != round_number or not run.is_complete(*place):
        known = banked_rounds(run, recipe)
        raise BadInput(
            f"round {round_number} of {run_path} has published no bank",
            expected=f"a round from {known[0]} to {known[-1]}" if known else "a round whose `consolidate` is complete",
            next_step=f"`crl status {quoted(run_path)}` says what is complete",
        )
    proposal = load_proposal(run, round_number)
    events = rows_of(BankEvent, run.read(*place, BankEvent))
    size = summary_of(round_number, tables_of(recipe, run.method, run.read)).entries
    # No operation holds the texts that an experiment began with: its first bank does.
    first = {} if round_number else load_texts(run.path, recorded_bank(run, recipe, 0).table)
    return _diff(run, proposal, events, size_after=size, proposed=False, known=first)


def proposed_diff(run_path: Path, round_number: int, refused: Mapping[str, str] | None = None) -> BankDiff:
    """What publishing the bank of a round would do, with the operations in `refused` (id to reason) left out.

    Raises BadInput where the round has not come so far, RecordDamaged where a file is not what was committed.
    """
    run = RunDirectory.open(run_path)
    proposal = load_proposal(run, round_number)
    applied = proposal.applied(refused)
    return _diff(run, proposal, applied.events, size_after=applied.size, proposed=True)


def load_proposal(run: RunDirectory, round_number: int) -> Proposal:
    """The operations of a round and the bank they are for, from the record. Raises BadInput, RecordDamaged."""
    recipe = recipe_in(run)
    made_by, method = maker_of(recipe, run.method, round_number)
    stage = next((each for each in made_by.stages if each.name == PUBLISHES), None)
    if stage is None:
        raise BadInput(f"recipe {recipe.name} keeps no bank", expected="a recipe with the stage `consolidate`")

    def bank() -> Snapshot:
        place = publishing_stage(recipe, run.method, round_number, stage.read(BANK).offset)
        return Snapshot.of(round_number, []) if place is None else recorded_bank(run, recipe, place[0])

    rows = recorded_rows(run, recipe, round_number, stage)
    return proposal_of(made_by, method, round_number, rows, bank, run.path)


def net_diff(run_path: Path, first: int, last: int) -> BankDiff:
    """What became of the bank between two rounds.

    Raises BadInput where a round has no bank or the rounds are not in order, RecordDamaged.
    """
    if first >= last:
        raise BadInput(
            f"there is nothing between round {first} and round {last}",
            expected="the older round first",
            next_step=f"crl bank diff {quoted(run_path)} {min(first, last)} {max(first, last)}"
            if first > last
            else f"`crl bank diff {quoted(run_path)} {first}` says what round {first} did",
        )
    run = RunDirectory.open(run_path)
    recipe = recipe_in(run)
    for number in (first, last):
        banked_round(run, recipe, number)
    rounds = {"first": first, "last": last}
    sizes = dict(query(run_path, "SELECT round, entries FROM bank_snapshots", until=last)[1])
    how = _reasons(run_path, first, last)
    changes = tuple(
        Change(kind, entry_id, family, None, None, before, after, None, (), how.get((kind == "removed", entry_id)),
               version_before=old, version_after=new)
        for kind, entry_id, family, before, after, old, new in query(run_path, _NET, rounds, until=last)[1]
    )  # fmt: skip
    return BankDiff(last, False, sizes[first], sizes[last], changes, since=first)


_NET = """
SELECT
    if(change = 'changed', 'updated', change) AS kind, entry_id, diff.family, text_before, text_after,
    version_before, version_after
FROM bank_diff($first, $last) AS diff JOIN bank USING (entry_id)
WHERE bank.round = if(change = 'removed', $first, $last) AND text_before IS DISTINCT FROM text_after
ORDER BY list_position(['added', 'updated', 'removed'], kind), bank."order"
"""


def _reasons(run_path: Path, first: int, last: int) -> dict[tuple[bool, str], str]:
    """How entries came in or were rewritten (False) and how they left (True): the last event of either kind."""
    with Tables(run_path) as tables:
        events = tables.select(
            BankEvent,
            ["kind", "entry_id", "round", "parents", "reason", "repeats"],
            where="kind IN ('add', 'update', 'merge', 'drop', 'evict', 'import')",
            rounds=range(first + 1, last + 1),
        )
    found: dict[tuple[bool, str], str] = {}
    for event in events:
        kind, entry_id, number = event["kind"], event["entry_id"], event["round"]
        if kind in ("drop", "evict"):
            why = f" ({reason_words(event['reason'], event['repeats'])})" if event["reason"] else ""
            found[True, entry_id] = f"{_KINDS[kind]} in round {number}{why}"
            continue
        for parent in event["parents"] if kind == "merge" else ():
            found[True, parent] = f"merged into {entry_id} in round {number}"
        of = f" of {', '.join(event['parents'])}" if event["parents"] else ""
        of = f" as a version{of}" if of and kind == "add" else of
        earlier = found.get((False, entry_id))
        told = f"{kind}{of} in round {number}"
        # An entry that came in and was rewritten since has both to tell.
        found[False, entry_id] = f"{earlier}, {told}" if earlier is not None and kind == "update" else told
    return found


def diff_listing(diff: BankDiff) -> Listing:
    """The changes for a terminal: one row per change, grouped by kind."""
    # One operation is behind a change of a round; a net difference may have several, which it names in words.
    columns = ["change", "operation", "entry", "family", "experience"]
    if diff.since is not None:
        columns = ["change", "entry", "family", "how", "experience"]
    rows = []
    for change in (change for kind in KINDS for change in diff.of(kind)):
        cells = {"change": change.kind, "operation": change.operation_id, "entry": change.entry_id,
                 "family": change.family, "how": change.reason, "experience": change_words(change)}  # fmt: skip
        rows.append([cells[name] or "–" for name in columns])
    return Listing(columns, rows, words={"how", "experience"}, packed=True)


def change_words(change: Change) -> str:
    """A change in words and texts, on one line or more."""
    lines = []
    if change.kind == "rejected":
        lines.append(
            f"{change.asked or 'operation'}: {reason_words(change.reason or 'no reason given', change.repeats)}"
        )
        if change.wanted is not None:
            lines.append(f"wanted: {change.wanted}")
        elif change.before is not None:
            lines.append(f"stays: {change.before}")
    elif change.after is None:
        lines.append(f"was: {change.before}")
        if change.reason and change.kind != "removed":
            lines.append(f"why: {change.reason}")
    else:
        lines.append(change.after or "")
        if change.before is not None:
            lines = [f"was: {change.before}", f"now: {change.after or ''}"]
    lines += [f"from {parent.entry_id}: {parent.text}" for parent in change.parents]
    return "\n".join(lines)


def _diff(
    run: RunDirectory,
    proposal: Proposal,
    events: Sequence[BankEvent],
    *,
    size_after: int,
    proposed: bool,
    known: Mapping[str, str] | None = None,
) -> BankDiff:
    operations = {operation.operation_id: operation for operation in proposal.operations}
    texts = {**(known or {}), **_texts(run, proposal, events)}
    previous = proposal.previous.table
    state = dict(zip(*(previous[name].to_pylist() for name in ("entry_id", "content_digest")), strict=True))
    changes = []
    for event in events:
        if event.kind in _KINDS:
            changes.append(_change(event, operations.get(event.operation_id or ""), state, texts))
        if event.kind == "rejected" or event.entry_id is None:
            continue
        for parent in event.parents:
            state.pop(parent, None)
        if event.after_digest is None:
            state.pop(event.entry_id, None)
        else:
            state[event.entry_id] = event.after_digest
    return BankDiff(proposal.round, proposed, len(proposal.previous), size_after, tuple(changes))


def _change(
    event: BankEvent, operation: Operation | None, state: Mapping[str, str], texts: Mapping[str, str]
) -> Change:
    refused = event.kind == "rejected"
    # The event of a refused merge has no parents: nothing was merged. Those it named are shown all the same.
    parents = operation.parents if refused and operation is not None and operation.kind == "merge" else event.parents
    return Change(
        kind=_KINDS[event.kind],
        entry_id=event.entry_id,
        family=event.family,
        operation_id=event.operation_id,
        asked=None if operation is None else operation.kind,
        before=_text(event, event.before_digest, texts),
        after=_text(event, event.after_digest, texts),
        wanted=operation.text if refused and operation is not None else None,
        parents=tuple(Parent(name, texts[state[name]]) for name in parents if name in state),
        reason=event.reason,
        repeats=event.repeats,
    )


def _texts(run: RunDirectory, proposal: Proposal, events: Iterable[BankEvent]) -> dict[str, str]:
    """Every text the changes speak of, by digest: from the previous snapshot and from the operations."""
    named = {name for event in events for name in (event.entry_id, *event.parents) if name is not None}
    named |= {parent for operation in proposal.operations for parent in operation.parents}
    previous = proposal.previous.table
    spoken_of = rows_with(previous, "entry_id", named)
    texts = load_texts(run.path, spoken_of)
    for operation in proposal.operations:
        if operation.text:
            try:
                texts[text_digest(operation.text)] = operation.text
            except UnicodeEncodeError:
                continue  # such a text is rejected: nothing refers to it by digest
    return texts


def _text(event: BankEvent, digest: str | None, texts: Mapping[str, str]) -> str | None:
    if digest is None:
        return None
    if digest not in texts:
        raise RecordDamaged(
            f"the text {digest} of bank event {event.event_id} is in no segment and no operation of the round",
            expected="every text an event names",
            where=event.event_id,
            next_step="run `crl verify` on the run",
        )
    return texts[digest]
