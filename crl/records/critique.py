"""Rows of the actor-critic (eq. 8): what the actor said of the experiences it was given, and how well it knows."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row, Rules


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Critique(Row):
    """The actor's verdict on an episode's experience, before it plays."""

    table: ClassVar[str] = "critiques"
    episode_id: A[str, "episode the experience was retrieved for"]
    round: A[int, "round of the episode"]
    family: A[str, "task family of the episode"]
    entry_id: A[str, "entry that was critiqued"]
    content_digest: A[str, "version of that entry"]
    generation_id: A[str, "token record of the verdict (role actor, kind critic)"]
    success_rate: A[float | None, "the actor's success rate in the family, as the prompt said; null: unknown"]
    verdict: A[str, "accept, refine, reject or malformed"]
    reason_code: A[str, "ok, or why the verdict is malformed; the experience is then shown unchanged"]
    score: A[float | None, "s_c of eq. 8: 1 accept, 0.5 refine, 0 reject; null: malformed"]
    text: A[str | None, "experience that guides the episode; null: rejected, so the episode is free"]

    rules: ClassVar[Rules] = Rules(
        key=("episode_id",),
        filled=("episode_id", "family", "entry_id", "generation_id"),
        sha256=("content_digest",),
        unique=(("generation_id",),),
        sets={"verdict": ("accept", "refine", "reject", "malformed")},
        ranges={"success_rate": (0, 1)},
        rows={
            "malformed has a reason code other than ok": "(verdict = 'malformed') = (reason_code <> 'ok')",
            "s_c is 1, 0.5 or 0 by the verdict, none where malformed": (
                "score IS NOT DISTINCT FROM "
                "CASE verdict WHEN 'accept' THEN 1.0 WHEN 'refine' THEN 0.5 WHEN 'reject' THEN 0.0 END"
            ),
            "what is not rejected has a text": "(verdict = 'reject') = (text IS NULL)",
            "a text is not empty": "text IS NULL OR trim(text) <> ''",
        },
        between={
            "a verdict has its token record": (
                "SELECT j.row, j.episode_id AS id FROM critiques j LEFT JOIN generations g USING (generation_id) "
                "WHERE g.kind IS DISTINCT FROM 'critic'"
            ),
            "the token record of a verdict belongs to a critique": (
                "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN critiques j USING (generation_id) "
                "WHERE g.kind = 'critic'"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRate(Row):
    """Success of the actor in a family over all rounds so far."""

    table: ClassVar[str] = "success_rates"
    family: A[str, "task family"]
    episodes: A[int, "episodes so far, without broken ones"]
    successes: A[int, "episodes won"]

    rules: ClassVar[Rules] = Rules(
        key=("family",),
        filled=("family",),
        ranges={"episodes": (1, None), "successes": (0, None)},
        ordered=(("episodes", "successes"),),
    )
