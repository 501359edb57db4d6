"""What this machine reaches in plain matrix products and in a copy: a probe of a fraction of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ROWS, _WIDTH = 512, 2048
_COPY_ELEMENTS = 2**24
_SECONDS = 0.1
"""Of each probe, after a first repetition that only warms up."""


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
    """The best of a few products [512, 2048] × [2048, 2048], and of copies of 64 MiB, with so many threads."""
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
    import torch

    left, right = (torch.ones(rows, _WIDTH, dtype=dtype, device=_device()) for rows in (_ROWS, _WIDTH))
    return 2 * _ROWS * _WIDTH * _WIDTH / _best(lambda: left @ right)


def _copy() -> float:
    import torch

    source = torch.ones(_COPY_ELEMENTS, dtype=torch.float32, device=_device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source))


def _best(action: Callable[[], object]) -> float:
    """Seconds of the fastest repetition, of three at least."""
    import torch

    times: list[float] = []
    action()
    ends = time.perf_counter() + _SECONDS
    while len(times) < 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)
