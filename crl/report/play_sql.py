"""The SQL of the results and the cost of playing: the views `success_by_arm`, `success_by_task`, `broken_games` and
`timings`, and the interval macros."""

from __future__ import annotations

from crl.records import SYNTHETIC
from crl.report.rates import Z

TIMINGS = """
SELECT
    round, stage, key AS work, CAST(value ->> '$.batches' AS BIGINT) AS batches,
    CAST(value ->> '$.items' AS BIGINT) AS items, CAST(value ->> '$.seconds' AS DOUBLE) AS seconds,
    CAST(value ->> '$.longest' AS DOUBLE) AS longest
FROM stages, json_each(manifest, '$.provenance.timings')
"""
TIMING_COLUMNS = (
    ("round", "BIGINT", "round of the stage"),
    ("stage", "VARCHAR", "stage it happened in"),
    ("work", "VARCHAR", "retrieval (from embedding queries to the choice), answers (of the extractor to questions), "
     "play, or of an evaluation play with_bank and play without_bank; playing includes answers"),
    ("batches", "BIGINT", "how often: everything that is asked for at once is one batch"),
    ("items", "BIGINT", "queries, questions or games in all of them"),
    ("seconds", "DOUBLE", "seconds in all"),
    ("longest", "DOUBLE", "seconds of the longest batch"),
)  # fmt: skip
"""Columns of the view `timings`, one row per stage and kind of work: name, type, meaning."""

BROKEN_GAMES = """
SELECT
    round, stage, family.key AS family, kind.value ->> '$.error' AS error, kind.value ->> '$.place' AS place,
    CAST(kind.value ->> '$.games' AS BIGINT) AS games, CAST(family.value ->> '$.games' AS BIGINT) AS played,
    CAST(kind.value ->> '$.seed' AS BIGINT) AS environment_seed, kind.value ->> '$.details' AS details
FROM stages, json_each(manifest, '$.provenance.broken') AS family, json_each(family.value, '$.kinds') AS kind
"""
BROKEN_COLUMNS = (
    ("round", "BIGINT", "round of the stage"),
    ("stage", "VARCHAR", "stage that played, or planned"),
    ("family", "VARCHAR", "task family"),
    ("error", "VARCHAR", "reason code, as in `episodes`"),
    ("place", "VARCHAR", "where the traceback ends, as `game.py line 31 in act`; null without a traceback"),
    ("games", "BIGINT", "games of the family that broke so"),
    ("played", "BIGINT", "all games of the family in the stage"),
    ("environment_seed", "BIGINT", "seed of the first of them"),
    ("details", "VARCHAR", "the traceback of the first of them, or in words what was wrong"),
)
"""Columns of the view `broken_games`, one row per stage, task family and kind of break: name, type, meaning."""

_SUCCESS = """
SELECT
    round, stage, arm, {family}count(*) FILTER (success) AS won, count(*) AS games,
    count(*) FILTER (stop_reason = 'error') AS broken, avg(success::INT) AS success,
    wilson_low(count_if(success), count(*)) AS low, wilson_high(count_if(success), count(*)) AS high,
    avg(turns) AS actions, 1 - sum(invalid_actions) / nullif(sum(turns), 0) AS valid,
    avg(tokens_read) AS tokens_read, avg(tokens_sampled) AS tokens_sampled
FROM (
    SELECT round, stage, CASE WHEN stream = '{synthetic}' THEN stream WHEN guided THEN 'guided' ELSE 'free' END AS arm,
        family, success, stop_reason, turns, invalid_actions, tokens_read, tokens_sampled
    FROM episodes WHERE stage = 'collect'
    UNION ALL BY NAME
    SELECT round, stage, arm, family, success, stop_reason, turns, invalid_actions, tokens_read, tokens_sampled
    FROM evaluations
)
GROUP BY round, stage, arm{by} ORDER BY round, stage, arm{by}
"""
SUCCESS_BY_ARM = _SUCCESS.format(family="", by="", synthetic=SYNTHETIC)
SUCCESS_BY_TASK = _SUCCESS.format(family="family, ", by=", family", synthetic=SYNTHETIC)
SUCCESS_COLUMNS = (
    ("round", "BIGINT", "round played in"),
    ("stage", "VARCHAR", "collect (training), evaluate, or evaluate_base (before a warm start)"),
    (
        "arm",
        "VARCHAR",
        "guided, free (every other stream too), or synthetic (in an experience model, which says itself what is won) "
        "in training; with_bank, without_bank or random (any legal action) held out",
    ),
    ("won", "BIGINT", "games won"),
    ("games", "BIGINT", "games played, broken ones included: these count as lost"),
    (
        "broken",
        "BIGINT",
        "games that broke: the environment failed, or the first prompt did not fit (a note that is too long breaks "
        "games of one arm only)",
    ),
    ("success", "DOUBLE", "share of them won"),
    ("low", "DOUBLE", "lower end of its 95 % interval (Wilson)"),
    ("high", "DOUBLE", "upper end"),
    ("actions", "DOUBLE", "turns per game, mean"),
    ("valid", "DOUBLE", "share of the turns with a legal action"),
    ("tokens_read", "DOUBLE", "tokens the actor read in a game, mean"),
    ("tokens_sampled", "DOUBLE", "tokens the actor wrote in a game, mean"),
)
"""Columns of the view `success_by_arm`: name, type, meaning."""
TASK_COLUMNS = (*SUCCESS_COLUMNS[:3], ("family", "VARCHAR", "task family"), *SUCCESS_COLUMNS[3:])
"""Columns of the view `success_by_task`."""

_SPREAD = f"{Z} * sqrt(won / games * (1 - won / games) / games + {Z**2} / (4 * games * games))"
_END = f"(won / games + {Z**2} / (2 * games) {{sign}} {_SPREAD}) / (1 + {Z**2} / games)"
SCALARS = {
    "wilson_low(won, games)": f"if(won = 0, 0.0, {_END.format(sign='-')})",
    "wilson_high(won, games)": f"if(won = games, 1.0, {_END.format(sign='+')})",
}
"""Macros that views use: the ends of the 95 % interval of `won` games of `games`, as `crl/report/rates.py`."""
