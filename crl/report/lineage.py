"""One SQL query: where an experience comes from and what became of it.

`LINEAGE` is the body of the view `lineage`; it is built on the other views and is shown in `docs/sql.md`. With one row
per use it answers: which episodes made this experience, which prompt and which extractor checkpoint wrote it, where it
was used, with what outcome and which guided-minus-free difference. A version that was never used has one row with an
empty use.
"""

from __future__ import annotations

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
