"""Sampling without a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crl.config import EngineConfig, RoleConfig, SamplingConfig
from crl.errors import BadInput
from crl.policies.language_model import load_policy
from crl.policies.sampling import draw
from crl.protocols import Sampled, StopReason, WholeTurns


class RereadConfig(EngineConfig):
    """Reads a row from its beginning for every token."""

    kind: str = "reread"

    def load(self, role: RoleConfig, model_path: Path, checkpoint: Path | None, *, threads: int) -> RereadPolicy:
        if role.sampling.constrain != "none":
            raise BadInput("the engine reread samples free text only", where="sampling.constrain")
        return RereadPolicy(load_policy(role, model_path, checkpoint, threads=threads))


class RereadPolicy:
    """The model, its chat format and its longest sequence."""

    def __init__(self, loaded: Any) -> None:
        self.loaded, self.chat, self.context = loaded, loaded.chat, loaded.context

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> RereadSession:
        return RereadSession(self, prompts, seeds)

    def take_weights(self, directory: Path) -> bool:
        return self.loaded.take_weights(directory)

    def close(self) -> None:
        self.loaded.close()


class RereadSession(WholeTurns):
    """Rows of ids; each has its own stream of random numbers."""

    def __init__(self, policy: RereadPolicy, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
        self.policy = policy
        self.ids = {row: list(prompt) for row, prompt in enumerate(prompts)}
        self.streams = [np.random.default_rng(seed) for seed in seeds]

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, piece in pieces.items():
            self.ids[row] += piece

    def sample(self, rows: Sequence[int], sampling: SamplingConfig, answers: Any) -> dict[int, Sampled]:
        return {row: self.turn(row, sampling) for row in rows}

    def turn(self, row: int, sampling: SamplingConfig) -> Sampled:
        first, logprobs = len(self.ids[row]), []
        room = min(sampling.max_new_tokens, self.policy.context - first)
        while len(logprobs) < room:
            with torch.inference_mode():
                logits_BV = self.policy.loaded.model(input_ids=torch.tensor([self.ids[row]])).logits[:, -1]
            uniforms_B = torch.tensor([self.streams[row].random()], dtype=torch.float64)
            drawn_B, logprobs_B = draw(logits_BV, uniforms_B, sampling)
            self.ids[row].append(int(drawn_B[0]))
            logprobs.append(float(logprobs_B[0]))
            if self.ids[row][-1] in self.policy.loaded.end_ids:
                return Sampled(self.ids[row][first:], logprobs, StopReason.end_of_turn)
        return Sampled(self.ids[row][first:], logprobs, StopReason.length)

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self.ids[row]

    def length(self, row: int) -> int:
        return len(self.ids[row])
