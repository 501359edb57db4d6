"""The rows that importance-weighted replay brings: the buffer, what was drawn, what probes measured, the network."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records import Row, Rules
from crl.records.base import FLOATS, together

PROBE = "probe"
"""Stream of the episodes that probes play."""
HELD, EVICTED = "held", "evicted"
IMPROVED, WORSE, TIE, UNCHANGED, UNKNOWN = "improved", "worse", "tie", "unchanged", "unknown"
"""Verdicts on an update. `unchanged`: no step was taken; `unknown`: no pair of probes ended by the rules."""
LABELS = {IMPROVED: 1.0, WORSE: 0.0}
"""Label of the samples of an update; other verdicts give none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem(Row):
    """One past sample in the replay buffer: a sequence of an episode.

    All of an episode come and go together.
    """

    table: ClassVar[str] = "replay"
    added: ClassVar[tuple[str, ...]] = ("environment_seed",)
    generation_id: A[str, "token record that is trained"]
    generation_round: A[int, "round that wrote it"]
    generation_stage: A[str, "stage that wrote it"]
    episode_id: A[str, "episode it is a sequence of"]
    family: A[str, "task family"]
    reward: A[float, "reward of the episode"]
    advantage: A[float, "its advantage in its group"]
    turns: A[int, "turns of the episode"]
    trained: A[int, "trained tokens"]
    mean_logprob: A[float, "mean behavior log-probability of these tokens"]
    entered_order: A[int, "order of entry over the run; the oldest leave first"]
    score: A[float, "the network's score, 0 to 1; 0.5 before the first"]
    scored_round: A[int | None, "round of the score; null: none yet"]
    draws: A[int, "times it was drawn so far"]
    last_drawn_round: A[int | None, "round of the last draw"]
    status: A[str, "held, or evicted in this round"]
    environment_seed: A[int | None, "seed of its task"] = None

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("generation_id", "generation_stage", "episode_id", "family"),
        unique=(("entered_order",),),
        sets={"status": (HELD, EVICTED)},
        ranges={"score": (0, 1), "turns": (1, None), "trained": (1, None), "draws": (0, None)},
        rows={
            "its numbers are finite": "isfinite(reward) AND isfinite(advantage) AND isfinite(mean_logprob)",
            "a sample without an advantage is not kept": "advantage <> 0",
            "a score that nobody gave is neutral": "scored_round IS NOT NULL OR score = 0.5",
            "what was drawn has a round": "(draws = 0) = (last_drawn_round IS NULL)",
            "an episode is held or evicted as a whole": (
                "min(status) OVER (PARTITION BY episode_id) = max(status) OVER (PARTITION BY episode_id)"
            ),
            "the oldest leave first": (
                "status = 'held' OR entered_order < coalesce(min(entered_order) FILTER (status = 'held') OVER (),"
                " entered_order + 1)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEmbedding(Row):
    """The embedding of a sample, written when it enters the buffer."""

    table: ClassVar[str] = "replay_embeddings"
    generation_id: A[str, "token record"]
    embedding: A[list[float], FLOATS, "unit vector of task and actions; empty: no embedder"]

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("generation_id",),
        rows={"every number is finite": "len(list_filter(embedding, lambda each: NOT isfinite(each))) = 0"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDraw(Row):
    """One sample of one optimizer step's batch."""

    table: ClassVar[str] = "replay_draws"
    added: ClassVar[tuple[str, ...]] = ("environment_seed",)
    step: A[int, "optimizer step of the update, from 0"]
    generation_id: A[str, "token record"]
    episode_id: A[str, "episode it is a sequence of"]
    family: A[str, "task family"]
    probability: A[float, "probability that the batch's first draw is its episode"]
    score: A[float, "its score"]
    factor: A[float, "weight in drawing and in the loss; 1: uniform drawing"]
    age: A[int, "rounds since it was played"]
    features: A[list[float], FLOATS, "the network's input for it; empty: uniform drawing"]
    environment_seed: A[int | None, "seed of its task"] = None

    rules: ClassVar[Rules] = Rules(
        key=("step", "generation_id"),
        filled=("generation_id", "episode_id", "family"),
        ranges={
            "step": (0, None),
            "probability": (0, 1.0000001),
            "score": (0, 1),
            "factor": (0, 1),
            "age": (0, None),
        },
        rows={"every number is finite": "len(list_filter(features, lambda each: NOT isfinite(each))) = 0"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbePair(Row):
    """One probe task, played before and after an update with the same random stream."""

    table: ClassVar[str] = "probe_pairs"
    family: A[str, "task family"]
    environment_seed: A[int, "seed of the level"]
    before_id: A[str, "episode with the weights before the update"]
    after_id: A[str, "episode with the weights after it"]
    before_digest: A[str, "the weights before"]
    after_digest: A[str, "the weights after"]
    before: A[float, "reward before"]
    after: A[float, "reward after"]
    counts: A[bool, "whether both ended by the environment's rules"]

    rules: ClassVar[Rules] = Rules(
        key=("family", "environment_seed"),
        filled=("family", "before_id", "after_id"),
        sha256=("before_digest", "after_digest"),
        unique=(("before_id",), ("after_id",)),
        rows={
            "weights are not compared with themselves": "before_digest <> after_digest",
            "rewards are finite": "isfinite(before) AND isfinite(after)",
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Improvement(Row):
    """Whether an update improved the actor on its probes."""

    table: ClassVar[str] = "improvements"
    added: ClassVar[tuple[str, ...]] = ("environment_seed",)
    family: A[str | None, "task family of the probes and samples; null: all"]
    pairs: A[int, "pairs that count"]
    before: A[float | None, "mean reward before; null without pairs"]
    after: A[float | None, "mean reward after"]
    difference: A[float | None, "mean of after - before over the pairs"]
    verdict: A[str, "improved, worse, tie, unchanged (no step was taken) or unknown (no pair counts)"]
    label: A[float | None, "1 improved, 0 worse; null: trains nothing"]
    environment_seed: A[int | None, "seed of the task; null: all of the family"] = None

    rules: ClassVar[Rules] = Rules(
        key=("family", "environment_seed"),
        sets={"verdict": (IMPROVED, WORSE, TIE, UNCHANGED, UNKNOWN)},
        ranges={"pairs": (0, None)},
        rows={
            "means come together, from pairs": (
                together("before", "after", "difference") + " AND (before IS NULL) = (pairs = 0)"
            ),
            "a label is the verdict's": (
                "label IS NOT DISTINCT FROM CASE verdict WHEN 'improved' THEN 1 WHEN 'worse' THEN 0 END"
            ),
            "a label has pairs behind it": "label IS NULL OR pairs > 0",
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorTensor(Row):
    """One tensor of the extractor network with the state of its optimizer (Adam), after a round."""

    table: ClassVar[str] = "extractor_tensors"
    name: A[str, "parameter"]
    shape: A[list[int], "its shape"]
    weights: A[list[float], FLOATS, "its values, row by row"]
    first_moment: A[list[float], FLOATS, "running mean of its gradient"]
    second_moment: A[list[float], FLOATS, "running mean of the squared gradient"]
    steps: A[int, "optimizer steps so far"]

    rules: ClassVar[Rules] = Rules(
        key=("name",),
        filled=("name",),
        ranges={"steps": (0, None)},
        rows={
            "values and moments have one length": (
                "len(weights) = len(first_moment) AND len(weights) = len(second_moment)"
                " AND len(weights) = list_product(shape)"
            ),
            "every weight is finite": "len(list_filter(weights, lambda each: NOT isfinite(each))) = 0",
        },
    )


ROWS: tuple[type[Row], ...] = (ReplayItem, ReplayEmbedding, ReplayDraw, ProbePair, Improvement, ExtractorTensor)
