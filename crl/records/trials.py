"""Rows of notes that are tested before they are believed: what a trial found of a text, and where a note is masked."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row

TRIAL = "trial"
"""Stream of the episodes of a trial, guided or not, and name of the stage that plays them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Row):
    """What a trial says of one operation that writes a text: whether it may enter the bank.

    Operations of a round that write the same text for the same family share its result.
    """

    table: ClassVar[str] = "trials"
    operation_id: A[str, "operation that asks for the text"]
    round: A[int, "round of the operation"]
    family: A[str, "task family that the text was played on"]
    entry_id: A[str, "entry it would create or rewrite"]
    content_digest: A[str, "SHA-256 of the text"]
    generation_id: A[str, "extractor output that wrote it"]
    tried_round: A[int | None, "round of its episodes: this one, or an earlier one that still holds; null: untried"]
    pairs: A[int, "matched pairs: one layout, one sampling stream, with and without the note; broken ones left out"]
    wins_with: A[int, "pairs whose episode with the note was won"]
    wins_without: A[int, "pairs whose episode without it was won"]
    difference: A[float | None, "share won with the note less share won without; null without a pair"]
    admitted: A[bool, "whether the text may enter the bank"]
    reason_code: A[str, "ok, or why not: failed_trial (the difference is below the threshold) or untried"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Row):
    """The newest result of a text's trial, kept as long as it holds (`trial.holds`)."""

    table: ClassVar[str] = "trial_results"
    family: A[str, "task family it was played on"]
    content_digest: A[str, "SHA-256 of the text"]
    round: A[int, "round of the trial"]
    pairs: A[int, "matched pairs that count"]
    wins_with: A[int, "of them won with the note"]
    wins_without: A[int, "of them won without it"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextEffect(Row):
    """What a text has done in a task family: outcomes of its uses less those of unguided rollouts of the same groups.

    Entries that hold the same text share it; a rewritten entry begins anew.
    """

    table: ClassVar[str] = "text_effects"
    family: A[str, "task family of the episodes"]
    content_digest: A[str, "SHA-256 of the text"]
    count: A[float, "uses so far; with `suppress.decay` below 1 those of earlier rounds weigh less"]
    mean: A[float, "mean of guided_minus_free over them, -2 to 2"]
    spread: A[float, "sum of their squared deviations from that mean, weighted alike"]
    suppressed: A[bool, "whether the text is surely harmful there: it is then not retrieved for the family"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suppression(Row):
    """An entry of the bank that a round's searches pass over for a task family."""

    table: ClassVar[str] = "suppressions"
    family: A[str, "task family of the episodes"]
    entry_id: A[str, "entry that is not retrieved for it"]
    content_digest: A[str, "version of that entry"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CandidateUtility(Row):
    """Running utility of an entry (Skill1): U <- decay U + (1 - decay) r for every episode it was a candidate for."""

    table: ClassVar[str] = "candidate_utilities"
    entry_id: A[str, "bank entry"]
    episodes: A[int, "episodes it was retrieved for, chosen or not"]
    utility: A[float, "U, -1 to 1; 0 before the first of them"]
