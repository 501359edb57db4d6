"""Rows of credit and training."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import CHOICES, FLOATS, MASK, TOKENS, Row


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
    free_mean: A[float | None, "mean outcome of the unguided rollouts of the same group; null without any"]
    guided_minus_free: A[float | None, "outcome minus free_mean; trained on only with `credit: guided_minus_free`"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseReward(Row):
    """What one use of an experience earned for the output that wrote it, where that is not its outcome alone."""

    table: ClassVar[str] = "use_rewards"
    round: A[int, "round of the use"]
    episode_id: A[str, "episode the experience was used for"]
    entry_id: A[str, "entry that was used"]
    generation_id: A[str, "extractor output that wrote the version used"]
    basis: A[str, "what r is: outcome, guided_minus_free or usefulness; none where the experience was rejected"]
    outcome: A[float | None, "+1 success, -1 failure; null where the experience was rejected"]
    usefulness: A[float | None, "running usefulness of the entry after this use; null where r is another"]
    critic_score: A[float | None, "s_c of eq. 8; null where nobody judged, or the verdict was malformed"]
    reward: A[float, "s_c + r (eq. 8): what the output earned"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryUsefulness(Row):
    """Running usefulness of an entry in the words used last: the mean of its outcomes, the latest weighing most."""

    table: ClassVar[str] = "entry_usefulness"
    entry_id: A[str, "bank entry"]
    content_digest: A[str, "its text that the outcomes are of"]
    uses: A[int, "outcomes so far"]
    usefulness: A[float, "mean of +1 / -1 over them, an outcome n uses ago weighing decay^n"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryScore(Row):
    """Cumulative usefulness of an entry in the words used last: the first use of another text starts anew."""

    table: ClassVar[str] = "entry_scores"
    entry_id: A[str, "bank entry"]
    content_digest: A[str, "its text that the uses are of"]
    uses: A[int, "guided episodes of that text so far"]
    mean_outcome: A[float, "mean of +1 / -1 over them"]
    last_used_round: A[int, "round of the last use"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BufferItem(Row):
    """State of one extractor output on its way to training, after this round's credit."""

    table: ClassVar[str] = "buffer"
    generation_id: A[str, "extractor output"]
    generation_round: A[int, "round that wrote it"]
    generation_stage: A[str, "stage that wrote it: distill, merge, or collect for an answer to a question"]
    kind: A[str, "used, malformed, return or answer"]
    entered_round: A[int, "round it (re-)entered the buffer"]
    entered_order: A[int, "order of entry over the run: the oldest are trained first"]
    uses: A[int, "scored uses since it entered"]
    score_sum: A[float, "sum of their rewards"]
    train_count: A[int, "c_train of eq. 7"]
    last_trained_round: A[int | None, "t_last of eq. 7"]
    status: A[str, "waiting, selected (trained this round), trained (waits for new uses) or dropped"]
    reason: A[str | None, "why it was dropped"]
    repeats: A[list[str], "outputs whose text it wrote again: uses of these texts count for it, too"] = (
        dataclasses.field(default_factory=list)
    )
    repeated_entries: A[list[str], "entries that hold these texts, in the same order"] = dataclasses.field(
        default_factory=list
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Row):
    """One training sample: all that `learn` ever reads."""

    table: ClassVar[str] = "samples"
    sample_id: A[str, "id"]
    round: A[int, "round it is trained in"]
    role: A[str, "role it trains"]
    objective: A[str, "name of the objective: grpo, cispo, nll, or one of the recipe's"]
    source: A[str, "<round>/<stage> of the generation"]
    generation_id: A[str, "token record it was made from"]
    reward: A[float, "reward before the baseline"]
    advantage: A[float, "advantage of eq. 3 or 5; 1 for nll"]
    weight: A[float, "factor of this sample in the objective (subgroup weight, eq. 7)"]
    step: A[int, "optimizer step of the update, from 0; samples of one step are one batch"] = 0
    temperature: A[float, "logits are divided by it, as when sampling"]
    token_ids: A[list[int], TOKENS, "whole sequence"]
    loss_mask: A[list[int], MASK, "1 on trained tokens"]
    logprobs: A[list[float], FLOATS, "stored behavior log-probabilities"]
    choices: A[list[list[int]], CHOICES, "ids that each trained token was chosen among; none: the vocabulary"] = (
        dataclasses.field(default_factory=list)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Row):
    """One number about a stage."""

    table: ClassVar[str] = "metrics"
    round: A[int, "round number"]
    stage: A[str, "stage"]
    name: A[str, "name of the figure"]
    value: A[float, "its value"]
    alarm: A[str | None, "what is wrong with it, where it is outside its bounds"]
