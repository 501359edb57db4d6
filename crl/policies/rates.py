"""What this machine reaches in plain matrix products and in a copy: a probe of a second or two."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WIDTHS = (256, 512, 1024, 2048)
"""Of square matrices; a product has a quarter as many rows."""
_LONGEST = 0.25
"""Seconds that one product may take: a CPU without bfloat16 kernels needs 17 s for the largest one."""
_COPY_ELEMENTS = 2**24
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
    copy: float
    """Bytes/s that a copy moves, read and written."""
    devices: int = 1
    """GPUs that ranks share out; 1 on a CPU, whose cores they would share."""

    def of(self, half: bool) -> float:
        """FLOP/s in bfloat16, or in float32."""
        return self.bfloat16 if half else self.float32


def measured(threads: int) -> Rates:
    """The best of a few products, of [512, 2048] × [2048, 2048] where those are quick, and of copies of 64 MiB.

    They use so many threads. Where the largest product would take longer than a quarter of a second, a smaller one
    stands for it.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return Rates(
            device=_device_name(threads),
            float32=_flops(torch.float32),
            bfloat16=_flops(torch.bfloat16),
            copy=_copy(),
            devices=max(1, torch.cuda.device_count()) if torch.cuda.is_available() else 1,
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


def _device_name(threads: int) -> str:
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name(0))
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _flops(dtype: Any) -> float:
    width = _WIDTHS[0]
    for larger in _WIDTHS[1:]:
        if _best(_product(width, dtype), seconds=0.0) * (larger / width) ** 3 > _LONGEST:
            break
        width = larger
    return width**3 / 2 / _best(_product(width, dtype))


def _product(width: int, dtype: Any) -> Callable[[], object]:
    """A product [width / 4, width] × [width, width], of width³ / 2 FLOP."""
    import torch

    left, right = (torch.ones(rows, width, dtype=dtype, device=_device()) for rows in (width // 4, width))
    return lambda: left @ right


def _copy() -> float:
    import torch

    source = torch.ones(_COPY_ELEMENTS, dtype=torch.float32, device=_device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source))


def _best(action: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Seconds of the fastest repetition, of three at least and for so long, after one that only warms up."""
    import torch

    times: list[float] = []
    action()
    ends = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)
