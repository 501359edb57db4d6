"""Equal gradients for equal inputs on a GPU, which torch does not give by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from crl.errors import StageFailed

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What products on a GPU need for equal results."""


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, equal inputs give equal gradients on a GPU, too; on a CPU nothing changes.

    Being warned only of what is not deterministic is not enough: then the backward pass of fused attention adds in any
    order, and two runs with one seed part at their first update.

    Raises:
        StageFailed: the model has an operation that torch has no deterministic algorithm for.
    """
    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault(*_CUBLAS)
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # with NaN: for finding bugs in torch, and it takes long
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
        settings.fill_uninitialized_memory = filled
