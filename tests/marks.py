"""Marks that several test files share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from crl.policies.machine import computes_bfloat16

NEEDS_BFLOAT16 = pytest.mark.skipif(
    not computes_bfloat16(), reason="bfloat16 is computed in float32 here: this CPU has no kernels for it"
)

NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Values of one parameter or, as tuples, of several; a tuple that is a value of one stands in a tuple.

    The first of `every` is a fast test; the others, which are like it, are slow ones.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] if at % every else [])
        for at, case in enumerate(cases)
    ]
