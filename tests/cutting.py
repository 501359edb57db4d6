"""A rollout engine for tests that samples as vLLM does: it cuts what it draws from, and tells log-probabilities of what
is left. The server is :class:`tests.fake_vllm.FakeVllm` over a socket, its answers those of the role's own model.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crl.config import RoleConfig
from crl.config.engines import ServerConfig
from crl.config.roles import EngineConfig
from crl.policies.served import GENERATE, ServedSession
from crl.policies.serving import Client
from tests.fake_vllm import FakeVllm, serving

WEIGHTS = "a" * 64
"""What the server calls the weights of whatever policy has it."""


class CutEngine(EngineConfig):
    """`engine: {kind: tests.cutting:CutEngine}`."""

    kind: str = "tests.cutting:CutEngine"
    says: tuple[str, ...] = ()
    """Texts of which it says one, as its random numbers have it, in place of what it would draw; none: it draws."""
    RENORMALIZES: ClassVar[bool] = True

    def load(self, role: RoleConfig, model_path: Path, checkpoint: Path | None, *, threads: int) -> CutPolicy:
        from crl.policies.language_model import load_policy

        return CutPolicy(load_policy(role, model_path, checkpoint, threads=threads), self.says)


class CutPolicy:
    """A server with the weights of a policy, asked over HTTP."""

    def __init__(self, policy: Any, says: Sequence[str]) -> None:
        self._policy, self.chat, self.context = policy, policy.chat, policy.context
        self._says = [list(self.chat.answer(text)) for text in says]
        self._stack, self._one = ExitStack(), threading.Lock()
        fake = self._stack.enter_context(serving(FakeVllm()))
        fake.faults[GENERATE] = self._answer
        self._client = Client("the server", ServerConfig(), fake.address)

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ServedSession:
        rows = (self._client, WEIGHTS, self._policy.end_ids, self.context, prompts, seeds)
        return ServedSession(*rows, stops=self.chat.stops)

    def take_weights(self, directory: Path) -> bool:
        return False

    def close(self) -> None:
        self._client.close()
        self._stack.close()
        self._policy.close()

    def _answer(self, body: Any) -> tuple[int, Any]:
        sampling, ids = body["sampling_params"], list(body["token_ids"])
        generator = np.random.default_rng(sampling["seed"])
        says = self._says[generator.integers(len(self._says))] if self._says else []
        drawn: list[int] = []
        told: list[float] = []
        with self._one:
            while len(drawn) < sampling["max_tokens"] and not set(drawn) & set(sampling["stop_token_ids"]):
                forced = says[len(drawn)] if says else None
                probs_V = left_by(self._probs([*ids, *drawn], sampling), sampling, forced)
                drawn.append(int(generator.choice(len(probs_V), p=probs_V)) if forced is None else forced)
                told.append(float(np.log(probs_V[drawn[-1]])))
        choice = {
            "token_ids": drawn,
            "logprobs": {
                "content": [{"token_id": index, "logprob": each} for index, each in zip(drawn, told, strict=True)]
            },
            "weight_versions": [{"version": WEIGHTS, "start": 0, "end": len(drawn)}],
        }
        return 200, {"choices": [choice], "model": "model"}

    def _probs(self, ids: list[int], sampling: dict[str, Any]) -> NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            logits_V = self._policy.model(torch.tensor([ids])).logits[0, -1].double() / sampling["temperature"]
        if "allowed_token_ids" in sampling:
            kept = torch.full_like(logits_V, -torch.inf)
            kept[sampling["allowed_token_ids"]] = 0.0
            logits_V = logits_V + kept
        probs_V: NDArray[np.float64] = torch.softmax(logits_V, 0).numpy()
        return probs_V


def left_by(probs_V: NDArray[np.float64], sampling: dict[str, Any], forced: int | None) -> NDArray[np.float64]:
    """What the cuts of a request leave, and what it is made to say, renormalized."""
    order = np.argsort(-probs_V, kind="stable")
    order = order[probs_V[order] >= sampling.get("min_p", 0.0) * probs_V.max()]
    order = order[: sampling.get("top_k", len(order))]
    shares = probs_V[order] / probs_V[order].sum()
    order = order[np.cumsum(shares) - shares < sampling.get("top_p", 1.0)]
    kept = [*order, *([] if forced is None else [forced])]
    left_V = np.zeros_like(probs_V)
    left_V[kept] = probs_V[kept]
    total: NDArray[np.float64] = left_V / left_V.sum()
    return total
