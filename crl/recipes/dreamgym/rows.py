"""The rows that DreamGym brings: transitions with their vectors and pools, predictions, tasks and how they vary."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records import SYNTHETIC, Row, Rules
from crl.records.base import FLOATS

REAL, EXPLORED, GIVEN = "real", "explored", "given"
"""Streams: episodes of a batch in the real environment, those that are played for the experience model, and those that
a file brought. Those in that model are `crl.records.SYNTHETIC`."""
HELD, EVICTED = "held", "evicted"
FIT, HELD_OUT, NEITHER = "fit", "held_out", "none"
"""Real transitions that fits may use, and those that none does; predicted ones are neither."""
CONTINUES, SUCCESS, FAILURE, TURN_LIMIT = OUTCOMES = ("continues", "success", "failure", "turn_limit")
ENDINGS = (SUCCESS, FAILURE)
"""Outcomes with which an environment ends an episode. Its turn limit is a rule that episodes of the model keep too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Row):
    """One step of an environment, real or predicted."""

    table: ClassVar[str] = "transitions"
    transition_id: A[str, "t-<episode>-<turn>"]
    round: A[int, "round number"]
    source: A[str, "real, or synthetic: predicted by the experience model"]
    split: A[str, "fit; held_out: on a seed that no fit sees; none: predicted"]
    policy: A[str, "who acted: random, actor, or the source of the given file"]
    family: A[str, "task family"]
    environment_seed: A[int, "seed of the environment"]
    episode_id: A[str, "episode it is a step of"]
    turn: A[int, "turn index from 0"]
    goal: A[str, "what the environment asks for"]
    history: A[list[str], "earlier turns shown, oldest first: observation, action, observation, …"]
    observation: A[str, "what was seen before the action"]
    action: A[str, "the action, as the environment was given it"]
    actions: A[list[str], "possible actions, by name; none: actions are text"]
    reasoning: A[str | None, "why the step has that outcome; null: unknown"]
    reasoning_source: A[str, "environment, model or none; a teacher's are in annotations"]
    next_observation: A[str, "what was seen after it"]
    next_actions: A[list[str], "possible actions then, by name"]
    feedback: A[str, "what was said about the action, apart from the observation"]
    legal: A[bool, "whether the action was legal and taken"]
    outcome: A[str, "continues, success, failure or turn_limit"]
    reward: A[float, "the episode's reward if the step ends it, else 0"]
    prediction_id: A[str | None, "prediction that made it; null for a real one"]

    rules: ClassVar[Rules] = Rules(
        key=("transition_id",),
        filled=("transition_id", "family", "episode_id"),
        unique=(("episode_id", "turn"),),
        sets={
            "source": (REAL, SYNTHETIC),
            "split": (FIT, HELD_OUT, NEITHER),
            "policy": ("random", "actor", GIVEN),
            "outcome": OUTCOMES,
            "reasoning_source": ("environment", "model", "none"),
        },
        ranges={"turn": (0, None)},
        rows={
            "a predicted transition has its prediction, a real one none": (
                "(source = 'synthetic') = (prediction_id IS NOT NULL)"
            ),
            "a predicted transition is in no fit": "(source = 'synthetic') = (split = 'none')",
            "reward comes at the end only": "outcome <> 'continues' OR reward = 0",
            "the reward is finite": "isfinite(reward)",
            "reasoning has a source": "(reasoning IS NULL) = (reasoning_source = 'none')",
            "history is whole turns": "len(history) % 2 = 0",
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Annotation(Row):
    """A teacher's explanation of a real transition."""

    table: ClassVar[str] = "annotations"
    transition_id: A[str, "real transition"]
    round: A[int, "round number"]
    reason_code: A[str, "ok, or why there is no text"]
    text: A[str | None, "what the teacher wrote, on one line; null: nothing usable"]
    generation_id: A[str, "token record"]

    rules: ClassVar[Rules] = Rules(
        key=("transition_id",),
        filled=("reason_code", "generation_id"),
        rows={"ok means that there is a text": "(reason_code = 'ok') = (text IS NOT NULL)"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolItem(Row):
    """A transition in a pool after a round, in order of entry."""

    table: ClassVar[str] = "pool"
    pool: A[str, "real, synthetic or held_out"]
    transition_id: A[str, "transition"]
    family: A[str, "task family"]
    round: A[int, "round of the transition"]
    stage: A[str, "stage that wrote it"]
    entered: A[int, "round it entered the pool, which has its vector"]

    rules: ClassVar[Rules] = Rules(
        key=("pool", "transition_id"),
        filled=("transition_id", "family", "stage"),
        unique=(("transition_id",),),
        sets={"pool": (REAL, SYNTHETIC, HELD_OUT)},
        ordered=(("entered", "round"),),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransitionVector(Row):
    """The embedding of a transition's state and action."""

    table: ClassVar[str] = "transition_vectors"
    transition_id: A[str, "transition"]
    vector: A[list[float], FLOATS, "unit vector of observation and action"]

    rules: ClassVar[Rules] = Rules(
        key=("transition_id",),
        rows={"the vector is a unit": "abs(list_inner_product(vector, vector) - 1) < 0.001"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Row):
    """One prediction of the experience model, in an episode or about a real step."""

    table: ClassVar[str] = "predictions"
    prediction_id: A[str, "p-<transition it makes or is held to>"]
    round: A[int, "round number"]
    family: A[str, "task family"]
    episode_id: A[str, "episode of the step"]
    turn: A[int, "turn index from 0"]
    held_to: A[str | None, "real transition to compare with; null: in an episode"]
    reason_code: A[str, "ok, or why the output is malformed"]
    neighbors: A[list[str], "similar transitions that it was shown, the nearest first"]
    outcome: A[str | None, "predicted outcome; null: malformed"]
    reward: A[float | None, "predicted reward; null: malformed"]
    observation_agrees: A[bool | None, "whether the next observation is right; null: unknown"]
    outcome_agrees: A[bool | None, "whether outcome and reward are right; null: unknown"]
    reward_error: A[float | None, "distance of its reward from the true one; a malformed one counts as 0"]
    generation_id: A[str, "token record"]

    rules: ClassVar[Rules] = Rules(
        key=("prediction_id",),
        filled=("family", "episode_id", "reason_code", "generation_id"),
        unique=(("generation_id",),),
        rows={
            "ok means that an outcome is named": "(reason_code = 'ok') = (outcome IS NOT NULL AND reward IS NOT NULL)",
            "agreement is known where the truth is": (
                "(held_to IS NULL) = (observation_agrees IS NULL) AND (held_to IS NULL) = (outcome_agrees IS NULL)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DreamTask(Row):
    """One task of a round: where it is played, and where it comes from."""

    table: ClassVar[str] = "dream_tasks"
    round: A[int, "round number"]
    family: A[str, "task family"]
    group: A[int, "group index of the round"]
    environment_seed: A[int, "seed of the level; for a written task, its parent's"]
    synthetic: A[bool, "whether it is played in the experience model"]
    made: A[str, "drawn, graded (a level of the target difficulty) or written by the experience model"]
    parent_round: A[int | None, "round of the parent task"]
    parent_group: A[int | None, "its group"]
    parent_variance: A[float | None, "V of its group"]
    aimed: A[float | None, "target difficulty"]
    difficulty: A[float | None, "the environment's difficulty of the level"]
    reason_code: A[str, "ok, or why the model's text is no task; the task is then drawn"]
    generation_id: A[str | None, "token record of what the model wrote"]

    rules: ClassVar[Rules] = Rules(
        key=("round", "group"),
        filled=("family", "reason_code"),
        sets={"made": ("drawn", "graded", "written")},
        rows={"a written task is played in the model that wrote it": "made <> 'written' OR synthetic"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskValue(Row):
    """What the group of a task earned."""

    table: ClassVar[str] = "task_values"
    round: A[int, "round number"]
    family: A[str, "task family"]
    group: A[int, "group index of the round"]
    environment_seed: A[int, "seed of the environment"]
    first_observation: A[str, "text of the first observation"]
    synthetic: A[bool, "whether it was played in the experience model"]
    made: A[str, "drawn, graded or written"]
    difficulty: A[float | None, "the environment's difficulty of the level"]
    rollouts: A[int, "usable episodes"]
    mean: A[float, "mean reward r̄"]
    variance: A[float, "V = mean of (r - r̄)² over these episodes"]
    success: A[float, "share of successes"]

    rules: ClassVar[Rules] = Rules(
        key=("round", "group"),
        ranges={"rollouts": (1, None), "variance": (0, None), "success": (0, 1)},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PooledEpisode(Row):
    """One episode in a pool that updates draw from."""

    table: ClassVar[str] = "episode_pool"
    pool: A[str, "real or synthetic"]
    episode_id: A[str, "episode"]
    family: A[str, "task family"]
    generation_round: A[int, "round that played it; 0: it was given"]
    generation_stage: A[str, "stage that played it"]
    generation_ids: A[list[str], "token records of its sequences"]
    reward: A[float, "its reward"]
    advantage: A[float, "its advantage in its group"]
    entered_order: A[int, "order of entry over the run; the oldest leave first"]
    status: A[str, "held, or evicted in this round"]

    rules: ClassVar[Rules] = Rules(
        key=("episode_id",),
        filled=("episode_id", "family", "generation_stage"),
        unique=(("entered_order",),),
        sets={"pool": (REAL, SYNTHETIC), "status": (HELD, EVICTED)},
        rows={
            "its numbers are finite": "isfinite(reward) AND isfinite(advantage)",
            "an episode without an advantage is not kept": "advantage <> 0",
            "the oldest of a pool leave first": (
                "status = 'held' OR entered_order < coalesce(min(entered_order) FILTER (status = 'held')"
                " OVER (PARTITION BY pool), entered_order + 1)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolBatch(Row):
    """The batch of one optimizer step: its parts, and what the pools held."""

    table: ClassVar[str] = "pool_batches"
    step: A[int, "optimizer step of the update, from 0"]
    real_share: A[float, "intended share of real episodes"]
    real: A[int, "real episodes"]
    synthetic: A[int, "synthetic episodes"]
    real_held: A[int, "real episodes in the pool"]
    synthetic_held: A[int, "synthetic episodes in the pool"]
    real_capacity: A[int, "most real episodes kept"]
    synthetic_capacity: A[int, "most synthetic episodes kept"]

    rules: ClassVar[Rules] = Rules(
        key=("step",),
        ranges={"step": (0, None), "real_share": (0, 1), "real": (0, None), "synthetic": (0, None)},
        ordered=(
            ("real_held", "real"), ("synthetic_held", "synthetic"), ("real_capacity", "real_held"),
            ("synthetic_capacity", "synthetic_held"),
        ),
        rows={"the real part is the set share, to the nearest": (
            "real = floor(real_share * (real + synthetic) + 0.5) AND real + synthetic > 0"
        )},
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolDraw(Row):
    """One episode of the batch of one optimizer step."""

    table: ClassVar[str] = "pool_draws"
    step: A[int, "optimizer step of the update, from 0"]
    pool: A[str, "real or synthetic"]
    episode_id: A[str, "episode, at most once per batch"]
    family: A[str, "task family"]
    age: A[int, "rounds since it was played"]

    rules: ClassVar[Rules] = Rules(
        key=("step", "episode_id"),
        filled=("episode_id", "family"),
        sets={"pool": (REAL, SYNTHETIC)},
        ranges={"step": (0, None), "age": (0, None)},
    )


POOLS: tuple[type[Row], ...] = (PooledEpisode, PoolBatch, PoolDraw)
ROWS: tuple[type[Row], ...] = (Transition, Annotation, PoolItem, TransitionVector, Prediction, DreamTask, TaskValue)
