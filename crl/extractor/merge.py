"""Periodic sliding merge: chunk by chunk, the extractor decides what to keep, merge or drop.

Entries are walked through from the oldest, a task family at a time or (`merge.scope: bank`) all of them in one walk. A
malformed output, or a prompt that does not fit, leaves its chunk as it is. Entries an output does not mention are kept.
What is carried from a step into the next, at its head, is a matter of `merge.carry`:

- `half`: what was newly merged, and the next entries fill the chunk. A merge takes two, so that is at most half of a
  chunk, every step reads new entries, and no prompt grows.
- `all`, as the paper: whatever a step that changed something left of its chunk, with a whole chunk of new entries
  behind it. Prompts grow until something is dropped, or until one does not fit: then its entries are left, and the walk
  goes on with the next chunk alone. A step that changed nothing is done with its entries.

Every output is a distillation of its own, and an entry it wrote is credited to it alone. Its operations are applied
before the next step, by the rules of consolidation, which the caller knows: a merge into what another entry says
already, for one, leaves its parents as they are. A merge may name an entry that an earlier step made. Families advance
side by side: one step of each is one batch.

In a walk over the whole bank a merged entry is of the family that most of its parents are of; of several such, of that
of the parent that was shown first. So is the output, of the entries that it was shown.

Entries may also come in groups, of those that resemble each other (`merge.candidates: near_duplicates`). Each group is
walked through on its own, one after the other; nothing is carried from one into the next, and entries of no group are
not shown.

The bank handed in is the one after this round's distilled operations, before eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from crl.config import DistillConfig, MergeConfig, PromptConfig, RoleConfig
from crl.extractor.outputs import (
    Distilled,
    Origin,
    SeedOf,
    distillation_row,
    generation_row,
    operation_row,
    parsed_output,
)
from crl.extractor.parse import ParsedOutput, example_texts
from crl.extractor.prompts import NO_OWN, merge_messages
from crl.protocols import Policy
from crl.records import BankEntry, Operation
from crl.run.seeds import number_of
from crl.text.outputs import Output, Prompt, prepared, room_for_prompt, sample_outputs

Applied = Callable[[Sequence[Operation]], Set[str]]
"""Applies operations to the bank that is merged; ids of those that were not rejected."""


@dataclass
class SlidingChunks:
    """The plan of one walk: which entries are shown next."""

    groups: Sequence[Sequence[str]]
    """Entry ids: all of the walk's, or those that resemble each other."""
    chunk: int
    beside: bool = False
    """Whether a whole chunk of new entries comes after what is carried, or as many as are left of the chunk."""
    _group: int = 0
    _position: int = 0
    _carried: list[str] = field(default_factory=list)

    def take(self) -> list[str] | None:
        """Entries of the next step: what was carried, then unread ones; None when nothing is left to decide.

        Nothing carried is shown again on its own, and no entry alone: such a step would decide nothing new.
        """
        while self._group < len(self.groups):
            room = self.chunk if self.beside else self.chunk - len(self._carried)
            unread = self.groups[self._group][self._position : self._position + room]
            shown = [*self._carried, *unread]
            self._position += len(unread)
            self._carried = []
            if unread and len(shown) > 1:
                return shown
            self._group, self._position = self._group + 1, 0
        return None

    def carry(self, entry_ids: Sequence[str]) -> None:
        """Entries to be shown again in the next step."""
        self._carried = list(entry_ids)


@dataclass
class _Walk:
    """The entries of one walk while they are merged."""

    name: str
    """The family, or `bank`."""
    chunks: SlidingChunks
    texts: dict[str, str]
    """Text by entry id, of the entries still there."""
    families: dict[str, str]
    episodes: dict[str, list[str]]
    step: int = 0

    def family_of(self, entry_ids: Sequence[str]) -> str:
        """The family of most of some entries; of several such, that of the first."""
        counts = Counter(self.families[entry_id] for entry_id in entry_ids)
        return counts.most_common(1)[0][0]  # of equals the one that came first


WHOLE_BANK = "bank"
"""Name of the one walk over all families; ids of its outputs bear it."""


def whole_families(entries: Iterable[BankEntry]) -> dict[str, list[list[BankEntry]]]:
    """One group per family, with all of its entries from the oldest, in the order of family names."""
    families: dict[str, list[BankEntry]] = {}
    for entry in by_age(entries):
        families.setdefault(entry.family, []).append(entry)
    return {family: [families[family]] for family in sorted(families)}


def whole_bank(entries: Iterable[BankEntry]) -> dict[str, list[list[BankEntry]]]:
    """One walk with one group: all entries from the oldest; none without an entry."""
    listed = by_age(entries)
    return {WHOLE_BANK: [listed]} if listed else {}


def by_age(entries: Iterable[BankEntry]) -> list[BankEntry]:
    """Entries from the oldest."""
    return sorted(entries, key=lambda entry: (entry.order, entry.entry_id))


def run_merge(
    policy: Policy,
    groups: Mapping[str, Sequence[Sequence[BankEntry]]],
    texts: Mapping[str, str],
    *,
    applied: Applied,
    role: RoleConfig,
    prompt: PromptConfig,
    config: MergeConfig,
    output_format: DistillConfig,
    seed_of: SeedOf,
    weights_digest: str,
    round: int,
    own: Mapping[str, PromptConfig] = NO_OWN,
) -> list[Distilled]:
    """Merge what each walk's groups hold; rows in the order their operations apply.

    `groups` are by walk (:func:`whole_families`, :func:`whole_bank`), in the order of their names, entries from the
    oldest; `texts` is by content digest. `own` holds the prompts of walks that have one of their own.
    `applied` applies the operations of a step to the bank and says which were not rejected.
    """
    origin = Origin(round, "merge", weights_digest, output_format.format, role.sampling.temperature)
    room = room_for_prompt(policy, role)
    walks = []
    for name, listed in groups.items():
        shown_ever = [entry for group in listed for entry in group]
        names = [[entry.entry_id for entry in group] for group in listed]
        walks.append(
            _Walk(
                name,
                SlidingChunks(names, config.chunk, beside=config.carry == "all"),
                {entry.entry_id: texts[entry.content_digest] for entry in shown_ever},
                {entry.entry_id: entry.family for entry in shown_ever},
                {entry.entry_id: entry.episode_ids for entry in shown_ever},
            )
        )
    results: list[Distilled] = []
    while True:
        steps = [(walk, shown) for walk in walks if (shown := walk.chunks.take()) is not None]
        if not steps:
            return results
        prompts = [
            _prompt(policy, walk, shown, own.get(walk.name, prompt), output_format, room, round, seed_of)
            for walk, shown in steps
        ]
        outputs = sample_outputs(policy, prompts, role.sampling, batch=output_format.batch)
        for (walk, shown), output in zip(steps, outputs, strict=True):
            asked = own.get(walk.name, prompt)
            results.append(_apply(walk, shown, output, origin, asked, config, output_format, applied))


def _prompt(
    policy: Policy,
    walk: _Walk,
    shown: Sequence[str],
    prompt: PromptConfig,
    config: DistillConfig,
    room: int,
    round: int,
    seed_of: SeedOf,
) -> Prompt:
    distillation_id = f"m-r{round}-{walk.name}-{walk.step}"
    walk.step += 1
    families = ", ".join(dict.fromkeys(walk.families[entry_id] for entry_id in shown))
    shown_texts = [walk.texts[entry_id] for entry_id in shown]
    messages = merge_messages(prompt, families, shown_texts, config)
    return prepared(policy, distillation_id, messages, room, seed=number_of(seed_of(distillation_id)))


def _apply(
    walk: _Walk,
    shown: Sequence[str],
    output: Output,
    origin: Origin,
    prompt: PromptConfig,
    config: MergeConfig,
    output_format: DistillConfig,
    applied: Applied,
) -> Distilled:
    examples = example_texts(prompt, output_format.format, "merge")
    parsed = parsed_output(output, origin, output_format, examples, source_count=len(shown))
    operations = _operations(walk, shown, output.prompt.name, parsed, origin)
    family = walk.family_of(shown)
    done = applied(operations)
    merged = [_follow(walk, operation) for operation in operations if operation.operation_id in done]
    new = [entry_id for entry_id in merged if entry_id is not None]
    left = [entry_id for entry_id in shown if entry_id in walk.texts]
    if config.carry == "all":
        walk.chunks.carry([*left, *new] if len(left) < len(shown) else [])
    else:
        walk.chunks.carry(new)
    distillation = distillation_row(output, origin, parsed, len(operations), family=family, source_entry_ids=shown)
    return Distilled(distillation, operations, generation_row(output, origin))


def _operations(
    walk: _Walk, shown: Sequence[str], distillation_id: str, parsed: ParsedOutput, origin: Origin
) -> list[Operation]:
    """Operations of one output: keep and drop: one per entry; a merge with its parents and their episodes."""
    operations: list[Operation] = []
    for asked in parsed.operations:
        named = [shown[index - 1] for index in asked.indices]
        if asked.kind == "merge":
            episodes = dict.fromkeys(episode for parent in named for episode in walk.episodes[parent])
            operations.append(
                operation_row(
                    distillation_id,
                    len(operations),
                    origin,
                    "merge",
                    walk.family_of([entry_id for entry_id in shown if entry_id in named]),
                    text=asked.text,
                    parents=named,
                    episode_ids=list(episodes),
                )
            )
            continue
        for entry_id in named:
            index, family = len(operations), walk.families[entry_id]
            # A keep repeats the text it keeps: the row then says all that was decided.
            text = walk.texts[entry_id] if asked.kind == "keep" else None
            operations.append(
                operation_row(distillation_id, index, origin, asked.kind, family, entry_id=entry_id, text=text)
            )
    return operations


def _follow(walk: _Walk, operation: Operation) -> str | None:
    """Do to the working copy what was done to the bank; the id of a newly merged entry."""
    entry_id = operation.entry_id or ""
    if operation.kind == "drop":
        del walk.texts[entry_id]
    if operation.kind != "merge" or operation.text is None:
        return None
    for parent in operation.parents:
        del walk.texts[parent]
    walk.texts[entry_id], walk.families[entry_id] = operation.text, operation.family
    walk.episodes[entry_id] = operation.episode_ids
    return entry_id
