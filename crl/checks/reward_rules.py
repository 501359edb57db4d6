"""Rules of the rows about judging and rewarding experiences: the actor's verdicts, and what a use earned (eq. 8)."""

from __future__ import annotations

from crl.checks.suite import CrossRule, Suite
from crl.config.mechanisms import CREDIT_RULES
from crl.records import EntryUsefulness, Judgment, Row, SuccessRate, UseReward

REWARD_SUITES: dict[type[Row], Suite] = {
    Judgment: Suite(
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
    ),
    SuccessRate: Suite(
        key=("family",),
        filled=("family",),
        ranges={"episodes": (1, None), "successes": (0, None)},
        ordered=(("episodes", "successes"),),
    ),
    UseReward: Suite(
        key=("episode_id", "entry_id"),
        filled=("episode_id", "entry_id", "generation_id"),
        # Each rule of credit may name what it takes for r by its own name, which says no more of the reward.
        sets={"basis": (*CREDIT_RULES, "usefulness", "other_task", "own_task", "none")},
        ranges={"usefulness": (-1, 1)},
        rows={
            "an outcome is +1 or -1": "outcome IS NULL OR outcome IN (-1, 1)",
            "s_c is 1, 0.5 or 0": "critic_score IS NULL OR critic_score IN (0, 0.5, 1)",
            "only what was rejected has no outcome": "(basis = 'none') = (outcome IS NULL)",
            "what was rejected has its score": "basis <> 'none' OR critic_score = 0",
            "usefulness is there where it is the basis": "(basis = 'usefulness') = (usefulness IS NOT NULL)",
            "the reward is s_c + r (eq. 8)": (
                "CASE basis WHEN 'guided_minus_free' THEN abs(reward - coalesce(critic_score, 0)) <= 2 + 1e-9 "
                "ELSE abs(reward - coalesce(critic_score, 0) "
                "- CASE WHEN basis IN ('outcome', 'other_task') THEN outcome "
                "WHEN basis = 'usefulness' THEN usefulness WHEN basis IN ('own_task', 'none') THEN 0 "
                "ELSE reward - coalesce(critic_score, 0) END) < 1e-9 END"
            ),
        },
    ),
    EntryUsefulness: Suite(
        key=("entry_id",),
        filled=("entry_id",),
        sha256=("content_digest",),
        ranges={"uses": (1, None), "usefulness": (-1, 1)},
    ),
}

REWARD_CROSS_RULES: tuple[CrossRule, ...] = (
    CrossRule(
        "a verdict has its token record",
        ("judgments", "generations"),
        "SELECT j.row, j.episode_id AS id FROM judgments j LEFT JOIN generations g USING (generation_id) "
        "WHERE g.kind IS DISTINCT FROM 'critic'",
    ),
    CrossRule(
        "the token record of a verdict belongs to a judgment",
        ("generations", "judgments"),
        "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN judgments j USING (generation_id) "
        "WHERE g.kind = 'critic'",
    ),
    CrossRule(
        "a use with an outcome is credited with it",
        ("use_rewards", "credits"),
        "SELECT u.row, u.episode_id AS id FROM use_rewards u LEFT JOIN credits c USING (episode_id, entry_id) "
        "WHERE u.outcome IS DISTINCT FROM c.outcome OR (u.outcome IS NOT NULL AND u.generation_id <> c.generation_id)",
    ),
    CrossRule(
        "every credited use has its reward",
        ("credits", "use_rewards"),
        "SELECT c.row, c.episode_id AS id FROM credits c ANTI JOIN use_rewards u USING (episode_id, entry_id)",
    ),
    CrossRule(
        "a reward by guided minus free is that of the credit",
        ("use_rewards", "credits"),
        "SELECT u.row, u.episode_id AS id FROM use_rewards u JOIN credits c USING (episode_id, entry_id) "
        "WHERE u.basis = 'guided_minus_free' "
        "AND NOT coalesce(abs(u.reward - coalesce(u.critic_score, 0) - c.guided_minus_free) < 1e-9, false)",
    ),
)
