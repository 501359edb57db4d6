"""How torch is set up in every process of ours that computes with it: GPUs, threads and determinism."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crl.errors import StageFailed

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What products on a GPU need for equal results."""


def settle_torch(threads: int) -> None:
    """Threads of this process, and on a CPU deterministic algorithms wherever torch has one.

    On a GPU these are for gradients alone (:func:`deterministic`): there, writing to chosen places sorts them first,
    and sampling reads no place that it wrote to twice.
    """
    import torch

    torch.set_num_threads(threads)
    os.environ.setdefault(*_CUBLAS)  # before the first product: torch looks once
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    _settings().fill_uninitialized_memory = False


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, equal inputs give equal gradients on a GPU, too.

    Being warned only of what is not deterministic is not enough: then the backward pass of fused attention adds in any
    order, and two runs with one seed part at their first update.

    Raises:
        StageFailed: the model has an operation that torch has no deterministic algorithm for.
    """
    import torch

    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault(*_CUBLAS)
    filled, _settings().fill_uninitialized_memory = _settings().fill_uninitialized_memory, False
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise StageFailed(
            f"an operation of the model would give other gradients each time on this GPU: {error}",
            expected="operations that torch has a deterministic algorithm for, so that equal seeds give equal weights",
            where="the model of the role that is trained",
            next_step=f"set {'='.join(_CUBLAS)} before the process starts"
            if _CUBLAS[0] in str(error)
            else "train it on the CPU (CUDA_VISIBLE_DEVICES=''), or name a model of another architecture",
        ) from error
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        _settings().fill_uninitialized_memory = filled


def _settings() -> Any:
    """Filling every new tensor with NaN, which is set here, is for finding bugs in torch; it changes no number of ours,
    and took half the time of a supervised update."""
    import torch

    return torch.utils.deterministic


def gpu_count() -> int:
    """GPUs that torch can compute on; 0: everything runs on the CPU."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
