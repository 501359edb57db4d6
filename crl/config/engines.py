"""Rollout engines in a process of their own, vLLM and any OpenAI-compatible endpoint, and the servers behind them.

Where a server is, or how one is started (`runtime.servers`, by role), changes no number: it is no part of the method.
A key is never among it, only the name of the variable that holds one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from crl.config.base import Model, off
from crl.config.registry import load_object
from crl.config.roles import EngineConfig, RoleConfig
from crl.errors import BadInput
from crl.paths import possible_path

INTERPRETER = "CRL_VLLM_PYTHON"
_ENVIRONMENT = Path(".venv-vllm/bin/python")
_COLDEST = 0.01
"""Least temperature that vLLM samples at; a lower one it raises to this, with a warning in its log."""


class ServerConfig(Model):
    """A server of one role: where it runs, or how crl starts vLLM."""

    address: str | None = Field(
        None,
        pattern=r"^https?://[^/@?#\s]+(/[^@?#\s]*)?$",
        description="URL of a running server: vLLM's without a path, an OpenAI-compatible one with its path "
        "(https://host/v1). null: start vLLM here.",
    )
    key_variable: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable that holds the API key; null: no key.",
    )
    python: Path | None = Field(
        None, description="Interpreter that has vLLM; null: $CRL_VLLM_PYTHON, else .venv-vllm/bin/python (make vllm)."
    )
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs of the started server; ignored on a CPU.")
    gpu_memory_utilization: float = Field(
        0.4, gt=0, le=0.95, description="Share of each GPU's memory for the started server."
    )
    cache_gigabytes: int = Field(1, ge=1, le=10_000, description="Key-value cache of a server started on a CPU.")
    folder: Path | None = Field(
        None,
        description="Folder in which a running server is given weights; it must see it under the same path. null: "
        "the system's temporary folder.",
    )
    requests: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Requests at the same time; null: as many as vLLM has rows to sample, 64 of an endpoint.",
    )
    start_seconds: float = Field(600, ge=1, le=86_400, description="Longest wait for the server to start or reload.")
    answer_seconds: float = Field(
        600, ge=0.1, le=86_400, description="Longest wait for an answer before the server counts as hanging."
    )


def interpreter(server: ServerConfig) -> Path:
    """The interpreter that vLLM is started with; there may be none at it.

    Not resolved: the interpreter of a virtual environment is a link, and works by where the link is.
    """
    if (chosen := server.python or os.environ.get(INTERPRETER)) is not None:
        return possible_path(chosen, "the interpreter of vLLM", home=True).absolute()
    beside = Path(__file__).parents[2] / _ENVIRONMENT  # a checkout, from which `make vllm` was called
    return beside if beside.is_file() else _ENVIRONMENT.absolute()


class ServedEngine(EngineConfig):
    """A model behind a server. `load` is given the server (`runtime.servers`) and the digest of the weights."""

    SERVED: ClassVar[bool] = True

    def check(self, role: str, server: ServerConfig, context: int) -> None:
        """Raise BadInput where the server cannot be used from here, before anything is written.

        `context` is the largest of the roles that have these weights.
        """


class VllmEngine(ServedEngine):
    """Samples with vLLM over HTTP, token ids in and out. Settings that it cannot follow exactly are errors."""

    kind: Literal["vllm"] = "vllm"
    STOPS_AT_TEXT: ClassVar[bool] = True
    RENORMALIZES: ClassVar[bool] = True

    def problems(self, role: RoleConfig, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """Temperatures that vLLM changes silently."""
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
        server: ServerConfig | None = None,
        **more: Any,
    ) -> Any:
        """See :class:`crl.engine.vllm_policy.VllmPolicy`."""
        policy = load_object("crl.engine.vllm_policy:VllmPolicy")
        return policy(role, model_path, checkpoint, server=server or ServerConfig(), **more)


class OpenAIEngine(ServedEngine):
    """An OpenAI-compatible endpoint, for a role that is not trained: `model: endpoint:<name>`, its address in
    `runtime.servers.<role>`. `context` counts characters."""

    kind: Literal["openai"] = "openai"
    REMOTE: ClassVar[bool] = True

    limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="Name of the endpoint's limit of new tokens."
    )
    leave_out: list[Literal["seed", "top_p"]] = Field(
        [],
        exclude_if=off,
        description="Parameters that the endpoint rejects and crl leaves out; top_p only where it is 1.",
    )

    def problems(self, role: RoleConfig, name: str, temperatures: Mapping[str, float]) -> Iterator[BadInput]:
        """Sampling that the protocol has no word for."""
        sampling, where = role.sampling, f"method.roles.{name}.sampling"
        for key in ("top_k", "min_p"):
            if getattr(sampling, key) > 0:
                yield BadInput(
                    f"{where}.{key} is {getattr(sampling, key)}, and the engine is openai",
                    expected=f"{key} 0: the protocol has no such setting",
                    where=f"{where}.{key}",
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
        server: ServerConfig | None = None,
        **more: Any,
    ) -> Any:
        """See :class:`crl.policies.endpoint.EndpointPolicy`."""
        policy = load_object("crl.policies.endpoint:EndpointPolicy")
        return policy(role, server or ServerConfig(), self.limit, self.leave_out)
