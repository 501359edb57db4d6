"""Servers that sample for roles: where one is, or how one is started (`runtime.servers`, by role).

They change no number, so they are no part of the method. A key is never among them, only the name of the variable that
holds one.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from crl.config.base import Model
from crl.paths import possible_path

INTERPRETER = "CRL_VLLM_PYTHON"
_ENVIRONMENT = Path(".venv-vllm/bin/python")


class ServerConfig(Model):
    """The server of one role: a running one (`address`), or how the engine starts vLLM."""

    address: str | None = Field(
        None,
        pattern=r"^https?://[^/@?#\s]+(/[^@?#\s]*)?$",
        description="URL of a running server: of vLLM without a path, of an OpenAI-compatible one with it "
        "(https://host/v1). None starts vLLM here.",
    )
    key_variable: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Environment variable that holds the key; none: no key."
    )
    python: Path | None = Field(
        None, description="Interpreter that has vLLM; default $CRL_VLLM_PYTHON, else .venv-vllm/bin/python (make vllm)."
    )
    gpus: int = Field(1, ge=1, le=64, description="GPUs of the started server (tensor parallelism); CPU: ignored.")
    memory_share: float = Field(
        0.4, gt=0, le=0.95, description="Share of each GPU's memory that the started server takes."
    )
    cache_gigabytes: int = Field(
        1, ge=1, le=10_000, description="Key-value cache of the started server where there is no GPU."
    )
    folder: Path | None = Field(
        None,
        description="Folder through which weights are handed over; a running server must see it under the same path. "
        "Default: the system's for temporary files.",
    )
    requests: int = Field(64, ge=1, le=4096, description="Requests that are under way at the same time.")
    start_seconds: float = Field(600, ge=1, le=86_400, description="Longest start of the server, and of its reloading.")
    answer_seconds: float = Field(
        600, ge=0.1, le=86_400, description="Longest wait for one answer; then the server counts as hanging."
    )


def interpreter(server: ServerConfig) -> Path:
    """The interpreter that vLLM is started with; there may be none at it.

    Not resolved: the interpreter of a virtual environment is a link, and works by where the link is.
    """
    if (chosen := server.python or os.environ.get(INTERPRETER)) is not None:
        return possible_path(chosen, "the interpreter of vLLM", home=True).absolute()
    beside = Path(__file__).parents[2] / _ENVIRONMENT  # a checkout, from which `make vllm` was called
    return beside if beside.is_file() else _ENVIRONMENT.absolute()
