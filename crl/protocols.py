"""The small protocols between rooms: who needs what of whom, without importing each other.

Shapes: B rows of a batch, D dimensions of an embedding, T tokens. Token ids are plain integers here; tensors stay in
`policies`, `learn` and `engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crl.config import SamplingConfig


class StopReason(StrEnum):
    """Why a turn or an episode ended."""

    end_of_turn = "end_of_turn"
    length = "length"
    success = "success"
    failure = "failure"
    turn_limit = "turn_limit"
    context_limit = "context_limit"
    error = "error"


@dataclass(frozen=True, slots=True)
class Start:
    """What an environment says at reset."""

    goal: str
    observation: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers to one action."""

    observation: str
    actions: tuple[str, ...]
    legal: bool
    feedback: str
    """Empty after a legal action, else what was wrong with it (the state did not change, the turn is spent)."""
    done: bool
    success: bool
    reward: float
    """Outcome reward; 0 until done."""


class Environment(Protocol):
    """A wave of episodes of one task family. Deterministic in the seeds, across processes."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i. May be called again."""

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given; None is an action that did not parse. Stepping after done raises."""

    def oracle(self, slot: int) -> str | None:
        """A good next action from the full state, for warm-start demonstrations only; None where none is known."""

    def close(self) -> None:
        """Free what the environment holds."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One turn of one row: the ids sampled, their behaviour log-probabilities, and why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-probability under the temperature-scaled distribution before top-k / top-p."""
    stop_reason: StopReason


class Session(Protocol):
    """Rows of one batch with their key-value cache. Rows are named by their index at opening."""

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample (observations, glue) to the rows given."""

    def sample(
        self, rows: Sequence[int], generators: Mapping[int, np.random.Generator], sampling: SamplingConfig
    ) -> dict[int, Sampled]:
        """Sample one turn in each row given, each from its own random stream; the ids join the row's cache."""

    def drop(self, rows: Sequence[int]) -> None:
        """Free rows that are finished; they may not be used again."""

    def length(self, row: int) -> int:
        """Tokens of a row so far."""


class Chat(Protocol):
    """Turns messages into ids that are only ever appended to."""

    def opening(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a whole first prompt, ready for the assistant to answer."""

    def reply(self, text: str, *, ended: bool) -> list[int]:
        """Ids after an assistant turn: its end (unless `ended`: it was sampled), the user's text, the next opening."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens."""


class Policy(Protocol):
    """A language model that samples."""

    chat: Chat
    context: int

    def open(self, prompts: Sequence[Sequence[int]], groups: Sequence[int]) -> Session:
        """Start one row a prompt; what all rows, then rows of one group, share is read once."""


class Embedder(Protocol):
    """Texts to unit vectors."""

    name: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""


class Services(Protocol):
    """What the engine lends a stage; everything heavy is behind it."""

    def environment(self, family: str) -> Environment: ...

    def policy(self, role: str, weights: Any) -> Policy:
        """The role's model with the weights of a `Weights` row."""

    def embedder(self) -> Embedder: ...
