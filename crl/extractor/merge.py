"""Periodic sliding merge (section 5): chunk by chunk, the extractor decides what to keep, merge or drop.

Each task family is walked through from its oldest entry. A step shows `chunk` entries; what was newly merged is
carried into the next step, at its head, with the next entries behind it. At most half of a chunk can be carried (a
merge takes two), so every step reads new entries. A malformed output, or a prompt that does not fit, leaves its chunk
as it is. Entries an output does not mention are kept.

Every output is a distillation of its own, and an entry it wrote is credited to it alone. Its operations are applied
before the next step, by the rules of consolidation, which the caller knows: a merge into what another entry says
already, for one, leaves its parents as they are. A merge may name an entry that an earlier step made. Families advance
side by side: one step of each is one batch.

A family may also come in groups, of entries that resemble each other (`merge.candidates: near_duplicates`). Each group
is walked through like a family, one after the other; nothing is carried from one into the next, and entries of no group
are not shown.

The bank handed in is the one after this round's distilled operations, before eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from crl.config import Method
from crl.extractor.outputs import (
    Distilled,
    Origin,
    Output,
    Prompt,
    SeedOf,
    distillation_row,
    generation_row,
    not_sampled,
    operation_row,
    room_for_prompt,
    sample_outputs,
)
from crl.extractor.parse import ParsedOutput, example_texts, parse_output
from crl.extractor.prompts import merge_messages
from crl.protocols import Policy
from crl.records import BankEntry, Operation

Applied = Callable[[Sequence[Operation]], Set[str]]
"""Applies operations to the bank that is merged; ids of those that were not rejected."""


@dataclass
class SlidingChunks:
    """The plan of one family's merge: which entries are shown next."""

    groups: Sequence[Sequence[str]]
    """Entry ids: the whole family, or those that resemble each other."""
    chunk: int
    _group: int = 0
    _position: int = 0
    _carried: list[str] = field(default_factory=list)

    def take(self) -> list[str] | None:
        """Entries of the next step: what was carried, then unread ones; None when nothing is left to decide.

        Nothing carried is shown again on its own, and no entry alone: such a step would decide nothing new.
        """
        while self._group < len(self.groups):
            room = self.chunk - len(self._carried)
            unread = self.groups[self._group][self._position : self._position + room]
            shown = [*self._carried, *unread]
            self._position += len(unread)
            self._carried = []
            if unread and len(shown) > 1:
                return shown
            self._group, self._position = self._group + 1, 0
        return None

    def carry(self, entry_ids: Sequence[str]) -> None:
        """Entries newly merged in the step before."""
        self._carried = list(entry_ids)


@dataclass
class _Family:
    """One family's bank while it is merged."""

    name: str
    chunks: SlidingChunks
    texts: dict[str, str]
    """Text by entry id, of the entries still there."""
    episodes: dict[str, list[str]]
    step: int = 0


def whole_families(entries: Iterable[BankEntry]) -> dict[str, list[list[BankEntry]]]:
    """A group a family, with all of its entries from the oldest, in the order of family names."""
    families: dict[str, list[BankEntry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.order, entry.entry_id)):
        families.setdefault(entry.family, []).append(entry)
    return {family: [families[family]] for family in sorted(families)}


def run_merge(
    policy: Policy,
    groups: Mapping[str, Sequence[Sequence[BankEntry]]],
    texts: Mapping[str, str],
    *,
    applied: Applied,
    method: Method,
    seed_of: SeedOf,
    weights_digest: str,
    round: int,
) -> list[Distilled]:
    """Merge what each family's groups hold; rows in the order their operations apply.

    `groups` are by family, the families in the order of their names, entries from the oldest; `texts` is by content
    digest. `applied` applies the operations of a step to the bank and says which were not rejected.
    """
    role = method.extractor
    origin = Origin(round, "merge", weights_digest, method.distill.format, role.sampling.temperature)
    room = room_for_prompt(policy, role)
    families = []
    for name, listed in groups.items():
        shown_ever = [entry for group in listed for entry in group]
        families.append(
            _Family(
                name,
                SlidingChunks([[entry.entry_id for entry in group] for group in listed], method.merge.chunk),
                {entry.entry_id: texts[entry.content_digest] for entry in shown_ever},
                {entry.entry_id: entry.episode_ids for entry in shown_ever},
            )
        )
    results: list[Distilled] = []
    while True:
        steps = [(family, shown) for family in families if (shown := family.chunks.take()) is not None]
        if not steps:
            return results
        prompts = [_prompt(policy, family, shown, method, room, round) for family, shown in steps]
        outputs = sample_outputs(policy, prompts, role.sampling, seed_of, batch=method.distill.batch)
        for (family, shown), output in zip(steps, outputs, strict=True):
            results.append(_apply(family, shown, output, origin, method, applied))


def _prompt(policy: Policy, family: _Family, shown: Sequence[str], method: Method, room: int, round: int) -> Prompt:
    distillation_id = f"m-r{round}-{family.name}-{family.step}"
    family.step += 1
    shown_texts = [family.texts[entry_id] for entry_id in shown]
    messages = merge_messages(method.prompts.merge, family.name, shown_texts, method.distill)
    token_ids = policy.chat.opening(messages)
    return Prompt(distillation_id, messages, token_ids if len(token_ids) <= room else None)


def _apply(
    family: _Family, shown: Sequence[str], output: Output, origin: Origin, method: Method, applied: Applied
) -> Distilled:
    if output.sampled is None:
        parsed = not_sampled(origin)
    else:
        parsed = parse_output(
            output.text,
            format=method.distill.format,
            max_operations=method.distill.max_operations,
            max_characters=method.distill.max_characters,
            kind="merge",
            source_count=len(shown),
            truncated=output.truncated,
            examples=example_texts(method.prompts.merge, method.distill.format, "merge"),
        )
    operations = _operations(family, shown, output.prompt.distillation_id, parsed, origin)
    done = applied(operations)
    made = [_follow(family, operation) for operation in operations if operation.operation_id in done]
    family.chunks.carry([entry_id for entry_id in made if entry_id is not None])
    distillation = distillation_row(output, origin, parsed, len(operations), family=family.name, source_entry_ids=shown)
    return Distilled(distillation, operations, generation_row(output, origin))


def _operations(
    family: _Family, shown: Sequence[str], distillation_id: str, parsed: ParsedOutput, origin: Origin
) -> list[Operation]:
    """Operations of one output: keep and drop one an entry, a merge with its parents and their episodes."""
    operations: list[Operation] = []
    for asked in parsed.operations:
        named = [shown[index - 1] for index in asked.indices]
        if asked.kind == "merge":
            episodes = dict.fromkeys(episode for parent in named for episode in family.episodes[parent])
            operations.append(
                operation_row(
                    distillation_id,
                    len(operations),
                    origin,
                    "merge",
                    family.name,
                    text=asked.text,
                    parents=named,
                    episode_ids=list(episodes),
                )
            )
            continue
        for entry_id in named:
            index = len(operations)
            # A keep repeats the text it keeps: the row then says all that was decided.
            text = family.texts[entry_id] if asked.kind == "keep" else None
            operations.append(
                operation_row(distillation_id, index, origin, asked.kind, family.name, entry_id=entry_id, text=text)
            )
    return operations


def _follow(family: _Family, operation: Operation) -> str | None:
    """Do to the working copy what was done to the bank; the id of a newly merged entry."""
    entry_id = operation.entry_id or ""
    if operation.kind == "drop":
        del family.texts[entry_id]
    if operation.kind != "merge" or operation.text is None:
        return None
    for parent in operation.parents:
        del family.texts[parent]
    family.texts[entry_id] = operation.text
    family.episodes[entry_id] = operation.episode_ids
    return entry_id
