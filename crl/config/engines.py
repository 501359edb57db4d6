"""Rollout engines in a process of their own: vLLM, and any OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from crl.config.registry import load_object
from crl.config.roles import EngineConfig, RoleConfig
from crl.config.servers import ServerConfig
from crl.errors import BadInput

_COLDEST = 0.01
"""Least temperature that vLLM samples at; a lower one it raises to this, with a warning in its log."""


class ServedEngine(EngineConfig):
    """A model behind a server. `load` is given the server (`runtime.servers`) and the digest of the weights."""

    SERVED: ClassVar[bool] = True

    def check(self, role: str, server: ServerConfig, context: int) -> None:
        """Raise BadInput where the server cannot be used from here, before anything is written.

        `context` is the largest of the roles that have these weights.
        """


class VllmEngine(ServedEngine):
    """Sampling by vLLM, over HTTP with token ids in and out. What it cannot do exactly is refused."""

    kind: Literal["vllm"] = "vllm"
    STOPS_AT_TEXT: ClassVar[bool] = True

    def problems(self, role: RoleConfig, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """Sampling whose log-probabilities before top-k and top-p vLLM does not tell, or that it changes silently."""
        sampling, where = role.sampling, f"method.roles.{name}.sampling"
        if sampling.top_p < 1 or sampling.top_k > 0:
            key = "top_p" if sampling.top_p < 1 else "top_k"
            yield BadInput(
                f"{where}.{key} is {getattr(sampling, key)}, and the engine is vllm",
                expected="top_p 1 and top_k 0: vLLM reports log-probabilities after the cut, and training needs those "
                "before it",
                where=f"{where}.{key}",
                next_step="leave them out, or use the engine transformers",
            )
        for place, temperature in temperatures.items():
            if temperature < _COLDEST:
                yield BadInput(
                    f"{place} is {temperature}, and the engine of role {name} is vllm",
                    expected=f"at least {_COLDEST}: vLLM raises a lower temperature to that",
                    where=place,
                    next_step="raise it, or use the engine transformers",
                )

    def check(self, role: str, server: ServerConfig, context: int) -> None:
        """See :func:`crl.engine.vllm_server.check_server`."""
        load_object("crl.engine.vllm_server:check_server")(role, server, context)

    def load(
        self,
        role: RoleConfig,
        model_path: Path,
        checkpoint: Path | None,
        *,
        threads: int,
        multi_turn: bool,
        server: ServerConfig | None = None,
        weights: str = "",
    ) -> Any:
        """See :class:`crl.engine.vllm_policy.VllmPolicy`."""
        return load_object("crl.engine.vllm_policy:VllmPolicy")(
            role,
            model_path,
            checkpoint,
            threads=threads,
            multi_turn=multi_turn,
            server=server or ServerConfig(),
            weights=weights,
        )


class OpenAIEngine(ServedEngine):
    """A model behind an OpenAI-compatible endpoint, for a role that is not trained.

    The role's `model` is `endpoint:<name at the endpoint>`; `runtime.servers.<role>` says where it is. Its rows hold
    code points of text in place of token ids, and `context` counts characters.
    """

    kind: Literal["openai"] = "openai"
    REMOTE: ClassVar[bool] = True

    limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="What the endpoint calls the limit of new tokens."
    )
    leave_out: list[Literal["seed", "top_p"]] = Field(
        [],
        exclude_if=lambda value: not value,
        description="What is not sent, for an endpoint that refuses it; top_p only where it is 1.",
    )

    def problems(self, role: RoleConfig, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """Sampling that the protocol has no word for."""
        sampling, where = role.sampling, f"method.roles.{name}.sampling"
        if sampling.top_k > 0:
            yield BadInput(
                f"{where}.top_k is {sampling.top_k}, and the engine is openai",
                expected="top_k 0: the protocol has no such setting",
                where=f"{where}.top_k",
                next_step="leave it out",
            )
        if "top_p" in self.leave_out and sampling.top_p < 1:
            yield BadInput(
                f"{where}.top_p is {sampling.top_p}, and the engine leaves top_p out",
                expected="top_p 1: any other has to be sent",
                where=f"method.roles.{name}.engine.leave_out",
                next_step="take top_p out of one of the two",
            )
        if sampling.constrain != "none":
            yield BadInput(
                f"{where}.constrain is {sampling.constrain}, and the engine is openai",
                expected="none: an endpoint takes text and no tree of tokens",
                where=f"{where}.constrain",
                next_step="leave it out, or use the engine vllm or transformers",
            )

    def check(self, role: str, server: ServerConfig, context: int) -> None:
        """See :func:`crl.policies.endpoint.check_endpoint`; it says nothing of its context."""
        load_object("crl.policies.endpoint:check_endpoint")(role, server)

    def load(
        self,
        role: RoleConfig,
        model_path: Path,
        checkpoint: Path | None,
        *,
        threads: int,
        multi_turn: bool,
        server: ServerConfig | None = None,
        weights: str = "",
    ) -> Any:
        """See :class:`crl.policies.endpoint.EndpointPolicy`."""
        policy = load_object("crl.policies.endpoint:EndpointPolicy")
        return policy(role, server or ServerConfig(), self.limit, self.leave_out)
