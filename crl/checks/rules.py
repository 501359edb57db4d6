"""The rules of every row type: what must hold in each of its rows, or between rows of the same table.

Row rules are SQL predicates over the table. Token lists are not seen by SQL: `summaries.py` turns them into counts
(`n_tokens`, `trained`, `positive_logprobs`, …) first. `suite.py` says what the fields mean and writes the rules out as
expectations; rules between tables are in `cross.py`.
"""

from __future__ import annotations

from crl.checks.reward_rules import REWARD_SUITES
from crl.checks.suite import Suite, together
from crl.checks.trial_rules import TRIAL_SUITES
from crl.records import (
    Approval,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BankText,
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Evaluation,
    Generation,
    ImportedEntry,
    Metric,
    Operation,
    Question,
    RawReward,
    Resemblance,
    Retrieval,
    RetrievalCount,
    Row,
    Sample,
    StrippedContext,
    Task,
    Turn,
    Weights,
)

_EPISODE_STOPS = ("success", "failure", "turn_limit", "context_limit", "error")
_QUESTION_REASONS = (
    "ok", "free_episode", "uses_spent", "empty", "too_long", "episode_over", "no_entry", "prompt_too_long", "no_answer",
)  # fmt: skip


def _one_in_each(column: str, group: str) -> str:
    return f"min({column}) OVER (PARTITION BY {group}) = max({column}) OVER (PARTITION BY {group})"


_TOKEN_ROWS = {
    "token_ids, loss_mask and logprobs have one length": "n_tokens = n_mask AND n_tokens = n_logprobs",
    "loss_mask holds 0 and 1 only": "bad_masks = 0",
    "token ids are not negative": "bad_tokens = 0",
    "log-probabilities are finite": "nonfinite_logprobs = 0",
    "log-probabilities are not positive": "positive_logprobs = 0",
    "log-probabilities are 0 where the mask is 0": "unmasked_logprobs = 0",
    "choices are those of every trained token, or there are none": "chosen IN (0, trained)",
}

_BANK_ENTRY = Suite(
    key=("entry_id",),
    filled=("entry_id", "family", "operation_id", "distillation_id", "generation_id"),
    sha256=("content_digest",),
    unique=(("order",),),
    ranges={"version": (1, None)},
    patterns={"segment": "^bank/", "embedding_file": "^bank/"},
    ordered=(("updated_round", "created_round"),),
    rows={
        "an entry derives from some episode": "len(episode_ids) > 0",
        "an entry is not its own parent": "NOT list_contains(parents, entry_id)",
    },
)

SUITES: dict[type[Row], Suite] = {
    Task: Suite(
        key=("episode_id",),
        filled=("episode_id", "family", "query", "stream"),
        unique=(("group", "member"),),
        ranges={"environment_seed": (0, None), "round": (0, None), "group": (0, None), "member": (0, None)},
        rows={
            "a group shares one environment seed": _one_in_each("environment_seed", '"group"'),
            "a group is of one family": _one_in_each("family", '"group"'),
        },
    ),
    Retrieval: Suite(
        key=("episode_id", "entry_id"),
        filled=("episode_id", "entry_id", "generation_id"),
        sha256=("content_digest",),
        unique=(("episode_id", "rank"),),
        ordered=(("round", "bank_round"),),
        ranges={"similarity": (-1.0001, 1.0001), "rank": (0, None), "count": (0, None)},
        rows={
            "every term of eq. 6 is finite": "isfinite(similarity) AND isfinite(rank_score) AND isfinite(score)",
            "at most 16 candidates of an episode are chosen": (  # the largest top_k
                "sum(chosen::INT) OVER (PARTITION BY episode_id) <= 16"
            ),
        },
    ),
    RetrievalCount: Suite(
        key=("entry_id",),
        filled=("entry_id",),
        ranges={"count": (0, None)},
        rows={
            "an entry that was chosen has a round": "count = 0 OR last_round >= 0",
        },
    ),
    Episode: Suite(
        key=("episode_id",),
        filled=("episode_id", "generation_id", "family"),
        unique=(("generation_id",),),
        sets={"stop_reason": _EPISODE_STOPS},
        ranges={"turns": (0, None), "tokens_read": (1, None), "invalid_actions": (0, None)},
        ordered=(("tokens_sampled", "turns"), ("turns", "invalid_actions")),
        rows={
            "guided means that an experience was shown": "guided = (entry_id IS NOT NULL) AND "
            + together("entry_id", "content_digest", "experience"),
            "the first of the experiences is the one that is named": (
                "entry_id IS NOT DISTINCT FROM entry_ids[1] AND content_digest IS NOT DISTINCT FROM content_digests[1]"
            ),
            "every experience has its version and its text, and is shown once": (
                "len(entry_ids) = len(content_digests) AND len(entry_ids) = len(experiences)"
                " AND len(list_distinct(entry_ids)) = len(entry_ids)"
            ),
            "success is the stop reason of a success": "success = (stop_reason = 'success')",
            "the reward is finite": "isfinite(reward)",
            "an error has a reason code, nothing else has": "(stop_reason = 'error') = (error IS NOT NULL)",
            "what the last action did is known unless the environment broke": (
                "(stop_reason = 'error') = (last_observation IS NULL)"
            ),
        },
    ),
    RawReward: Suite(
        key=("episode_id",),
        filled=("episode_id", "family"),
        rows={"the reward is finite": "isfinite(raw_reward)"},
    ),
    Turn: Suite(
        key=("episode_id", "turn"),
        filled=("episode_id",),
        ordered=(("last_token", "first_token"),),
        sets={"stop_reason": ("end_of_turn", "stop_string", "length")},
        ranges={"first_token": (0, None)},
        rows={
            "a valid turn has an action": "NOT valid OR action IS NOT NULL",
            "turns of an episode are numbered without a gap": (
                "turn = row_number() OVER (PARTITION BY episode_id ORDER BY turn) - 1"
            ),
            "spans of an episode do not overlap": (
                "first_token >= coalesce(lag(last_token) OVER (PARTITION BY episode_id ORDER BY turn), 0)"
            ),
        },
    ),
    Generation: Suite(
        key=("generation_id",),
        filled=("generation_id", "stage", "stop_reason", "role", "kind"),
        sha256=("weights_digest",),
        rows={
            "temperature is positive": "isfinite(temperature) AND temperature > 0",
            **_TOKEN_ROWS,
        },
    ),
    Question: Suite(
        key=("question_id",),
        filled=("question_id", "episode_id", "family"),
        sha256=("content_digest",),
        unique=(("episode_id", "turn"),),
        sets={"reason_code": _QUESTION_REASONS},
        ranges={"turn": (0, None), "similarity": (-1.0001, 1.0001)},
        rows={
            "the id names the episode": "starts_with(question_id, 'q-' || episode_id || '-')",
            "ok means that there is an answer": "(reason_code = 'ok') = (answer IS NOT NULL)",
            "an answer was sampled": "answer IS NULL OR (generation_id IS NOT NULL AND trim(answer) <> '')",
            "an answer comes from an entry": "generation_id IS NULL OR entry_id IS NOT NULL",
            "an entry comes with its version and similarity": together("entry_id", "content_digest", "similarity"),
        },
    ),
    StrippedContext: Suite(
        key=("episode_id",),
        filled=("episode_id", "generation_id"),
        rows={
            "token_ids and loss_mask have one length": "len(token_ids) > 0 AND len(token_ids) = len(loss_mask)",
            "loss_mask holds 0 and 1 only": "list_min(loss_mask) >= 0 AND list_max(loss_mask) <= 1",
            "token ids are not negative": "list_min(token_ids) >= 0",
            "choices are those of every trained token, or there are none": "len(choices) IN (0, list_sum(loss_mask))",
        },
    ),
    Distillation: Suite(
        key=("distillation_id",),
        filled=("distillation_id", "generation_id", "family", "reason_code"),
        unique=(("generation_id",),),
        sets={
            "kind": ("distill", "merge"),
            "format": ("json", "lines"),
            "verdict": ("malformed", "return", "add", "update", "mixed", "merge"),
        },
        rows={
            "a distillation has its episode, a merge its entries": (
                "(kind = 'distill') = (episode_id IS NOT NULL) AND (kind = 'distill' OR len(source_entry_ids) > 0)"
            ),
            "a distillation says how many turns there were and were shown, a merge has none": (
                "CASE kind WHEN 'distill' THEN turns_shown BETWEEN 0 AND turns "
                "ELSE turns IS NULL AND turns_shown IS NULL END"
            ),
            "malformed has a reason code other than ok": "(verdict = 'malformed') = (reason_code <> 'ok')",
            "malformed output asks for nothing": "operations >= 0 AND (verdict <> 'malformed' OR operations = 0)",
        },
    ),
    Operation: Suite(
        key=("operation_id",),
        filled=("distillation_id", "generation_id", "family"),
        sets={"kind": ("add", "update", "return", "keep", "merge", "drop")},
        ranges={"index": (0, None)},
        rows={
            "the id names output and position": "operation_id = distillation_id || '-o' || \"index\"",
            "everything but return names an entry": "(kind = 'return') = (entry_id IS NULL)",
            "add, update and merge have a text": (
                "kind NOT IN ('add', 'update', 'merge') OR (text IS NOT NULL AND trim(text) <> '')"
            ),
            "return and drop have no text": "kind NOT IN ('return', 'drop') OR text IS NULL",
            "of every text it is known whether the embedder reads all of it": together("text", "embedder_cut"),
        },
    ),
    Resemblance: Suite(
        key=("content_digest", "other_digest"),
        sha256=("content_digest", "other_digest"),
        ranges={"similarity": (0, 1.0001)},
        rows={
            "a text does not repeat itself": "content_digest <> other_digest",
        },
    ),
    BankEntry: _BANK_ENTRY,
    BankChange: _BANK_ENTRY,
    BankSnapshot: Suite(
        key=("round",),
        sha256=("digest",),
        ranges={
            "entries": (0, None),
            "changed": (0, None),
            "removed": (0, None),
            "changes_since_base": (0, None),
            "base_round": (0, None),
        },
        ordered=(("round", "base_round"),),
        rows={
            "after a base nothing has changed yet": "base_round < round OR changes_since_base = 0",
        },
    ),
    BankText: Suite(
        key=("content_digest",),
        filled=("text",),
        rows={"the digest is that of the text": "sha256(text) = content_digest"},
    ),
    BankEvent: Suite(
        key=("event_id",),
        filled=("event_id",),
        sets={"kind": ("import", "add", "update", "merge", "drop", "evict", "keep", "return", "rejected")},
        rows={
            "an import or eviction has no operation, anything else has one": (
                "(kind IN ('import', 'evict')) = (operation_id IS NULL)"
            ),
            "a rejection or eviction has a reason": "kind NOT IN ('rejected', 'evict') OR reason IS NOT NULL",
            "only a rejected duplicate repeats an entry": (
                "repeats IS NULL OR (kind = 'rejected' AND repeats <> ''"
                " AND reason IN ('duplicate', 'near_duplicate', 'unchanged'))"
            ),
            "what is imported, added, updated or merged has a new text": (
                "kind NOT IN ('import', 'add', 'update', 'merge')"
                " OR (entry_id IS NOT NULL AND after_digest IS NOT NULL)"
            ),
            "an imported or added entry had no text before": "kind NOT IN ('import', 'add') OR before_digest IS NULL",
            "what is dropped or evicted is gone": (
                "kind NOT IN ('drop', 'evict') OR (entry_id IS NOT NULL AND after_digest IS NULL)"
            ),
        },
    ),
    ImportedEntry: Suite(
        key=("entry_id",),
        filled=("family", "generation_id", "source_experiment", "source_family"),
        sha256=("content_digest", "source_snapshot"),
        ranges={"source_round": (0, None), "source_version": (1, None), "uses": (0, None), "mean_outcome": (-1, 1)},
        rows={
            "the id names where it comes from": (
                "entry_id = source_experiment || '-r' || printf('%04d', source_round) || '-' || source_entry_id"
            ),
            "what was used has an outcome": "(uses = 0) = (mean_outcome IS NULL)",
            "its story is JSON": "json_valid(story)",
        },
    ),
    Approval: Suite(
        key=("round",),
        sets={"decision": ("approved", "partly", "rejected")},
        ranges={"operations": (0, None)},
        rows={
            "a person is named": "trim(person) <> ''",
            "a rejected operation is named once": "len(list_distinct(rejected_operations)) = len(rejected_operations)",
            "approved rejects nothing, rejected everything, partly something between": (
                "CASE decision WHEN 'approved' THEN len(rejected_operations) = 0 "
                "WHEN 'rejected' THEN len(rejected_operations) = operations "
                "ELSE len(rejected_operations) BETWEEN 1 AND operations - 1 END"
            ),
        },
    ),
    Credit: Suite(
        key=("episode_id", "entry_id"),
        filled=("episode_id", "entry_id", "generation_id"),
        sha256=("content_digest",),
        ranges={"free_mean": (-1, 1)},
        rows={
            "an outcome is +1 or -1": "outcome IN (-1, 1)",
            "the difference is taken where the group has unguided rollouts": together("free_mean", "guided_minus_free"),
            "the difference is outcome minus free mean": (
                "guided_minus_free IS NULL OR abs(guided_minus_free - (outcome - free_mean)) < 1e-9"
            ),
        },
    ),
    EntryScore: Suite(
        key=("entry_id",),
        filled=("entry_id",),
        sha256=("content_digest",),
        ranges={"uses": (1, None), "mean_outcome": (-1, 1)},
    ),
    BufferItem: Suite(
        key=("generation_id",),
        filled=("generation_id",),
        ordered=(("entered_round", "generation_round"),),
        ranges={"uses": (0, None), "train_count": (0, None)},
        sets={
            "kind": ("used", "malformed", "return", "answer", "scored"),
            "status": ("waiting", "selected", "trained", "dropped"),
            "generation_stage": ("distill", "merge", "collect"),
        },
        rows={
            "the sum of rewards is at most three per use": (  # s_c 1, and guided minus free 2
                "isfinite(score_sum) AND (kind NOT IN ('used', 'scored') OR abs(score_sum) <= 3 * uses + 1e-9)"
            ),
            "what was trained has a round, nothing else has": "(train_count > 0) = (last_trained_round IS NOT NULL)",
            "what was dropped has a reason": "status <> 'dropped' OR reason IS NOT NULL",
            "a text that it repeats has its entry and its output, and is named once": (
                "len(repeats) = len(repeated_entries)"
                " AND len(list_distinct(list_zip(repeats, repeated_entries))) = len(repeats)"
            ),
            "an answer is written while collecting, an experience is not": (
                "CASE kind WHEN 'answer' THEN generation_stage = 'collect' WHEN 'malformed' THEN true "
                "ELSE generation_stage <> 'collect' END"
            ),
        },
    ),
    Sample: Suite(
        key=("sample_id",),
        filled=("sample_id", "generation_id", "source", "role", "objective"),
        ranges={"weight": (0, None)},
        rows={
            "reward, advantage and weight are finite": "isfinite(reward) AND isfinite(advantage) AND isfinite(weight)",
            "temperature is positive": "isfinite(temperature) AND temperature > 0",
            "a sample that counts has a trained token": "trained > 0 OR advantage = 0 OR weight = 0",
            **_TOKEN_ROWS,
        },
    ),
    Weights: Suite(
        key=("role",),
        filled=("role",),
        sha256=("base_digest", "weights_digest"),
        ranges={"updates": (0, None)},
        patterns={"checkpoint": "^rounds/"},
        rows={
            "updated weights have a checkpoint": "updates = 0 OR checkpoint IS NOT NULL",
        },
    ),
    Metric: Suite(
        key=("stage", "name"),
        filled=("stage", "name"),
        rows={
            "a figure is finite, or says what is wrong": "isfinite(value) OR alarm IS NOT NULL",
        },
    ),
    Evaluation: Suite(
        key=("evaluation_id",),
        filled=("evaluation_id", "family"),
        sets={"arm": ("with_bank", "without_bank", "random"), "stop_reason": _EPISODE_STOPS},
        ranges={"turns": (0, None), "invalid_actions": (0, None)},
        ordered=(("turns", "invalid_actions"),),
        rows={
            "guided means that an experience was shown": "guided = (entry_id IS NOT NULL)",
            "the first of the experiences is the one that is named": "entry_id IS NOT DISTINCT FROM entry_ids[1]",
            "without the bank nothing is guided": "arm = 'with_bank' OR NOT guided",
            "success is the stop reason of a success": "success = (stop_reason = 'success')",
            "the reward is finite": "isfinite(reward)",
            "every turn has an action": "stop_reason = 'error' OR len(actions) = turns",
            "a turn has sampled tokens, but for the random policy's": (
                "CASE arm WHEN 'random' THEN tokens_read = 0 AND tokens_sampled = 0 "
                "ELSE tokens_read > 0 AND tokens_sampled >= turns END"
            ),
        },
    ),
    **REWARD_SUITES,
    **TRIAL_SUITES,
}
