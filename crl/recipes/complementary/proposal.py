"""What a round asks of the bank: the previous snapshot, the operations, and the result of applying them.

Gathered in one place, so that what a person is shown before the bank is published, the stage that records the decision
and the stage that publishes it all speak of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from crl.bank.consolidate import Consolidated, Rules, closed, consolidate
from crl.bank.duplicates import SimilarPairs
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.credit.trials import REASONS, trial_refusals
from crl.recipes.complementary.partitions import capacities_of, partitions_of
from crl.recipes.complementary.resembling import recorded_resemblances
from crl.records import TRIAL, EntryScore, Operation, Resemblance, Trial
from crl.rounds.stage import RowsOf

SCORES = "scores"
"""Name of the read of the entries' scores so far."""
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
    scores: list[EntryScore]
    resemblances: list[Resemblance]
    failed: Mapping[str, str]
    """Why operations change nothing before anybody is asked, by id: :func:`disbelieved`."""

    @property
    def changing(self) -> list[str]:
        """Ids of the operations that ask for a change, in order: what a person decides on."""
        return [name for name in changing(self.operations) if self.failed.get(name) not in REASONS]

    def applied(self, refused: Mapping[str, str] | None = None) -> Consolidated:
        """The new snapshot and its events; `refused` holds reasons by operation id."""
        return consolidate(
            self.previous,
            self.operations,
            self.scores,
            rules_of(self.method),
            round=self.round,
            refused=refused,
            failed=self.failed,
            resemblances=self.resemblances,
        )


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


def changing(operations: Iterable[Operation]) -> list[str]:
    """Ids of the operations that ask for a change of the bank, in order."""
    return [operation.operation_id for operation in operations if operation.kind in CHANGING]


def operations_of(rows: RowsOf) -> list[Operation]:
    """What a round asks of the bank, in order of application."""
    return rows(Operation, "distill") + rows(Operation, "merge")


def refused_by_trial(method: Method, rows: RowsOf) -> dict[str, str]:
    """Reasons by id of the operations whose text a trial keeps out; none where notes are not tried."""
    # Recipes of other kinds have a bank, too, and know no trials.
    return {} if getattr(method.recipe, "trial", None) is None else trial_refusals(rows(Trial, TRIAL))


def disbelieved(
    method: Method, round_number: int, rows: RowsOf, bank: Snapshot, distilled: Sequence[Operation], alike: SimilarPairs
) -> dict[str, str]:
    """Why distilled operations change nothing since notes are tried, by id; none where they are not.

    What the bank would reject with every note believed stays rejected: a text that repeats one that failed was not
    tried, and does not come in its place.
    """
    failed = refused_by_trial(method, rows)
    if not failed:
        return {}
    return {**closed(bank, distilled, rules_of(method), alike, {}, round=round_number), **failed}


def proposal_of(method: Method, round_number: int, rows: RowsOf, bank: Callable[[], Snapshot]) -> Proposal:
    """Gather the rows of a round; `bank` gives the one that they are for."""
    # The operations first: of a round that has not come so far, that is what there is to say.
    operations = operations_of(rows)
    alike = recorded_resemblances(method, rows)
    distilled, previous = rows(Operation, "distill"), bank()
    failed = disbelieved(method, round_number, rows, previous, distilled, SimilarPairs(alike))
    return Proposal(method, round_number, previous, operations, rows(EntryScore, SCORES), alike, failed)
