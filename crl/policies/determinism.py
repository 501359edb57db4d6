"""How torch is set up in every process of ours that computes with it: GPUs, threads and determinism."""

from __future__ import annotations

import os
from typing import Any


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
