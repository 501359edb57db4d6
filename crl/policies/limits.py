"""How much a pass of sampling computes, and which models stay in memory: estimates follow from it. Imports no torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from crl.config import Method

_BLOCK = 64
"""Slots of a row are a multiple."""
PASS_TOKENS = 4096
"""Most tokens of one pass (`session`): bounds the memory of activations."""

_SMALL = 64 * 2**20
"""Weights of all roles in float32; about five times as much is then held. Freeing a model is expensive, however small:
a collection goes through every object of torch, transformers and DeepSpeed (0.4 s), most of a round of a miniature."""
_ADAPTED = 640 * 2**20
"""The same where all roles learn adapters, in one engine on a CPU: what stays in addition is a sampling copy, and
weights that are mapped from the same file as those of the other trainer."""
_SHARE = 16
"""They are at most this part of the memory then: SmolLM2-135M makes room where there are 8 GB, and stays where there
are 16."""
_CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""A container's limit in bytes, or `max`."""


def all_stay(method: Method, float32_bytes: int, *, on_gpu: bool) -> bool:
    """Whether all models of a run stay in memory, of so many bytes in float32; none makes room for another then."""
    adapted = all(method.role(role).lora is not None for role in method.trained())
    most = min(_ADAPTED, _memory() // _SHARE) if adapted and not on_gpu and not method.overlap else _SMALL
    return float32_bytes <= max(_SMALL, most)


def _memory() -> int:
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):
        return min(total, int(_CONTAINER.read_text()))
    return total


def row_slots(context: int) -> int:
    """Slots of every row: those of the longest, and one at least that no row reaches."""
    return (context // _BLOCK + 1) * _BLOCK
