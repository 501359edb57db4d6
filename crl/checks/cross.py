"""Rules between the tables that one stage writes: each is a query for the rows that break it.

A query gives the table, the row (its position, from 0) and the id to name. Rules apply where a stage wrote all the
tables they speak of.
"""

from __future__ import annotations

from crl.checks.reward_rules import REWARD_CROSS_RULES
from crl.checks.suite import CrossRule
from crl.checks.trial_rules import TRIAL_CROSS_RULES

CROSS_RULES: tuple[CrossRule, ...] = (
    CrossRule(
        "a retrieval belongs to a planned episode and has its family",
        ("retrievals", "tasks"),
        "SELECT r.row, r.episode_id AS id FROM retrievals r LEFT JOIN tasks t USING (episode_id) "
        "WHERE t.episode_id IS NULL OR t.family <> r.family",
    ),
    CrossRule(
        "an experience is chosen for guided episodes only",
        ("retrievals", "tasks"),
        "SELECT r.row, r.episode_id AS id FROM retrievals r JOIN tasks t USING (episode_id) "
        "WHERE r.chosen AND t.stream <> 'guided'",
    ),
    CrossRule(
        "a turn belongs to an episode",
        ("turns", "episodes"),
        "SELECT t.row, t.episode_id AS id FROM turns t ANTI JOIN episodes e USING (episode_id)",
    ),
    CrossRule(
        "an episode has as many turns, and as many of them invalid, as it says",
        ("episodes", "turns"),
        "SELECT e.row, e.episode_id AS id FROM episodes e LEFT JOIN (SELECT episode_id, count(*) AS turns, "
        "sum((NOT valid)::INT) AS invalid FROM turns GROUP BY episode_id) t USING (episode_id) "
        # The turn in which an environment broke is not valid, and no fault of the actor's.
        "WHERE e.turns <> coalesce(t.turns, 0) "
        "OR e.invalid_actions <> coalesce(t.invalid, 0) - (e.stop_reason = 'error')::INT",
    ),
    CrossRule(
        "an episode has its token record",
        ("episodes", "generations"),
        "SELECT e.row, e.episode_id AS id FROM episodes e LEFT JOIN generations g USING (generation_id) "
        "WHERE g.generation_id IS NULL OR g.kind <> 'episode'",
    ),
    CrossRule(
        "an episode read and wrote the tokens of its record",
        ("episodes", "generations", "turns"),
        "SELECT e.row, e.episode_id AS id FROM episodes e JOIN generations g USING (generation_id) LEFT JOIN "
        "(SELECT episode_id, sum(last_token - first_token) AS wrote FROM turns GROUP BY episode_id) t "
        "USING (episode_id) "
        "WHERE e.tokens_sampled <> coalesce(t.wrote, 0) OR e.tokens_read <> g.n_tokens - coalesce(t.wrote, 0)",
    ),
    CrossRule(
        "a token record of the actor belongs to an episode",
        ("generations", "episodes"),
        "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN episodes e USING (generation_id) "
        "WHERE g.kind = 'episode'",
    ),
    CrossRule(
        "the trained tokens of an episode are those of its turns",
        ("generations", "episodes", "turns"),
        "SELECT g.row, g.generation_id AS id FROM generations g JOIN episodes e USING (generation_id) LEFT JOIN "
        "(SELECT episode_id, sum(last_token - first_token) AS sampled, max(last_token) AS last FROM turns "
        "GROUP BY episode_id) t USING (episode_id) "
        # Tokens that left no choice are sampled and not trained.
        "WHERE g.trained > coalesce(t.sampled, 0) OR coalesce(t.last, 0) > g.n_tokens "
        "OR (g.chosen = 0 AND g.trained NOT IN (0, coalesce(t.sampled, 0)))",
    ),
    CrossRule(
        "a raw reward is that of an episode of the family",
        ("raw_rewards", "episodes"),
        "SELECT r.row, r.episode_id AS id FROM raw_rewards r LEFT JOIN episodes e USING (episode_id) "
        "WHERE e.family IS DISTINCT FROM r.family",
    ),
    CrossRule(
        "an episode that broke is worth nothing by any convention",
        ("raw_rewards", "episodes"),
        "SELECT r.row, r.episode_id AS id FROM raw_rewards r JOIN episodes e USING (episode_id) "
        "WHERE e.error IS NOT NULL AND (r.raw_reward <> 0 OR e.reward <> 0)",
    ),
    CrossRule(
        "a stripped context belongs to a guided episode and its token record",
        ("stripped_contexts", "episodes"),
        "SELECT s.row, s.episode_id AS id FROM stripped_contexts s LEFT JOIN episodes e USING (episode_id) "
        "WHERE e.guided IS NOT TRUE OR s.generation_id <> e.generation_id",
    ),
    CrossRule(
        "every guided episode has its stripped context",
        ("episodes", "stripped_contexts"),
        "SELECT e.row, e.episode_id AS id FROM episodes e ANTI JOIN stripped_contexts s USING (episode_id) "
        "WHERE e.guided",
    ),
    CrossRule(
        "the trained tokens of a stripped context are those of the turns that asked nothing",
        ("stripped_contexts", "turns"),
        "SELECT s.row, s.episode_id AS id FROM stripped_contexts s LEFT JOIN (SELECT episode_id, "
        "sum(last_token - first_token) AS sampled FROM turns WHERE action IS DISTINCT FROM '<ask>' "
        "GROUP BY episode_id) t USING (episode_id) WHERE list_sum(s.loss_mask) > coalesce(t.sampled, 0) "
        "OR (len(s.choices) = 0 AND list_sum(s.loss_mask) NOT IN (0, coalesce(t.sampled, 0)))",
    ),
    CrossRule(
        "a stripped context and what was removed are the whole record",
        ("stripped_contexts", "generations"),
        "SELECT s.row, s.episode_id AS id FROM stripped_contexts s LEFT JOIN generations g USING (generation_id) "
        "WHERE g.n_tokens IS DISTINCT FROM len(s.token_ids) + s.removed_tokens",
    ),
    CrossRule(
        "a question is a turn that asked, answered if the turn was valid",
        ("questions", "turns"),
        "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN turns t USING (episode_id, turn) "
        "WHERE t.action IS DISTINCT FROM '<ask>' OR t.valid <> (q.answer IS NOT NULL) "
        "OR (t.valid AND t.feedback <> q.answer)",
    ),
    CrossRule(
        "a turn that asked has its question",
        ("turns", "questions"),
        "SELECT t.row, t.episode_id AS id FROM turns t ANTI JOIN questions q USING (episode_id, turn) "
        "WHERE t.action = '<ask>'",
    ),
    CrossRule(
        "only guided episodes are answered",
        ("questions", "episodes"),
        "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN episodes e USING (episode_id) "
        "WHERE e.episode_id IS NULL OR (NOT e.guided AND q.reason_code <> 'free_episode')",
    ),
    CrossRule(
        "an answer has its token record",
        ("questions", "generations"),
        "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN generations g USING (generation_id) "
        "WHERE q.generation_id IS NOT NULL AND g.kind IS DISTINCT FROM 'ask'",
    ),
    CrossRule(
        "the token record of an answer belongs to a question",
        ("generations", "questions"),
        "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN questions q USING (generation_id) "
        "WHERE g.kind = 'ask'",
    ),
    CrossRule(
        "an operation belongs to an output that is not malformed, and to its token record",
        ("operations", "distillations"),
        "SELECT o.row, o.operation_id AS id FROM operations o LEFT JOIN distillations d USING (distillation_id) "
        "WHERE d.distillation_id IS NULL OR d.verdict = 'malformed' OR d.generation_id <> o.generation_id",
    ),
    CrossRule(
        "what resembles another text is the text of an operation",
        ("resemblances", "operations"),
        "SELECT r.row, r.content_digest AS id FROM resemblances r "
        "ANTI JOIN (SELECT sha256(text) AS content_digest FROM operations WHERE text IS NOT NULL) o "
        "USING (content_digest)",
    ),
    CrossRule(
        "an extractor output has its token record",
        ("distillations", "generations"),
        "SELECT d.row, d.distillation_id AS id FROM distillations d LEFT JOIN generations g USING (generation_id) "
        "WHERE g.generation_id IS NULL OR g.kind <> d.kind",
    ),
    CrossRule(
        "every token record of the extractor is accounted for",
        ("generations", "distillations"),
        "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN distillations d USING (generation_id) "
        "WHERE g.kind IN ('distill', 'merge')",
    ),
    CrossRule(
        "an entry that changed in this round has the event of its change",
        ("bank_changes", "bank_events"),
        "SELECT b.row, b.entry_id AS id FROM bank_changes b WHERE NOT b.removed AND NOT EXISTS "
        "(SELECT 1 FROM bank_events v WHERE v.entry_id = b.entry_id AND v.after_digest = b.content_digest)",
    ),
    CrossRule(
        "what was evicted or dropped is not in the bank",
        ("bank_changes", "bank_events"),
        "SELECT b.row, b.entry_id AS id FROM bank_changes b JOIN (SELECT entry_id, arg_max(kind, row) AS last "
        "FROM bank_events WHERE entry_id IS NOT NULL AND kind IN ('add', 'update', 'merge', 'drop', 'evict') "
        "GROUP BY entry_id) v USING (entry_id) WHERE v.last IN ('drop', 'evict') AND NOT b.removed",
    ),
    CrossRule(
        "an entry that was evicted or dropped is removed, unless it came in this round",
        ("bank_events", "bank_changes"),
        "SELECT v.row, v.entry_id AS id FROM (SELECT max(row) AS row, entry_id, arg_min(kind, row) AS first, "
        "arg_max(kind, row) AS last FROM bank_events WHERE kind IN ('add', 'update', 'merge', 'drop', 'evict') "
        "GROUP BY entry_id) v ANTI JOIN (SELECT entry_id FROM bank_changes WHERE removed) b USING (entry_id) "
        "WHERE v.last IN ('drop', 'evict') AND v.first NOT IN ('add', 'merge')",
    ),
    CrossRule(
        "the summary of a bank counts the changes of the round",
        ("bank_snapshots", "bank_changes"),
        "SELECT s.row, s.round::VARCHAR AS id FROM bank_snapshots s, (SELECT count(*) FILTER (NOT removed) AS changed, "
        "count(*) FILTER (removed) AS removed FROM bank_changes) c "
        "WHERE s.changed <> c.changed OR s.removed <> c.removed",
    ),
    CrossRule(
        "what is trained on by eq. 3 was selected from the buffer",
        ("samples", "buffer"),
        "SELECT s.row, s.sample_id AS id FROM samples s LEFT JOIN buffer b USING (generation_id) "
        "WHERE s.objective = 'cispo' AND (b.generation_id IS NULL OR b.status <> 'selected')",
    ),
    CrossRule(
        "what is selected from the buffer is trained on",
        ("buffer", "samples"),
        "SELECT b.row, b.generation_id AS id FROM buffer b ANTI JOIN samples s USING (generation_id) "
        "WHERE b.status = 'selected'",
    ),
    *REWARD_CROSS_RULES,
    *TRIAL_CROSS_RULES,
)
