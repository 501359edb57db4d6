"""Rows of credit and training."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import CHOICE_FLOATS, CHOICES, FLOATS, MASK, TOKEN_ROWS, TOKENS, Row, Rules, together

CREDIT_RULES = {
    "outcome": "±1, as in the paper",
    "guided_minus_free": "±1 minus the mean of its group's free episodes",
    "running_usefulness": "the running usefulness of its entry",
    "other_tasks": "±1 averaged per task, without the experience's own task, where only a critic's verdict counts",
    "trend": "scores outputs in place of uses: the episode's ±1 minus the best utility among its candidates",
}
"""Rules of credit by name, each with what a use earns by it: the files of these names in `crl/credit/rules`."""


BASES = {
    "outcome": "±1",
    "guided_minus_free": "±1 minus the mean of the group's free episodes",
    "usefulness": "running usefulness of the entry",
    "other_task": "±1 on another task than the experience's own",
    "own_task": "nothing, on the experience's own task",
    "none": "nothing: the experience was rejected",
}
"""What a use earns beside the actor's verdict, r of eq. 8, by name. A rule that takes another names it here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credit(Row):
    """One use of an experience: the outcome of one guided episode, for the output that wrote the text."""

    table: ClassVar[str] = "credits"
    round: A[int, "round of the use"]
    episode_id: A[str, "guided episode"]
    entry_id: A[str, "entry that guided it"]
    content_digest: A[str, "version of the entry"]
    generation_id: A[str, "extractor output that wrote that version"]
    outcome: A[float, "+1 success, -1 failure"]
    free_mean: A[float | None, "mean outcome of the group's free episodes; null: none"]
    guided_minus_free: A[float | None, "outcome minus free_mean; trained on only with `credit: guided_minus_free`"]

    rules: ClassVar[Rules] = Rules(
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
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseReward(Row):
    """What one use of an experience earned for its writer, if that is not its outcome alone."""

    table: ClassVar[str] = "use_rewards"
    round: A[int, "round of the use"]
    episode_id: A[str, "episode the experience was used for"]
    entry_id: A[str, "entry that was used"]
    generation_id: A[str, "extractor output that wrote the version used"]
    basis: A[str, f"what r is; {'; '.join(f'{name}: {meaning}' for name, meaning in BASES.items())}"]
    outcome: A[float | None, "+1 success, -1 failure; null: the experience was rejected"]
    usefulness: A[float | None, "running usefulness of the entry after this use; null: r is something else"]
    critic_score: A[float | None, "s_c of eq. 8; null: no critique, or a malformed one"]
    reward: A[float, "s_c + r (eq. 8): what the output earned"]

    rules: ClassVar[Rules] = Rules(
        key=("episode_id", "entry_id"),
        filled=("episode_id", "entry_id", "generation_id"),
        sets={"basis": tuple(BASES)},
        ranges={"usefulness": (-1, 1)},
        rows={
            "an outcome is +1 or -1": "outcome IS NULL OR outcome IN (-1, 1)",
            "s_c is 1, 0.5 or 0": "critic_score IS NULL OR critic_score IN (0, 0.5, 1)",
            "only what was rejected has no outcome": "(basis = 'none') = (outcome IS NULL)",
            "what was rejected has its score": "basis <> 'none' OR critic_score = 0",
            "usefulness is there where it is the basis": "(basis = 'usefulness') = (usefulness IS NOT NULL)",
            "the reward is s_c + r (eq. 8)": (
                "CASE basis WHEN 'guided_minus_free' THEN abs(reward - coalesce(critic_score, 0)) <= 2 + 1e-9 "
                "ELSE abs(reward - coalesce(critic_score, 0) - CASE WHEN basis IN ('outcome', 'other_task') "
                "THEN outcome WHEN basis = 'usefulness' THEN usefulness ELSE 0 END) < 1e-9 END"
            ),
        },
        between={
            "a use with an outcome is credited with it": (
                "SELECT u.row, u.episode_id AS id FROM use_rewards u LEFT JOIN credits c USING (episode_id, entry_id) "
                "WHERE u.outcome IS DISTINCT FROM c.outcome OR (u.outcome IS NOT NULL AND u.generation_id <> "
                "c.generation_id)"
            ),
            "every credited use has its reward": (
                "SELECT c.row, c.episode_id AS id FROM credits c ANTI JOIN use_rewards u USING (episode_id, entry_id)"
            ),
            "a reward by guided minus free is that of the credit": (
                "SELECT u.row, u.episode_id AS id FROM use_rewards u JOIN credits c USING (episode_id, entry_id) "
                "WHERE u.basis = 'guided_minus_free' "
                "AND NOT coalesce(abs(u.reward - coalesce(u.critic_score, 0) - c.guided_minus_free) < 1e-9, false)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryUsefulness(Row):
    """Running usefulness of an entry's current text: the mean of its outcomes, where later ones weigh more."""

    table: ClassVar[str] = "entry_usefulness"
    entry_id: A[str, "bank entry"]
    content_digest: A[str, "the text that was used"]
    uses: A[int, "outcomes so far"]
    usefulness: A[float, "mean outcome (±1); an outcome n uses ago has weight decay^n"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id",),
        sha256=("content_digest",),
        ranges={"uses": (1, None), "usefulness": (-1, 1)},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryScore(Row):
    """Usefulness of an entry's current text so far; a new text starts anew."""

    table: ClassVar[str] = "entry_scores"
    entry_id: A[str, "bank entry"]
    content_digest: A[str, "the text that was used"]
    uses: A[int, "guided episodes of that text so far"]
    mean_outcome: A[float, "mean outcome (±1) of them"]
    last_used_round: A[int, "round of the last use"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id",),
        sha256=("content_digest",),
        ranges={"uses": (1, None), "mean_outcome": (-1, 1)},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BufferItem(Row):
    """State of one extractor output on its way to training, after this round's credit."""

    table: ClassVar[str] = "buffer"
    added: ClassVar[tuple[str, ...]] = ("compared_in", "advantage")
    generation_id: A[str, "extractor output"]
    generation_round: A[int, "round that wrote it"]
    generation_stage: A[str, "stage that wrote it: distill, merge, or collect for an answer to a question"]
    kind: A[str, "used, malformed, return or answer"]
    entered_round: A[int, "round it entered the buffer, or entered again"]
    entered_order: A[int, "order of entry over the run; the oldest are trained first"]
    uses: A[int, "scored uses since it entered"]
    score_sum: A[float, "sum of their rewards"]
    train_count: A[int, "c_train of eq. 7"]
    last_trained_round: A[int | None, "t_last of eq. 7"]
    status: A[str, "waiting, selected (trained this round), trained (waits for new uses) or dropped"]
    reason: A[str | None, "why it was dropped"]
    repeats: A[list[str], "outputs whose text it repeats: their uses count for it, too"] = dataclasses.field(
        default_factory=list
    )
    repeated_entries: A[list[str], "entries that hold these texts, in order"] = dataclasses.field(default_factory=list)
    compared_in: A[str | None, "episode whose outputs it is compared with; null: it is compared with its batch"] = None
    advantage: A[float | None, "its reward minus the mean of these outputs, divided by their deviation"] = None

    rules: ClassVar[Rules] = Rules(
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
            "what is compared in its episode has an advantage there, and is scored once": (
                f"{together('compared_in', 'advantage')} AND (advantage IS NULL OR (isfinite(advantage) "
                "AND kind = 'scored' AND generation_stage = 'distill'))"
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
        between={
            "what is selected from the buffer is trained on": (
                "SELECT b.row, b.generation_id AS id FROM buffer b ANTI JOIN samples s USING (generation_id) "
                "WHERE b.status = 'selected'"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLogprobs(Row):
    """A teacher's log-probabilities of one sequence, in its own context (`teacher_contexts`)."""

    table: ClassVar[str] = "teacher_logprobs"
    episode_id: A[str, "free episode"]
    generation_id: A[str, "sequence of that episode"]
    role: A[str, "role that teaches"]
    weights_digest: A[str, "its weights"]
    tokens_read: A[int, "tokens of the context with the sequence"]
    teacher_logprobs: A[list[float], FLOATS, "log-probability of each trained token; none: see reason_code"]
    top_ids: A[list[list[int]], CHOICES, "with top_k: the teacher's likeliest ids at each token, and the token itself"]
    top_logprobs: A[list[list[float]], CHOICE_FLOATS, "their log-probabilities"]
    reason_code: A[str | None, "context_limit: the sequence is too long for the teacher; null: it was read"]

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("episode_id", "generation_id", "role"),
        sha256=("weights_digest",),
        ranges={"tokens_read": (1, None)},
        sets={"reason_code": ("context_limit",)},
        rows={
            "log-probabilities are finite and not positive": (
                "coalesce(isfinite(list_sum(teacher_logprobs)) AND list_max(teacher_logprobs) <= 0, true)"
            ),
            "there are none where there is a reason": "reason_code IS NULL OR len(teacher_logprobs) = 0",
            "likeliest ids are those of every token, or there are none": (
                "len(top_ids) IN (0, len(teacher_logprobs)) AND len(top_ids) = len(top_logprobs)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Row):
    """One training sample, from one sequence: all that an update reads."""

    table: ClassVar[str] = "samples"
    added: ClassVar[tuple[str, ...]] = ("token_advantages", "teacher_logprobs", "top_ids", "top_logprobs")
    sample_id: A[str, "id"]
    round: A[int, "round it is trained in"]
    role: A[str, "role it trains"]
    objective: A[str, "name of the objective: grpo, cispo, nll, reverse_kl, or one of the recipe's"]
    source: A[str, "<round>/<stage> of the generation"]
    generation_id: A[str, "token record it was made from"]
    reward: A[float, "reward before the baseline"]
    advantage: A[float, "advantage of eq. 3 or 5, the same in all sequences of an episode; 1 for other objectives"]
    weight: A[float, "factor in the objective: subgroup weight times share of the episode, or eq. 7"]
    step: A[int, "optimizer step of the update, from 0; samples of one step are one batch"] = 0
    temperature: A[float, "divides the logits, as in sampling"]
    token_ids: A[list[int], TOKENS, "whole sequence"]
    loss_mask: A[list[int], MASK, "1 on trained tokens"]
    logprobs: A[list[float], FLOATS, "stored behavior log-probabilities"]
    choices: A[list[list[int]], CHOICES, "ids that each trained token was chosen from; none: the vocabulary"] = (
        dataclasses.field(default_factory=list)
    )
    token_advantages: A[list[float], FLOATS, "advantage of each trained token, if turns have their own"] = (
        dataclasses.field(default_factory=list)
    )
    teacher_logprobs: A[list[float], FLOATS, "for reverse_kl: the teacher's log-probability of each trained token"] = (
        dataclasses.field(default_factory=list)
    )
    top_ids: A[
        list[list[int]], CHOICES, "with top_k: the teacher's likeliest ids at each token, and the token itself"
    ] = dataclasses.field(default_factory=list)
    top_logprobs: A[list[list[float]], CHOICE_FLOATS, "the teacher's log-probabilities of these"] = dataclasses.field(
        default_factory=list
    )

    rules: ClassVar[Rules] = Rules(
        key=("sample_id",),
        filled=("sample_id", "generation_id", "source", "role", "objective"),
        ranges={"weight": (0, None)},
        rows={
            "reward, advantage and weight are finite": "isfinite(reward) AND isfinite(advantage) AND isfinite(weight)",
            "temperature is positive": "isfinite(temperature) AND temperature > 0",
            "a sample that counts has a trained token": "trained > 0 OR advantage = 0 OR weight = 0",
            "token_advantages are finite, one of each trained token or none": (
                "len(token_advantages) IN (0, trained) AND list_sum(list_transform(token_advantages, "
                "lambda each: CASE WHEN isfinite(each) THEN 0 ELSE 1 END)) IS NOT DISTINCT FROM "
                "CASE WHEN len(token_advantages) = 0 THEN NULL ELSE 0 END"
            ),
            "a teacher's log-probabilities are those of every trained token of reverse_kl, and not positive": (
                "len(teacher_logprobs) = CASE WHEN objective = 'reverse_kl' THEN trained ELSE 0 END AND "
                "coalesce(isfinite(list_sum(teacher_logprobs)) AND list_max(teacher_logprobs) <= 0, true)"
            ),
            "a teacher's likeliest ids are those of every trained token, or there are none": (
                "len(top_ids) IN (0, trained) AND len(top_ids) = len(top_logprobs)"
            ),
            **TOKEN_ROWS,
        },
        between={
            "what is trained on by eq. 3 was selected from the buffer": (
                "SELECT s.row, s.sample_id AS id FROM samples s LEFT JOIN buffer b USING (generation_id) "
                "WHERE s.objective = 'cispo' AND (b.generation_id IS NULL OR b.status <> 'selected')"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Row):
    """Which weights a role has after a round."""

    table: ClassVar[str] = "weights"
    role: A[str, "role that owns the weights, or embedder (never trained: round 0 only)"]
    round: A[int, "round this row belongs to"]
    updates: A[int, "RL updates so far"]
    source: A[str, "base model, or embedder, as configured"]
    base_digest: A[str, "SHA-256 over the base model's files"]
    checkpoint: A[str | None, "run-relative directory of the checkpoint; null means the base model as it is"]
    weights_digest: A[str, "SHA-256 identifying base and checkpoint together"]

    rules: ClassVar[Rules] = Rules(
        key=("role",),
        filled=("role",),
        sha256=("base_digest", "weights_digest"),
        ranges={"updates": (0, None)},
        patterns={"checkpoint": "^rounds/"},
        rows={"updated weights have a checkpoint": "updates = 0 OR checkpoint IS NOT NULL"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Row):
    """One number about a stage."""

    table: ClassVar[str] = "metrics"
    round: A[int, "round number"]
    stage: A[str, "stage"]
    name: A[str, "name of the metric"]
    value: A[float, "its value"]
    alarm: A[str | None, "what is wrong, if it is outside its bounds"]

    rules: ClassVar[Rules] = Rules(
        key=("stage", "name"),
        filled=("stage", "name"),
        rows={"a metric is finite, or says what is wrong": "isfinite(value) OR alarm IS NOT NULL"},
    )
