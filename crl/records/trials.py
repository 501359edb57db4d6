"""Rows of experiences that are tested before they are believed: what a trial found of a text, and where an experience
is masked."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row, Rules

TRIAL = "trial"
"""Stream of the episodes of a trial, guided or not, and name of the stage that plays them."""
OUTDONE = "outdone"
"""Why a text that passed its trial stays out: another output about the same episode did better."""
_WINS = {"pairs": (0.0, None), "wins_with": (0.0, None), "wins_without": (0.0, None)}
_ORDERED = (("pairs", "wins_with"), ("pairs", "wins_without"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Row):
    """The result of a trial for one operation: whether its text may enter the bank.

    Operations of a round that write the same text for the same family share its result. With `distill.outputs` above 1
    a text that passed stays out as `outdone` where another output about the same episode did better.
    """

    table: ClassVar[str] = "trials"
    operation_id: A[str, "operation that asks for the text"]
    round: A[int, "round of the operation"]
    family: A[str, "task family that the text was played on"]
    entry_id: A[str, "entry it would create or rewrite"]
    content_digest: A[str, "SHA-256 of the text"]
    generation_id: A[str, "extractor output that wrote it"]
    tried_round: A[
        int | None, "round of its episodes: this one, or an earlier one whose result is reused; null: untried"
    ]
    pairs: A[int, "matched pairs (same layout and random stream, with and without), without broken ones"]
    wins_with: A[int, "pairs whose episode with the experience was won"]
    wins_without: A[int, "pairs whose episode without it was won"]
    difference: A[float | None, "share won with the experience minus share won without; null: no pairs"]
    admitted: A[bool, "whether the text may enter the bank"]
    reason_code: A[str, "ok, or why not: failed_trial (the difference is below the threshold) or untried"]

    rules: ClassVar[Rules] = Rules(
        key=("operation_id",),
        filled=("operation_id", "family", "entry_id", "generation_id"),
        sha256=("content_digest",),
        sets={"reason_code": ("ok", "failed_trial", "untried", OUTDONE)},
        ranges={**_WINS, "difference": (-1, 1)},
        ordered=_ORDERED,
        rows={
            "ok means that the text may enter the bank": "admitted = (reason_code = 'ok')",
            "what has no pair is not believed": "(reason_code = 'untried') = (difference IS NULL)",
            "the difference is that of the shares won": (
                "difference IS NOT DISTINCT FROM "
                "CASE WHEN pairs > 0 THEN (wins_with - wins_without) / pairs::DOUBLE END"
            ),
            "a text that was tried was tried in this round or an earlier one": (
                "coalesce(tried_round <= round, pairs = 0)"
            ),
            "one text of a family has one result": (
                "min(wins_with - wins_without) OVER (PARTITION BY family, content_digest) = "
                "max(wins_with - wins_without) OVER (PARTITION BY family, content_digest)"
            ),
            "no text is admitted that did worse than one that failed": (
                "coalesce(min(difference) FILTER (reason_code IN ('ok', 'outdone')) OVER () "
                "> max(difference) FILTER (reason_code = 'failed_trial') OVER (), true)"
            ),
        },
        between={
            "what a trial says of an operation is the result of its text": (
                "SELECT t.row, t.operation_id AS id FROM trials t LEFT JOIN trial_results r USING (family, "
                "content_digest) WHERE t.tried_round IS DISTINCT FROM r.round OR (r.round IS NOT NULL AND "
                "(t.pairs <> r.pairs OR t.wins_with <> r.wins_with OR t.wins_without <> r.wins_without))"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Row):
    """The newest trial of a text, kept for `trial.reuse_rounds`."""

    table: ClassVar[str] = "trial_results"
    family: A[str, "task family it was played on"]
    content_digest: A[str, "SHA-256 of the text"]
    round: A[int, "round of the trial"]
    pairs: A[int, "matched pairs"]
    wins_with: A[int, "pairs won with the experience"]
    wins_without: A[int, "pairs won without it"]

    rules: ClassVar[Rules] = Rules(
        key=("family", "content_digest"),
        filled=("family",),
        sha256=("content_digest",),
        ranges={**_WINS, "round": (1, None)},
        ordered=_ORDERED,
        between={
            "the result of a trial is what its matched pairs say": (
                "SELECT r.row, r.content_digest AS id FROM trial_results r LEFT JOIN ("
                # Pairs of which less than half are left say nothing (`mechanisms.trial.result_of`).
                "SELECT family, content_digest, count(*) FILTER (sound) AS counted, "
                "if(2 * counted < count(*), 0, counted) AS pairs, "
                "if(pairs = 0, 0, sum(noted::INT) FILTER (sound)) AS wins_with, "
                "if(pairs = 0, 0, sum(free::INT) FILTER (sound)) AS wins_without FROM ("
                "SELECT noted.family, noted.content_digests[1] AS content_digest, noted.success AS noted, "
                "free.success AS free, "
                "noted.error IS NULL AND free.error IS NULL AS sound FROM episodes noted "
                'JOIN episodes free ON free.family = noted.family AND free."group" = noted."group" AND NOT free.guided '
                "AND free.environment_seed = noted.environment_seed WHERE noted.guided) GROUP BY ALL"
                ") played USING (family, content_digest) "
                "WHERE r.round = (SELECT max(round) FROM episodes) AND (r.pairs <> coalesce(played.pairs, 0) "
                "OR r.wins_with <> coalesce(played.wins_with, 0) OR r.wins_without <> coalesce(played.wins_without, "
                "0))"
            ),
            "an experience that was played has its result": (
                "SELECT e.row, e.episode_id AS id FROM episodes e LEFT JOIN trial_results r "
                "ON r.family = e.family AND r.content_digest = e.content_digests[1] "
                "WHERE e.guided AND r.round IS DISTINCT FROM e.round"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextEffect(Row):
    """What a text did in a family: outcomes of its uses minus those of free episodes of the same groups.

    Entries that hold the same text share it; a rewritten entry begins anew.
    """

    table: ClassVar[str] = "text_effects"
    added: ClassVar[tuple[str, ...]] = ("withdrawn",)
    family: A[str, "task family of the episodes"]
    content_digest: A[str, "SHA-256 of the text"]
    count: A[float, "uses so far; `suppress.decay` below 1 discounts earlier rounds"]
    mean: A[float, "mean of guided_minus_free over them, -2 to 2"]
    spread: A[float, "sum of squared deviations from the mean, with the same weights"]
    suppressed: A[bool, "whether retrieval skips the text in this family, because it did harm"]
    withdrawn: A[bool, "whether training skips it, because the actor gains too little"] = False

    rules: ClassVar[Rules] = Rules(
        key=("family", "content_digest"),
        filled=("family",),
        sha256=("content_digest",),
        ranges={"count": (0, None), "mean": (-2.000001, 2.000001), "spread": (0, None)},
        rows={"what is suppressed or withdrawn was used": "NOT (suppressed OR withdrawn) OR count >= 2"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suppression(Row):
    """An entry that a round's retrieval skips for a family."""

    table: ClassVar[str] = "suppressions"
    added: ClassVar[tuple[str, ...]] = ("withdrawn",)
    family: A[str, "task family of the episodes"]
    entry_id: A[str, "entry that is not retrieved for it"]
    content_digest: A[str, "version of that entry"]
    withdrawn: A[bool, "whether only training skips it; false: evaluation, too"] = False

    rules: ClassVar[Rules] = Rules(
        key=("family", "entry_id"),
        filled=("family", "entry_id"),
        sha256=("content_digest",),
        between={
            "a suppressed text is not retrieved for the family": (
                "SELECT r.row, r.episode_id AS id FROM retrievals r JOIN suppressions s "
                "ON s.family = r.family AND s.entry_id = r.entry_id"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CandidateUtility(Row):
    """Running utility of an entry (Skill1): U <- decay U + (1 - decay) r for every episode it was a candidate for."""

    table: ClassVar[str] = "candidate_utilities"
    entry_id: A[str, "bank entry"]
    episodes: A[int, "episodes it was retrieved for, chosen or not"]
    utility: A[float, "U, -1 to 1; 0 before the first of them"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id",),
        ranges={"episodes": (1, None), "utility": (-1, 1)},
        rows={"the utility is finite": "isfinite(utility)"},
    )
