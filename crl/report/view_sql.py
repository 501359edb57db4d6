"""The SELECT behind every view of a run, and the macros: SQL text over a :class:`~crl.report.view_files.Source`.

One view per row type, and a few more (see `views.py`). A row type that holds no `round` or `stage` of its own gets the
one of the directory it is in. A table that nobody has written yet is an empty view with the right columns.

`LINEAGE` is the body of the view `lineage`, which `docs/sql.md` explains. With one row per use it answers: which
episodes made this experience, which prompt and which extractor checkpoint wrote it, where it was used, with what
outcome and which guided-minus-free difference. A version that was never used has one row with an empty use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

import pyarrow as pa

from crl.records import (
    ROW_TYPE_BY_TABLE,
    ROW_TYPES,
    SYNTHETIC,
    TRAINER,
    Approval,
    BankChange,
    BankEntry,
    BankSnapshot,
    BankText,
    BehaviorLogprobs,
    Episode,
    Evaluation,
    Generation,
    Row,
    schema_of,
)
from crl.report.success import Z
from crl.report.view_files import VECTORS, Source, sql_type
from crl.rounds.stage import FURTHER
from crl.run.manifest import MANIFEST
from crl.run.validations import VALIDATIONS

_PLACE = (
    ("round", "BIGINT", "CAST(parse_path(filename)[-3] AS BIGINT)"),
    ("stage", "VARCHAR", "parse_path(filename)[-2]"),
)
# Columns that a view takes from the manifest of the stage, because rows hold no clock times: name, place, description.
_NOTED: dict[type[Row], tuple[tuple[str, str, str], ...]] = {
    Approval: (("decided_at", "$.provenance.decision.decided_at", "when the person decided: ISO 8601, UTC"),),
}
# Columns that a view computes of others: name, SQL type, expression, description.
_FIRST_ENTRY = ("entry_id", "VARCHAR", "entry_ids[1]", "the first of entry_ids; null without any")
_COMPUTED: dict[type[Row], tuple[tuple[str, str, str, str], ...]] = {
    Episode: (
        _FIRST_ENTRY,
        ("content_digest", "VARCHAR", "content_digests[1]", "version of that entry"),
        (
            "experience", "VARCHAR",
            r"""CASE WHEN len(experiences) < 2 THEN experiences[1] ELSE array_to_string(
    [replace(each[2] || '. ' || each[1], chr(10), chr(10) || '   ')
        for each in list_zip(experiences, range(1, len(experiences) + 1))], chr(10)) END""",
            "what was shown: one text, or several with numbers",
        ),
    ),
    Evaluation: (_FIRST_ENTRY,),
}  # fmt: skip

# As stages read them (`crl.rounds.context.behaved`).
_BEHAVED = """
SELECT record.* REPLACE (
    coalesce(computed.logprobs, record.logprobs) AS logprobs,
    CASE WHEN computed.generation_id IS NULL THEN record.logprobs_by ELSE '{trainer}' END AS logprobs_by
)
FROM ({records}) AS record LEFT JOIN ({computed}) AS computed USING (round, generation_id)
"""

# The bank of every round: the rows of its base, and since then those of its changes, each until the entry's next one.
_BANK = """
WITH summed_up AS ({summed_up}),
versions AS (
    SELECT base.round AS base_round, base.round AS since, {columns}, false AS removed
    FROM ({bases}) AS base
    UNION ALL
    SELECT summed_up.base_round, change.round AS since, {columns}, change.removed
    FROM ({changes}) AS change JOIN summed_up ON summed_up.round = change.round
    WHERE summed_up.base_round < change.round
),
dated AS (
    SELECT *, coalesce(
        lead(since) OVER (PARTITION BY base_round, entry_id ORDER BY since), 9223372036854775807
    ) AS until
    FROM versions
)
{unless_short}
SELECT shown.round, shown.stage, {columns}
FROM ({shown}) AS shown JOIN dated
    ON dated.base_round = shown.base_round AND dated.since <= shown.round AND shown.round < dated.until
WHERE NOT dated.removed
"""

# Patterns find what is there: a bank that has lost a file would be another one without a word. Asked first, and beside
# the bank: a join one of whose sides has no rows asks nothing.
_UNLESS_SHORT = """
SELECT round, NULL::VARCHAR AS stage FROM (
    SELECT
        snapshot.round,
        any_value(snapshot.changes_since_base) <> coalesce(sum(stored.count) FILTER (stored.changed), 0)
        OR any_value(base.entries) <> coalesce(sum(stored.count) FILTER (NOT stored.changed), 0) AS short
    FROM summed_up AS snapshot LEFT JOIN summed_up AS base ON base.round = snapshot.base_round
    LEFT JOIN (
        SELECT since, base_round, since > base_round AS changed, count(*) AS count FROM versions GROUP BY ALL
    ) AS stored ON stored.base_round = snapshot.base_round AND stored.since <= snapshot.round
    GROUP BY snapshot.round
)
WHERE CASE WHEN short
    THEN error('a file of the bank after round ' || round || ' is gone: `crl verify RUN` names it') ELSE false
END
UNION ALL BY NAME"""

SEQUENCES = """
SELECT
    round, stage, episode_id, sequence, generation_id, len(token_ids) AS tokens,
    len(token_ids) - coalesce(wrote, 0) AS tokens_read, coalesce(wrote, 0) AS tokens_sampled,
    list_sum(loss_mask)::BIGINT AS tokens_trained, coalesce(turns, []) AS turns
FROM (
    SELECT round, stage, episode_id, unnest(generation_ids) AS generation_id,
        generate_subscripts(generation_ids, 1) - 1 AS sequence
    FROM episodes
)
LEFT JOIN generations USING (round, stage, generation_id)
LEFT JOIN (
    SELECT round, stage, generation_id, list(turn ORDER BY turn) AS turns,
        sum(last_token - first_token)::BIGINT AS wrote
    FROM turns GROUP BY ALL
) USING (round, stage, generation_id)
"""

_BANK_TEXT = """
SELECT bank.*, bank_texts.text
FROM bank LEFT JOIN bank_texts USING (content_digest)
"""

# Counters are of an entry, uses and credit of its text, all so far; a round publishes its bank before it is credited.
BANK_USES = """
WITH published AS (SELECT DISTINCT round FROM bank_snapshots),
counted AS (
    SELECT published.round, max(counts.round) AS until FROM published
    JOIN (SELECT DISTINCT round FROM retrieval_counts) AS counts ON counts.round <= published.round
    GROUP BY published.round
),
counts AS (
    SELECT counted.round, entry_id, max(count) AS count FROM counted
    JOIN retrieval_counts ON retrieval_counts.round = until GROUP BY counted.round, entry_id
),
scored AS (
    SELECT published.round, max(scores.round) AS until FROM published
    JOIN (SELECT DISTINCT round FROM entry_scores) AS scores ON scores.round <= published.round
    GROUP BY published.round
),
scores AS (
    SELECT scored.round, entry_id, content_digest, uses, mean_outcome FROM scored
    JOIN entry_scores ON entry_scores.round = until
),
earned AS (
    SELECT published.round, entry_id, content_digest, avg(guided_minus_free) AS guided_minus_free FROM published
    JOIN credits ON credits.round <= published.round GROUP BY ALL
)
SELECT entries.*, coalesce(counts.count, 0) AS retrieved, coalesce(uses, 0) AS uses, mean_outcome, guided_minus_free
FROM bank_text AS entries LEFT JOIN counts USING (round, entry_id)
LEFT JOIN scores USING (round, entry_id, content_digest) LEFT JOIN earned USING (round, entry_id, content_digest)
"""

# Segments hold the texts of every round: of an earlier state, those that some bank up to then held.
_TEXTS_THEN = """
SELECT content_digest, text FROM ({texts})
WHERE content_digest IN (SELECT content_digest FROM ({changes}) UNION ALL SELECT content_digest FROM ({bases}))
"""

_STAGES = """
SELECT
    CAST(parse_path(filename)[-3] AS BIGINT) AS round,
    parse_path(filename)[-2] AS stage,
    {columns},
    TRY_CAST(content AS JSON) AS manifest
FROM {files}
"""
STAGE_COLUMNS = (
    ("digest", "VARCHAR", "$.digest", "SHA-256 of the stage's files and everything they were made from"),
    ("seconds", "DOUBLE", "$.provenance.seconds", "seconds it took"),
    ("started", "VARCHAR", "$.provenance.started", "when it began: ISO 8601, UTC"),
    ("attempt", "BIGINT", "$.provenance.attempt", "attempt that made it"),
    ("host", "VARCHAR", "$.provenance.host", "machine that made it"),
    ("sequence", "BIGINT", "$.provenance.sequence", "position in the round's order of commits, from 1"),
)
"""Columns of `stages` from a manifest: name, SQL type, place in the manifest, description."""

# A round that could not be validated has one row, without a table. A verdict of stages that were redone says nothing.
_VALIDATIONS = """
WITH verdicts AS (SELECT TRY_CAST(content AS JSON) AS verdict FROM {files})
SELECT {columns}
FROM (
    SELECT verdict, unnest(CASE WHEN json_array_length(verdict, '$.tables') > 0
        THEN CAST(verdict -> '$.tables' AS JSON[]) ELSE [NULL::JSON] END) AS validated
    FROM verdicts WHERE verdict IS NOT NULL
)
WHERE NOT EXISTS (
    FROM stages WHERE stages.round = CAST(verdict ->> '$.round' AS BIGINT)
    AND stages.digest IS DISTINCT FROM json_extract_string(verdict, '$.stages.' || stages.stage)
)
ORDER BY round
"""
VALIDATION_COLUMNS = (
    ("round", "BIGINT", "verdict", "$.round", "round that was validated"),
    ("outcome", "VARCHAR", "verdict", "$.outcome", "of the round: passed, failed, or not validated"),
    ("reason", "VARCHAR", "verdict", "$.reason", "why it was not validated"),
    ("stage", "VARCHAR", "validated", "$.stage", "stage that wrote the table; null where the round was not validated"),
    ("table_name", "VARCHAR", "validated", "$.table", "the table"),
    ("rows", "BIGINT", "validated", "$.rows", "its rows"),
    ("rules", "BIGINT", "validated", "$.rules", "rules that Great Expectations evaluated"),
    ("queries", "BIGINT", "validated", "$.queries", "rules in SQL, answered by DuckDB"),
    ("only_compiled", "BIGINT", "validated", "$.only_compiled", "rules that only the compiled pass evaluated"),
    ("passed", "BOOLEAN", "validated", "$.passed", "whether every rule holds"),
    ("broken", "VARCHAR[]", "validated", "$.broken", "a sentence per rule that does not"),
    ("alarms", "VARCHAR[]", "validated", "$.alarms", "where Great Expectations and the compiled pass disagree"),
)
"""Columns of `validations`: name, SQL type, part and place in the verdict, description."""

_ROUNDS = """
SELECT
    round,
    count(*) AS stages,
    list(stage ORDER BY stage) AS complete
FROM stages
GROUP BY round
ORDER BY round
"""

LINEAGE = r"""
WITH written AS (       -- events that wrote a text
    SELECT *, CAST(regexp_extract(event_id, '(\d+)$', 1) AS BIGINT) AS position
    FROM bank_events WHERE kind IN ('import', 'add', 'update', 'merge')
),
stays AS (              -- an entry whose id came back starts over; a text holds until the next one is written
    SELECT *,
        count(*) FILTER (kind <> 'update') OVER (PARTITION BY entry_id ORDER BY round, position) AS stay,
        lead(round) OVER (PARTITION BY entry_id ORDER BY round, position) AS until_round
    FROM written
),
versions AS (           -- every text an entry ever had, in order, numbered as in the bank
    SELECT
        entry_id, family, round AS written_round, position, until_round, kind, operation_id,
        after_digest AS content_digest,
        row_number() OVER (PARTITION BY entry_id, stay ORDER BY round, position) AS version
    FROM stays
),
writers AS (            -- the checkpoint behind a weights digest: where it first appeared
    SELECT weights_digest, min(round) AS round, arg_min(updates, round) AS updates,
        coalesce(arg_min(checkpoint, round), arg_min(source, round)) AS checkpoint
    FROM weights WHERE role <> 'embedder' GROUP BY weights_digest
),
sources AS (            -- the episodes an operation was distilled from, with their outcome
    SELECT made.operation_id, list({'episode_id': made.episode_id, 'success': episode.success} ORDER BY made.episode_id)
        AS episodes
    FROM (SELECT operation_id, unnest(episode_ids) AS episode_id FROM operations) AS made
    LEFT JOIN episodes AS episode USING (episode_id)
    GROUP BY made.operation_id
),
uses AS (               -- episodes by the text that guided them, or that was read for them, and its bank
    SELECT
        retrieval.entry_id, retrieval.content_digest, retrieval.bank_round,
        episode.episode_id, episode.round, episode.success, retrieval.similarity, retrieval.score,
        credit.outcome, credit.free_mean, credit.guided_minus_free
    FROM retrievals AS retrieval
    JOIN episodes AS episode ON episode.episode_id = retrieval.episode_id
    LEFT JOIN credits AS credit ON credit.episode_id = episode.episode_id AND credit.entry_id = retrieval.entry_id
    -- A further attempt of ERL is guided by its reflection: the memory that was read for it is in its credit only.
    WHERE retrieval.chosen
        AND (episode.guided AND list_contains(episode.entry_ids, retrieval.entry_id) OR credit.entry_id IS NOT NULL)
)
SELECT
    version.entry_id, version.family, version.version, version.kind, version.written_round, version.content_digest,
    coalesce(written.text, operation.text) AS text,
    operation.parents, source.episodes AS source_episodes,
    version.operation_id, operation.distillation_id,
    coalesce(operation.generation_id, imported.generation_id) AS generation_id,
    generation.prompt, generation.output,
    writer.checkpoint AS extractor_checkpoint, writer.updates AS extractor_updates,
    generation.weights_digest AS extractor_digest,
    used.episode_id AS used_in, used.round AS used_round, used.success AS used_success,
    used.similarity AS used_similarity, used.outcome, used.free_mean, used.guided_minus_free
FROM versions AS version
LEFT JOIN operations AS operation ON operation.operation_id = version.operation_id
LEFT JOIN imported_entries AS imported ON version.kind = 'import' AND imported.entry_id = version.entry_id
LEFT JOIN sources AS source ON source.operation_id = version.operation_id
LEFT JOIN bank_texts AS written ON written.content_digest = version.content_digest
LEFT JOIN generations AS generation ON generation.generation_id = operation.generation_id
LEFT JOIN writers AS writer ON writer.weights_digest = generation.weights_digest
LEFT JOIN uses AS used ON used.entry_id = version.entry_id AND used.content_digest = version.content_digest
    AND used.bank_round >= version.written_round
    AND (version.until_round IS NULL OR used.bank_round < version.until_round)
ORDER BY version.entry_id, version.written_round, version.position, used.round, used.episode_id
"""

_MEMBERS = "unnest(map_entries(CAST({} AS MAP(VARCHAR, JSON))))"  # `json_each` is new in DuckDB 1.3
TIMINGS = f"""
SELECT
    round, stage, timing.key AS work, CAST(timing.value ->> '$.batches' AS BIGINT) AS batches,
    CAST(timing.value ->> '$.items' AS BIGINT) AS items, CAST(timing.value ->> '$.seconds' AS DOUBLE) AS seconds,
    CAST(timing.value ->> '$.longest' AS DOUBLE) AS longest
FROM (SELECT round, stage, {_MEMBERS.format("manifest -> '$.provenance.timings'")} AS timing FROM stages)
"""
BROKEN_GAMES = f"""
WITH families AS (SELECT round, stage, {_MEMBERS.format("manifest -> '$.provenance.broken'")} AS family FROM stages),
broken AS (SELECT round, stage, family, unnest(CAST(family.value -> '$.kinds' AS JSON[])) AS kind FROM families)
SELECT
    round, stage, family.key AS family, kind ->> '$.error' AS error, kind ->> '$.location' AS location,
    CAST(kind ->> '$.games' AS BIGINT) AS games, CAST(family.value ->> '$.games' AS BIGINT) AS played,
    CAST(kind ->> '$.seed' AS BIGINT) AS environment_seed, kind ->> '$.details' AS details
FROM broken
"""
# The plays of one held-out task are added up first: they are not independent.
_SUCCESS = """
SELECT
    round, stage, condition, {family}won, games, broken, won / games AS success, effective,
    wilson_low(won * effective / games, effective) AS low, wilson_high(won * effective / games, effective) AS high,
    turns / games AS actions, 1 - invalid_actions / nullif(turns, 0) AS valid,
    tokens_read / games AS tokens_read, tokens_sampled / games AS tokens_sampled
FROM (
    SELECT
        round, stage, condition, {family}sum(played.won)::BIGINT AS won, sum(played.games)::BIGINT AS games,
        sum(played.broken)::BIGINT AS broken, sum(played.turns) AS turns,
        sum(played.invalid_actions) AS invalid_actions, sum(played.tokens_read) AS tokens_read,
        sum(played.tokens_sampled) AS tokens_sampled,
        effective_episodes(
            count(*), avg(played.won / played.games), var_samp(played.won / played.games), sum(played.games)
        ) AS effective
    FROM (
        SELECT round, draw_of(stage) AS stage,
            CASE WHEN stream = '{synthetic}' THEN stream WHEN guided THEN 'guided' ELSE 'free' END AS condition, family,
            success::INT AS won, 1 AS games, (stop_reason = 'error')::INT AS broken, turns, invalid_actions,
            tokens_read, tokens_sampled
        FROM episodes WHERE draw_of(stage) = 'collect'
        UNION ALL BY NAME
        SELECT round, stage, condition, family, count_if(success) AS won, count(*) AS games,
            count_if(stop_reason = 'error') AS broken, sum(turns) AS turns, sum(invalid_actions) AS invalid_actions,
            sum(tokens_read) AS tokens_read, sum(tokens_sampled) AS tokens_sampled
        FROM evaluations GROUP BY round, stage, condition, family, environment_seed
    ) AS played
    GROUP BY round, stage, condition{by}
)
ORDER BY round, stage, condition{by}
"""
SUCCESS_BY_CONDITION = _SUCCESS.format(family="", by="", synthetic=SYNTHETIC)
SUCCESS_BY_TASK = _SUCCESS.format(family="family, ", by=", family", synthetic=SYNTHETIC)
PASS_AT_K = """
SELECT
    round, stage, condition, family, k, tasks, passed AS pass_at_k,
    wilson_low(passed * effective, effective) AS low, wilson_high(passed * effective, effective) AS high
FROM (
    SELECT
        round, stage, condition, family, k, count(*) AS tasks, avg(each.passed) AS passed,
        effective_episodes(count(*), avg(each.passed), var_samp(each.passed), sum(plays // k)) AS effective
    FROM (
        SELECT *, 1 - list_product([(plays - won - place) / (plays - place) for place in range(k)]) AS passed
        FROM (
            SELECT *, unnest([k for k in range(2, most + 1) if k = most or bit_count(k) = 1]) AS k
            FROM (
                SELECT round, stage, condition, family, environment_seed, count_if(success) AS won, count(*) AS plays,
                    max(count(*)) OVER (PARTITION BY round, stage, condition, family) AS most
                FROM evaluations GROUP BY round, stage, condition, family, environment_seed
            )
        )
        WHERE plays >= k
    ) AS each
    GROUP BY round, stage, condition, family, k
)
ORDER BY round, stage, condition, family, k
"""
_SPREAD = f"{Z} * sqrt(won / games * (1 - won / games) / games + {Z**2} / (4 * games * games))"
_EFFECTIVE = "mean * (1 - mean) * tasks * (tasks - 1) / (tasks + 2)"
_END = f"(won / games + {Z**2} / (2 * games) {{sign}} {_SPREAD}) / (1 + {Z**2} / games)"
SCALARS = {
    "draw_of(stage)": f"regexp_replace(stage, '^{FURTHER}$', '\\1')",
    "effective_episodes(tasks, mean, spread, most)": (
        "CASE WHEN tasks = 1 OR mean <= 0 OR mean >= 1 THEN tasks::DOUBLE "
        f"WHEN {_EFFECTIVE} >= most * spread THEN most::DOUBLE ELSE greatest(tasks, {_EFFECTIVE} / spread) END"
    ),
    "wilson_low(won, games)": f"CASE WHEN won = 0 THEN 0.0 ELSE {_END.format(sign='-')} END",
    "wilson_high(won, games)": f"CASE WHEN won = games THEN 1.0 ELSE {_END.format(sign='+')} END",
}
"""Macros that views use: the stage that one is a further draw of (`crl.rounds.stage.draw_of`), and as in
`crl/report/success.py` how many independent episodes the plays of several tasks are good
for (`mean` and variance of their means, and all plays), and the ends of the 95 % interval of `won` games of `games`."""

NO_BANK = "there is no bank after round"
"""How the error of a round without a bank begins."""


def _has_bank(number: str) -> str:
    """Whether there is a bank after a round; an error where there is none."""
    return f"""(
SELECT CASE WHEN count(*) FILTER (round = {number}) > 0 THEN true ELSE error(
    '{NO_BANK} ' || coalesce(any_value({number})::VARCHAR, 'NULL')
    || coalesce('; there are those after rounds ' || min(round) || ' to ' || max(round), ': the run has none')
) END FROM bank_snapshots)"""


MACROS = {
    "has_bank(number)": _has_bank("number"),
    # The second part has no rows. It asks where a run has no bank at all: of an empty view nothing else is asked.
    "bank_at(number)": f"""
SELECT * FROM bank_text WHERE round = number AND {_has_bank("number")}
UNION ALL BY NAME SELECT NULL::BIGINT AS round WHERE NOT {_has_bank("number")}
""",
    "bank_diff(earlier, later)": f"""
SELECT
    entry_id, coalesce(after.family, before.family) AS family,
    CASE WHEN before.round IS NULL THEN 'added' WHEN after.round IS NULL THEN 'removed' ELSE 'changed' END AS change,
    before.version AS version_before, after.version AS version_after,
    old.text AS text_before, new.text AS text_after
FROM (SELECT * FROM bank WHERE round = earlier AND {_has_bank("earlier")}) AS before
FULL JOIN (SELECT * FROM bank WHERE round = later AND {_has_bank("later")}) AS after USING (entry_id)
LEFT JOIN bank_texts AS old ON old.content_digest = before.content_digest
LEFT JOIN bank_texts AS new ON new.content_digest = after.content_digest
WHERE before.content_digest IS DISTINCT FROM after.content_digest OR before.version IS DISTINCT FROM after.version
UNION ALL BY NAME
SELECT NULL::VARCHAR AS entry_id WHERE NOT ({_has_bank("earlier")} AND {_has_bank("later")})
""",
}
"""Macros by signature: `FROM bank_at(7)` is the bank after round 7, `FROM bank_diff(2, 7)` what changed. Of a round
without a bank both are an error (`has_bank`): an empty answer would be a wrong one."""

_DERIVED = {
    "rounds": _ROUNDS,
    "bank_text": _BANK_TEXT,
    "bank_uses": BANK_USES,
    "lineage": LINEAGE,
    "sequences": SEQUENCES,
    "broken_games": BROKEN_GAMES,
    "timings": TIMINGS,
    "success_by_condition": SUCCESS_BY_CONDITION,
    "success_by_task": SUCCESS_BY_TASK,
    "pass_at_k": PASS_AT_K,
}
"""Views that are built on others alone."""
_STORED_BANK = "bank bank_changes bank_snapshots"
_MADE_OF = {
    **_DERIVED,
    **dict.fromkeys(("bank", "bank_texts"), _STORED_BANK),
    **dict.fromkeys(("broken_games", "timings", "approvals"), "stages"),
    **{signature.partition("(")[0]: body for signature, body in MACROS.items()},
    VALIDATIONS: "stages",
    Generation.table: BehaviorLogprobs.table,
}
"""What is read for what a query names."""


MARKED = "rounds"
"""The view of a catalog whose comment says where the catalog is: a copy is known by it."""


def columns_of(row_type: type[Row]) -> list[tuple[str, str, str]]:
    """Name, SQL type and description of every column of a row type's view, in order."""
    schema = schema_of(row_type)
    fields = [
        (field.name, sql_type(field.type), field.metadata[b"description"].decode())
        for field in (schema.field(name) for name in schema.names)
    ]
    if row_type is BankText:
        return fields
    place = {"round": "round of the directory it is in", "stage": "stage that wrote it"}
    added = [(name, kind, place[name]) for name, kind, _ in _PLACE if name not in schema.names]
    computed = ((name, kind, meaning) for name, kind, _, meaning in _COMPUTED.get(row_type, ()))
    return [*added, *fields, *((name, "VARCHAR", meaning) for name, _, meaning in _NOTED.get(row_type, ())), *computed]


def identifier(name: str) -> str:
    """The name of a table or column as SQL; in a file of somebody else's it may hold anything."""
    return '"' + name.replace('"', '""') + '"'


def view_bodies(source: Source, *, earlier: bool = False) -> dict[str, str]:
    """The SELECT behind every view, by view name; a later one may refer to earlier ones.

    `earlier`: the source shows the run as it was after a round that is not its last.
    """
    bodies = {
        row_type.table: _stored(source, row_type)
        for row_type in ROW_TYPES
        if row_type not in _NOTED and row_type not in (BankEntry, BankText)
    }
    if source.files(f"{BehaviorLogprobs.table}.parquet") is not None:
        both = {"records": bodies[Generation.table], "computed": bodies[BehaviorLogprobs.table]}
        bodies[Generation.table] = _BEHAVED.format(trainer=TRAINER, **both)
    bodies[BankEntry.table] = _bank(source)
    bodies[BankText.table] = _texts(source, earlier)
    bodies |= {table: _foreign(source, table, schema) for table, schema in source.foreign.items()}
    bodies[VECTORS] = _vectors(source)
    bodies["stages"] = _stages(source)
    bodies[VALIDATIONS] = _validations(source)
    for row_type, noted in _NOTED.items():
        added = ", ".join(f"stages.manifest ->> '{where}' AS {name}" for name, where, _ in noted)
        written = f"({_stored(source, row_type)}) AS written"
        bodies[row_type.table] = f"SELECT written.*, {added} FROM {written} JOIN stages USING (round, stage)"
    for row_type, computed in _COMPUTED.items():
        added = ", ".join(f"{expression} AS {name}" for name, _, expression, _ in computed)
        bodies[row_type.table] = f"SELECT *, {added} FROM ({bodies[row_type.table]})"
    return bodies | _DERIVED


def views_behind(sql: str, foreign: Collection[str] = ()) -> set[str]:
    """Every view that a query may read: those it names, and those that they read. `foreign` are the tables that another
    package's recipe wrote."""
    # Names of others may have capital letters, and signs between quotes.
    return _words_behind(sql) & {*(row_type.table for row_type in ROW_TYPES), "stages", VALIDATIONS, VECTORS} | {
        name for name in foreign if name.lower() in sql.lower()
    }


def _words_behind(sql: str) -> set[str]:
    """Every word of a query, and of the views and macros that it names."""
    found: set[str] = set()
    pending = [sql]
    while pending:
        for word in set(re.findall(r"\w+", pending.pop().lower())) - found:
            found.add(word)
            pending.append(_MADE_OF.get(word, ""))
    return found


def _stored(source: Source, row_type: type[Row], *, every_round: bool = False) -> str:
    """Rows of a type as the stages wrote them, with round and stage."""
    added = {name for name, *_ in (*_NOTED.get(row_type, ()), *_COMPUTED.get(row_type, ()))}
    listed = [(name, kind) for name, kind, _ in columns_of(row_type) if name not in added]
    return _read(source, row_type.table, listed, schema_of(row_type).names, every_round=every_round)


def _foreign(source: Source, table: str, schema: pa.Schema) -> str:
    """Rows of a type that is not the project's, with round and stage: its columns are those of the files."""
    places = [(name, kind) for name, kind, _ in _PLACE if name not in schema.names]
    return _read(source, table, [*places, *((field.name, sql_type(field.type)) for field in schema)], schema.names)


def _read(
    source: Source, table: str, listed: Sequence[tuple[str, str]], own: Collection[str], *, every_round: bool = False
) -> str:
    """Some columns of a table: its `own` from the files themselves, the others from where a file is."""
    files = source.files(f"{table}.parquet", every_round=every_round)
    if files is None:
        return _empty(listed)
    place = {name: f"{expression} AS {name}" for name, _, expression in _PLACE}
    row_type = ROW_TYPE_BY_TABLE.get(table)
    # Numbers and words of columns that files may lack are what they are by default; other columns are null.
    added = [field for field in fields(row_type) if field.name in row_type.added] if row_type else []  # type: ignore[arg-type]
    own_columns = {name: identifier(name) for name in own} | {
        each.name: f"coalesce({each.name}, {each.default!r}) AS {each.name}"
        for each in added
        if isinstance(each.default, int | str)
    }
    chosen = ", ".join((place | own_columns)[name] for name, _ in listed)
    columns = [pair for pair in listed if pair[0] in own]
    return f"SELECT {chosen} FROM {_parquet(source, files, columns, bool(added))}"


def _parquet(source: Source, files: str, columns: Sequence[tuple[str, str]], added: bool = False) -> str:
    """Rows of files, with the name of each; with `added`, a file may lack columns: they are null."""
    read = f"read_parquet({files}, filename = true, hive_partitioning = false"
    read += ", union_by_name = true" if added else ""
    if source.patterns:
        return _unless_elsewhere(source, f"{read}) SEMI JOIN {_named(source, files)}", columns)
    if added:
        none = ", ".join(f"NULL::{kind} AS {identifier(name)}" for name, kind in columns)
        return f"(SELECT {none} WHERE false UNION ALL BY NAME SELECT * FROM {read}))"
    return f"{read})"


def _named(source: Source, files: str) -> str:
    """What patterns find beside what manifests name, to be joined: a file that lies there and that no stage wrote is no
    part of the record."""
    place = "parse_path(filename)[-3] || '/' || parse_path(filename)[-2] || '/'"
    shared = files in (source.segments(), source.vectors())
    of, name = ("shared", "''") if shared else ("files", place)
    vouched = f"{name} || unnest(json_keys(TRY_CAST(content AS JSON), '$.digested.{of}')) AS named"
    return (
        f"(SELECT {vouched} FROM read_text({source.files(MANIFEST)})) AS vouched "
        f"ON vouched.named = {place} || parse_filename(filename)"
    )


def _unless_elsewhere(source: Source, files: str, columns: Sequence[tuple[str, str]]) -> str:
    """What a pattern finds, with these columns; an error where the catalog is elsewhere than in its run: it was copied,
    and would answer from another run."""
    place = folder_sql(source)
    # In every column: DuckDB may decide by one of them that there are no rows, and never ask for another.
    none = ", ".join(
        f"CASE WHEN elsewhere THEN error(said) END::{kind} AS {identifier(name)}"
        for name, kind in [*columns, ("filename", "VARCHAR")]
    )
    here = (
        f"SELECT count(*) > 0 AS elsewhere, 'this catalog is that of ' || {place} || ', and was opened as ' || "
        "string_agg(path, ', ') || ': `crl catalog RUN` writes the catalog of a run that was copied or moved' AS said "
        "FROM duckdb_views() AS marked JOIN duckdb_databases() AS opened USING (database_name) "
        f"WHERE view_name = '{MARKED}' AND marked.comment = {place} AND path <> {place}"
    )
    return (
        f"(SELECT {none} FROM ({here}) WHERE CASE WHEN elsewhere THEN error(said) ELSE false END "
        f"UNION ALL BY NAME SELECT * FROM {files})"
    )


def folder_sql(source: Source) -> str:
    """Where the catalog of a run is, as an SQL string: what DuckDB calls it, however it was opened."""
    return "'" + f"{source.root.resolve()}/catalog.duckdb".replace("'", "''") + "'"


def _bank(source: Source) -> str:
    return _BANK.format(
        summed_up=_stored(source, BankSnapshot, every_round=True),
        bases=_stored(source, BankEntry, every_round=True),
        changes=_stored(source, BankChange, every_round=True),
        shown=_stored(source, BankSnapshot),
        unless_short=_UNLESS_SHORT if source.patterns else "",
        columns=", ".join(f'"{name}"' for name in schema_of(BankEntry).names),
    )


def _texts(source: Source, earlier: bool) -> str:
    columns = [(name, kind) for name, kind, _ in columns_of(BankText)]
    files = source.segments()
    if files is None:
        return _empty(columns)
    # The same text may be in several segments: a later snapshot is written without looking at older ones.
    texts = f"SELECT DISTINCT content_digest, text FROM {_parquet(source, files, columns)}"
    if not earlier:
        return texts
    changes, bases = (_stored(source, row_type, every_round=True) for row_type in (BankChange, BankEntry))
    return _TEXTS_THEN.format(texts=texts, changes=changes, bases=bases)


def _vectors(source: Source) -> str:
    """The embedding of every text that a bank held; a text that is stored twice has one vector."""
    columns = [("content_digest", "VARCHAR"), ("embedding", "FLOAT[]")]
    files = source.vectors()
    if files is None:
        return _empty(columns)
    read = _parquet(source, files, columns)
    return f"SELECT content_digest, any_value(embedding::FLOAT[]) AS embedding FROM {read} GROUP BY content_digest"


def macro_bodies(bodies: Mapping[str, str]) -> dict[str, str]:
    """The definition of every macro by signature, for views with these bodies. Each holds the views that it reads: a
    name in a macro is looked for where the macro is used, which may be in another database or schema."""
    made = {}
    for signature, body in MACROS.items():
        read = _words_behind(body)
        views = ", ".join(f"{identifier(name)} AS ({text})" for name, text in bodies.items() if name in read)
        made[signature] = f"(WITH {views} {body[1:]}" if body.startswith("(") else f"TABLE WITH {views} {body}"
    return made


def _stages(source: Source) -> str:
    files = source.files(MANIFEST)
    if files is None:
        own = [(name, kind) for name, kind, _, _ in STAGE_COLUMNS]
        return _empty([("round", "BIGINT"), ("stage", "VARCHAR"), *own, ("manifest", "JSON")])
    read = f"read_text({files})"
    if source.patterns:
        read = _unless_elsewhere(source, read, [("content", "VARCHAR")])
    columns = ",\n    ".join(
        f"TRY_CAST(TRY_CAST(content AS JSON) ->> '{place}' AS {kind}) AS {name}"
        for name, kind, place, _ in STAGE_COLUMNS
    )
    return _STAGES.format(files=read, columns=columns)


def _validations(source: Source) -> str:
    files = source.verdicts()
    if files is None:
        return _empty([(name, kind) for name, kind, *_ in VALIDATION_COLUMNS])
    read = f"read_text({files})"
    if source.patterns:
        read = _unless_elsewhere(source, read, [("content", "VARCHAR")])
    columns = ",\n    ".join(
        f"CAST({part} ->{'' if kind.endswith('[]') else '>'} '{place}' AS {kind}) AS {name}"
        for name, kind, part, place, _ in VALIDATION_COLUMNS
    )
    return _VALIDATIONS.format(files=read, columns=columns)


def _empty(columns: Sequence[tuple[str, str]]) -> str:
    return "SELECT " + ", ".join(f"NULL::{kind} AS {identifier(name)}" for name, kind in columns) + " WHERE false"
