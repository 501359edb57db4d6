"""What a round asks of the bank: the snapshot before, the operations, and the bank that comes of them.

This is the one preview of a bank: what new texts are tried against, what a merge goes on with, what a person is shown,
what the stage that records the decision and the stage that publishes the bank go by all speak of the same rows.

Task families divide the bank: whose entries may guide an episode, and how many a family may hold. A family keeps to
its own entries or shares with all others that share; `retrieval.scope` decides for those that say nothing of it
(`bank`: they share). Where all share, the whole bank is searched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crl.bank.consolidate import Consolidated, Consolidation, Rules, closed, consolidate
from crl.bank.duplicates import SimilarPairs
from crl.bank.retrieve import Partition
from crl.bank.segments import load_texts
from crl.bank.snapshot import Snapshot
from crl.config import FamilyConfig, Method
from crl.records import OUTDONE, EntryScore, Operation, Resemblance
from crl.rounds.context import StageContext
from crl.rounds.stage import Recipe, RowsOf, nothing_refused, nothing_tried

CHANGING = frozenset({"add", "update", "merge", "drop"})
"""Kinds of operations that ask for a change of the bank; `keep` and `return` ask for none."""


@dataclass(frozen=True)
class Proposal:
    """The operations of a round and the bank they are for."""

    method: Method
    round: int
    previous: Snapshot
    operations: list[Operation]
    """Distilled operations first, then those of the merge, which were made for the bank with the former applied."""
    resemblances: list[Resemblance]
    refused: Mapping[str, str]
    """Reasons by id of operations that the recipe keeps out before anybody is asked (`Recipe.refused`)."""
    failed: Mapping[str, str]
    """With these, what the bank would reject of the distilled operations if none was kept out but those of outdone
    outputs: what repeats a text that was kept out does not come in its place."""
    scores: Sequence[EntryScore]
    rules: Rules

    @property
    def changing(self) -> list[str]:
        """Ids of the operations that ask for a change, in order: what a person decides on."""
        return changing(self.operations, self.refused)

    def preview(self, alike: SimilarPairs | None = None) -> Consolidation:
        """The bank with the operations applied, before eviction: for more operations to follow.

        `alike` holds the pairs of texts that resemble each other where more may be found.
        """
        alike = SimilarPairs(self.resemblances) if alike is None else alike
        shown = Consolidation(self.previous, self.rules, alike, self.scores, round=self.round)
        shown.apply(self.operations, self.failed)
        return shown

    def applied(self, refused: Mapping[str, str] | None = None) -> Consolidated:
        """The new snapshot and its events; `refused` holds the reasons of a person by operation id."""
        return consolidate(
            self.previous,
            self.operations,
            self.scores,
            self.rules,
            round=self.round,
            refused=refused,
            failed=self.failed,
            resemblances=self.resemblances,
        )


def proposal_of(
    recipe: Recipe, method: Method, round_number: int, rows: RowsOf, bank: Callable[[], Snapshot], run_path: Path
) -> Proposal:
    """Gather what a round of a recipe asks for; `bank` gives the one that it is for, whose texts are in the run."""
    return _proposal(method, round_number, rows, bank, recipe, ("distill", "merge"), run_path)


def distilled_proposal(ctx: StageContext, *, believed: bool = False) -> Proposal:
    """What the outputs of the round's stage `distill` ask for, to a stage that comes before the merge; `believed`: as
    if the recipe kept nothing out."""
    recipe = dataclasses.replace(ctx.recipe, refused=nothing_refused, tried=nothing_tried) if believed else ctx.recipe
    return _proposal(ctx.method, ctx.round, ctx.rows, ctx.bank, recipe, ("distill",), ctx.run_path)


def _proposal(
    method: Method,
    round_number: int,
    rows: RowsOf,
    bank: Callable[[], Snapshot],
    recipe: Recipe,
    stages: Sequence[str],
    run_path: Path,
) -> Proposal:
    # The operations first: of a round that has not come so far, that is what there is to say.
    of_stage = [rows(Operation, stage) for stage in stages]
    alike, previous = recorded_resemblances(method, rows, stages), bank()
    refused, tried = recipe.refused(rows), recipe.tried(rows)
    rules = dataclasses.replace(rules_of(method), texts=partial(load_texts, run_path), tried=tried)
    # Without proven entries they are for eviction alone, which follows the merge.
    scored = rules.bank.proven is not None or "merge" in stages
    failed, scores = dict(refused), recipe.scores(rows) if scored else []
    if refused:
        pairs = SimilarPairs(alike)
        # Outputs about one episode stand for each other: what the chosen one asks for does not repeat another's.
        outdone = {name: reason for name, reason in refused.items() if reason == OUTDONE}
        failed = {**closed(previous, of_stage[0], rules, pairs, outdone, scores, round=round_number), **refused}
    operations = [operation for listed in of_stage for operation in listed]
    return Proposal(method, round_number, previous, operations, alike, refused, failed, scores, rules)


def changing(operations: Iterable[Operation], refused: Mapping[str, str]) -> list[str]:
    """Ids of the operations that ask for a change of the bank and are not `refused`, in order."""
    return [row.operation_id for row in operations if row.kind in CHANGING and row.operation_id not in refused]


def operations_of(rows: RowsOf) -> list[Operation]:
    """What a round asks of the bank, in order of application."""
    return rows(Operation, "distill") + rows(Operation, "merge")


def recorded_resemblances(
    method: Method, rows: RowsOf, stages: Sequence[str] = ("distill", "merge")
) -> list[Resemblance]:
    """What the round's texts resemble, as its stages wrote it; nothing where near-duplicates are not refused."""
    if method.recipe.bank_use().bank.duplicates != "near":
        return []
    return [row for stage in stages for row in rows(Resemblance, stage)]


def rules_of(method: Method) -> Rules:
    """What decides about operations in a method."""
    use = method.recipe.bank_use()
    return Rules(
        use.bank,
        use.max_characters,
        resemblance_anywhere=use.search_whole,
        partitions=partitions_of(method),
        capacities=capacities_of(method),
        merges_across=use.merges_across,
    )


def partitions_of(method: Method) -> dict[str, Partition]:
    """By family: the families whose entries may guide its episodes; None: those of the whole bank."""
    names = [family.name for family in method.families]
    sharing = tuple(family.name for family in method.families if _shares(method, family))
    shared: Partition = None if len(sharing) == len(names) else sharing
    return {name: shared if name in sharing else (name,) for name in names}


def capacities_of(method: Method) -> dict[str, int]:
    """Entries that a family may hold, of those that have a capacity of their own."""
    return {
        family.name: family.bank.capacity
        for family in method.families
        if family.bank is not None and family.bank.capacity is not None
    }


def _shares(method: Method, family: FamilyConfig) -> bool:
    own = None if family.bank is None else family.bank.partition
    return method.recipe.bank_use().search_whole if own is None else own == "shared"


def with_cuts(ctx: StageContext, operations: Sequence[Operation]) -> list[Operation]:
    """The operations, each saying whether the embedder reads all of its text."""
    texts = sorted({operation.text for operation in operations if operation.text is not None})
    cut = dict(zip(texts, ctx.services.embedder().cuts(texts), strict=True)) if texts else {}
    return [
        operation if operation.text is None else dataclasses.replace(operation, embedder_cut=cut[operation.text])
        for operation in operations
    ]
