"""What a round asks of the bank: the previous snapshot, the operations, and what applying them comes to.

Gathered in one place, so that what a person is shown before the bank is published, the stage that records the decision
and the stage that publishes it all speak of the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crl.bank.consolidate import Consolidated, consolidate
from crl.config import Method
from crl.recipes.stage import RowsOf
from crl.records import BankEntry, EntryScore, Operation

CHANGING = frozenset({"add", "update", "merge", "drop"})
"""Kinds of operations that ask for a change of the bank; `keep` and `return` ask for none."""


@dataclass(frozen=True)
class Proposal:
    """The operations of a round and the bank they are for."""

    method: Method
    round: int
    previous: list[BankEntry]
    operations: list[Operation]
    """Distilled operations first, then those of the merge, which were made for the bank with the former applied."""
    scores: list[EntryScore]

    @property
    def changing(self) -> list[str]:
        """Ids of the operations that ask for a change, in order: what a person decides on."""
        return [operation.operation_id for operation in self.operations if operation.kind in CHANGING]

    def applied(self, refused: Mapping[str, str] | None = None) -> Consolidated:
        """The new snapshot and its events; `refused` holds reasons by operation id."""
        return consolidate(
            self.previous,
            self.operations,
            self.scores,
            self.method.bank,
            round=self.round,
            max_characters=self.method.distill.max_characters,
            refused=refused,
        )


def proposal_of(method: Method, round_number: int, rows: RowsOf) -> Proposal:
    """Gather the rows of a round."""
    return Proposal(
        method,
        round_number,
        previous=rows(BankEntry, "consolidate", -1),
        operations=rows(Operation, "distill") + rows(Operation, "merge"),
        scores=rows(EntryScore, "credit", -1),
    )
