"""Rows of a judge that gives rewards: what it was shown, what it answered, what that was taken for."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row, Rules

FLAWS = (
    "truncated", "unfinished_thought", "no_score", "wrong_count", "out_of_range", "no_answer", "refused",
    "prompt_too_long",
)  # fmt: skip
"""Reason codes of an answer that gives no scores."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Row):
    """One answer of the judge, about one episode or a group."""

    table: ClassVar[str] = "verdicts"
    verdict_id: A[str, "<round>-<stage>/<episode, or family and group>/v<reading>.<attempt>"]
    round: A[int, "round of the episodes"]
    family: A[str, "task family of the episodes"]
    mode: A[str, "absolute: one episode was shown; group: a whole group"]
    episode_ids: A[list[str], "episodes in the order the judge read them (without ids)"]
    reading: A[int, "0: this reading gives the reward; 1: reverse order, to measure agreement"]
    attempt: A[int, "0, plus 1 for each repeated question after an answer without scores"]
    prompt: A[str, "what the judge read"]
    output: A[str, "its answer; without one, what went wrong"]
    scores: A[list[float], "score of each episode, 0 to 1, in that order; empty: none"]
    reason_code: A[str, "ok, or why there are no scores: see crl/rounds/judge.py"]
    weights_digest: A[str, "digest of the judge's weights (table weights)"]
    model: A[str, "the judge's model or endpoint"]
    tokens_read: A[int, "tokens it read; characters for an endpoint"]
    tokens_sampled: A[int, "tokens it wrote, likewise"]

    rules: ClassVar[Rules] = Rules(
        key=("verdict_id",),
        filled=("verdict_id", "family", "prompt", "model"),
        sha256=("weights_digest",),
        sets={"mode": ("absolute", "group"), "reason_code": ("ok", *FLAWS)},
        ranges={"reading": (0, 1), "attempt": (0, None), "tokens_read": (0, None), "tokens_sampled": (0, None)},
        rows={
            "ok means that every episode has a score": (
                "len(scores) = CASE reason_code WHEN 'ok' THEN len(episode_ids) ELSE 0 END AND len(episode_ids) > 0"
            ),
            "a score is between 0 and 1": (
                "len(list_filter(scores, lambda each: NOT (isfinite(each) AND each BETWEEN 0 AND 1))) = 0"
            ),
            "an absolute verdict is about one episode": "mode = 'group' OR len(episode_ids) = 1",
        },
        between={
            "a verdict is about episodes of its stage": (
                "SELECT v.row, v.verdict_id AS id FROM (SELECT row, verdict_id, unnest(episode_ids) AS episode_id "
                "FROM verdicts AS t) v ANTI JOIN episodes e USING (episode_id)"
            ),
            "an episode has its score as a part of its reward": (
                "SELECT v.row, v.verdict_id AS id FROM (SELECT row, verdict_id, unnest(episode_ids) AS episode_id, "
                "unnest(scores) AS score FROM verdicts AS t WHERE reading = 0 AND reason_code = 'ok') v "
                "JOIN episodes e USING (episode_id) WHERE v.score IS DISTINCT FROM "
                "list_extract(e.reward_values, list_position(e.reward_names, 'judge'))"
            ),
        },
    )
