"""What this machine computes with, and how much at a time: GPUs and threads, precision, passes, models that stay.

Of bfloat16 it computes what it has kernels for. Estimates of memory follow from the same numbers as what runs. torch is
imported where it is asked, so that naming this module stays light.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from crl.config import Method, RoleConfig

_BLOCK = 64
"""Slots of a row are a multiple."""
PASS_TOKENS = 4096
"""Most tokens of one pass (`session`): bounds the memory of activations."""

_SMALL = 64 * 2**20
"""Weights of all roles in float32 that stay on any machine; about five times as much is then held. Freeing a model is
expensive, however small: a collection goes through every object of torch, transformers and DeepSpeed (0.4 s), most of a
round of a miniature."""
_SHARE = {"adapters": 16, "whole": 32}
"""On a CPU they are at most this part of the memory, by what is trained. Of adapters, sampling copies and bases that
are mapped from one file stay: of SmolLM2-135M where there are 16 GB. Of whole weights it is ten times as much (two
trainers with moments and ZeRO's copy, two sampling copies): where there are 24."""
_CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""A container's limit in bytes, or `max`."""


def settle_torch(threads: int) -> None:
    """Threads of this process, and on a CPU deterministic algorithms wherever torch has one.

    On a GPU these are for gradients alone (`crl/learn/scoring.py`): there, writing to chosen places sorts them
    first, and sampling reads no place that it wrote to twice.
    """
    import torch

    torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product: torch looks once
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every new tensor with NaN is for finding bugs in torch; it changes no number of ours, and took half the
    # time of a supervised update.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False


def gpu_count() -> int:
    """GPUs that torch can compute on; 0: everything runs on the CPU."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_bytes() -> int | None:
    """Memory of one GPU; None where there is none."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def computes_bfloat16() -> bool:
    """Whether this machine computes models in bfloat16: on a GPU, or on a CPU that can."""
    import torch

    return torch.cuda.is_available() or cpu_computes_bfloat16()


def cpu_computes_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 (AVX-512 BF16 or AMX), whatever GPU is beside it.

    Without kernels a product takes 100 times as long as in float32 (measured on AVX2: 0.25 against 89 GFLOP/s). With
    AVX-512 alone oneDNN has kernels, which convert to float32 and back: 29 against 124 GFLOP/s for 512 rows of
    2048 × 2048, 2 to 6 times as long at SmolLM2's shapes from 16 rows on.
    """
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    converts = torch.cpu._is_avx512_supported() and not torch.cpu._is_avx512_bf16_supported()
    return not converts or torch.cpu._is_amx_tile_supported()


def processor() -> str:
    """What computes models here. The last digits of their numbers depend on it, so a game can go another way on another
    one."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    known = [line.partition(":")[2].strip() for line in _processors() if line.startswith("model name")]
    return f"{next(iter(known), platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def _processors() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def computed(role: RoleConfig) -> RoleConfig:
    """The role as this machine computes it: in float32, which is at least as exact, where it cannot in bfloat16."""
    if not _asks_bfloat16(role) or computes_bfloat16():
        return role
    settings = role.deepspeed.model_copy(update={"autocast": "none"})
    return role.model_copy(update={"dtype": "float32" if _samples_here(role) else role.dtype, "deepspeed": settings})


def _asks_bfloat16(role: RoleConfig) -> bool:
    return role.deepspeed.autocast == "bfloat16" or (role.dtype == "bfloat16" and _samples_here(role))


def _samples_here(role: RoleConfig) -> bool:
    """Whether the project's own processes sample for it: a server computes as it was started."""
    return not (role.engine.SERVED or role.engine.REMOTE)


def replaced(method: Method) -> str | None:
    """What is said where roles ask for bfloat16 and are computed in float32; None where none is."""
    roles = [name for name in method.uses() if _asks_bfloat16(method.role(name))]
    if not roles or computes_bfloat16():
        return None
    return f"{', '.join(roles)}: computed in float32, because this CPU is too slow in bfloat16"


def all_stay(method: Method, float32_bytes: int, *, on_gpu: bool) -> bool:
    """Whether all models of a run stay in memory, of so many bytes in float32; none makes room for another then."""
    whole = any(method.role(role).lora is None for role in method.trained())
    # Two tracks have an engine each.
    most = _memory() // (_SHARE["whole" if whole else "adapters"] * (2 if method.overlap else 1))
    return float32_bytes <= max(_SMALL, 0 if on_gpu else most)


def _memory() -> int:
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):
        return min(total, int(_CONTAINER.read_text()))
    return total


def row_slots(context: int) -> int:
    """Slots of every row: those of the longest, and one at least that no row reaches."""
    return (context // _BLOCK + 1) * _BLOCK
