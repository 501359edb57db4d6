"""What this machine reaches in plain matrix products, and the fastest of a few repetitions: a probe of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WIDTHS = (256, 512, 1024, 2048)
"""Of square matrices; a product has a quarter as many rows."""
_LONGEST = 0.25
"""Seconds that one product may take: a CPU without bfloat16 kernels needs 17 s for the largest one."""
_SECONDS = 0.1
"""Of each probe."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine reaches, in one process."""

    device: str
    """Name of the GPU, or `CPU, n threads`."""
    float32: float
    """FLOP/s of matrix products."""
    bfloat16: float


def measured(threads: int) -> Rates:
    """The best of a few products, of [512, 2048] × [2048, 2048] where those are quick, with so many threads.

    Where the largest product would take longer than a quarter of a second, a smaller one stands for it.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return Rates(
            device=device_name(threads),
            float32=_flops(torch.float32),
            bfloat16=_flops(torch.bfloat16),
        )
    finally:
        torch.set_num_threads(before)


def gigaflops(rate: float) -> str:
    """A rate in GFLOP/s, in digits that can be read: 0.25, 8.9, 119, 48,000."""
    return f"{rate / 1e9:,.0f}" if rate >= 1e10 else f"{rate / 1e9:.2g}"


def device_bytes() -> int | None:
    """Memory of one GPU; None where there is none."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def device_name(threads: int) -> str:
    """Name of the GPU, or `CPU, n threads`."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name(0))
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def device() -> Any:
    """The first GPU, or the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _flops(dtype: Any) -> float:
    width = _WIDTHS[0]
    for larger in _WIDTHS[1:]:
        if best_seconds(_product(width, dtype), seconds=0.0) * (larger / width) ** 3 > _LONGEST:
            break
        width = larger
    return width**3 / 2 / best_seconds(_product(width, dtype))


def _product(width: int, dtype: Any) -> Callable[[], object]:
    """A product [width / 4, width] × [width, width], of width³ / 2 FLOP."""
    import torch

    left, right = (torch.ones(rows, width, dtype=dtype, device=device()) for rows in (width // 4, width))
    return lambda: left @ right


def best_seconds(action: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Seconds of the fastest repetition, of three at least and for so long, after one that only warms up.

    One that takes longer than a quarter of a second is repeated once.
    """
    import torch

    times: list[float] = []
    began = time.perf_counter()
    action()
    warm = time.perf_counter()
    fewest = 3 if warm - began < _LONGEST else 1
    while len(times) < fewest or time.perf_counter() < warm + seconds:
        started = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)
