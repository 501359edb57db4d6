"""Rules of the rows about trials of notes (what was played says the result, and the result decides) and suppression."""

from __future__ import annotations

from crl.checks.suite import CrossRule, Suite
from crl.records import CandidateUtility, Row, Suppression, TextEffect, Trial, TrialResult

_WINS = {
    "pairs": (0.0, None),
    "wins_with": (0.0, None),
    "wins_without": (0.0, None),
}
_ORDERED = (("pairs", "wins_with"), ("pairs", "wins_without"))

TRIAL_SUITES: dict[type[Row], Suite] = {
    Trial: Suite(
        key=("operation_id",),
        filled=("operation_id", "family", "entry_id", "generation_id"),
        sha256=("content_digest",),
        sets={"reason_code": ("ok", "failed_trial", "untried")},
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
            "no text is admitted that did worse than one that is not": (
                "coalesce(min(difference) FILTER (admitted) OVER () "
                "> max(difference) FILTER (NOT admitted) OVER (), true)"
            ),
        },
    ),
    TrialResult: Suite(
        key=("family", "content_digest"),
        filled=("family",),
        sha256=("content_digest",),
        ranges={**_WINS, "round": (1, None)},
        ordered=_ORDERED,
    ),
    TextEffect: Suite(
        key=("family", "content_digest"),
        filled=("family",),
        sha256=("content_digest",),
        ranges={"count": (0, None), "mean": (-2.000001, 2.000001), "spread": (0, None)},
        rows={"what is suppressed was used": "NOT suppressed OR count >= 2"},
    ),
    Suppression: Suite(
        key=("family", "entry_id"),
        filled=("family", "entry_id"),
        sha256=("content_digest",),
    ),
    CandidateUtility: Suite(
        key=("entry_id",),
        filled=("entry_id",),
        ranges={"episodes": (1, None), "utility": (-1, 1)},
        rows={"the utility is finite": "isfinite(utility)"},
    ),
}

TRIAL_CROSS_RULES: tuple[CrossRule, ...] = (
    CrossRule(
        "a suppressed text is not retrieved for the family",
        ("retrievals", "suppressions"),
        "SELECT r.row, r.episode_id AS id FROM retrievals r JOIN suppressions s "
        "ON s.family = r.family AND s.entry_id = r.entry_id",
    ),
    CrossRule(
        "what a trial says of an operation is the result of its text",
        ("trials", "trial_results"),
        "SELECT t.row, t.operation_id AS id FROM trials t LEFT JOIN trial_results r USING (family, content_digest) "
        "WHERE t.tried_round IS DISTINCT FROM r.round OR (r.round IS NOT NULL AND "
        "(t.pairs <> r.pairs OR t.wins_with <> r.wins_with OR t.wins_without <> r.wins_without))",
    ),
    CrossRule(
        "the result of a trial is what its matched pairs say",
        ("trial_results", "episodes"),
        "SELECT r.row, r.content_digest AS id FROM trial_results r LEFT JOIN ("
        # Pairs of which less than half are left say nothing (`crl.recipes.complementary.mechanisms.trial.result_of`).
        "SELECT family, content_digest, count(*) FILTER (sound) AS counted, "
        "if(2 * counted < count(*), 0, counted) AS pairs, "
        "if(pairs = 0, 0, sum(noted::INT) FILTER (sound)) AS wins_with, "
        "if(pairs = 0, 0, sum(free::INT) FILTER (sound)) AS wins_without FROM ("
        "SELECT noted.family, noted.content_digest, noted.success AS noted, free.success AS free, "
        "noted.error IS NULL AND free.error IS NULL AS sound FROM episodes noted "
        'JOIN episodes free ON free.family = noted.family AND free."group" = noted."group" AND NOT free.guided '
        "AND free.environment_seed = noted.environment_seed WHERE noted.guided) GROUP BY ALL"
        ") played USING (family, content_digest) "
        "WHERE r.round = (SELECT max(round) FROM episodes) AND (r.pairs <> coalesce(played.pairs, 0) "
        "OR r.wins_with <> coalesce(played.wins_with, 0) OR r.wins_without <> coalesce(played.wins_without, 0))",
    ),
    CrossRule(
        "a note that was played has its result",
        ("episodes", "trial_results"),
        "SELECT e.row, e.episode_id AS id FROM episodes e LEFT JOIN trial_results r "
        "ON r.family = e.family AND r.content_digest = e.content_digest "
        "WHERE e.guided AND r.round IS DISTINCT FROM e.round",
    ),
)
