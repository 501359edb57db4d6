"""How torch is set up in every process of ours that computes with it: threads and determinism."""

from __future__ import annotations

from typing import Any


def settle_torch(threads: int) -> None:
    """Threads of this process, and deterministic algorithms wherever torch has one."""
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every new tensor with NaN is for finding bugs in torch; it changes no number of ours, and took half the
    # time of a supervised update.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
