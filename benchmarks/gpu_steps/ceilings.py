"""What this machine can do at most: a copy in memory, a matrix product, a copy to the GPU, a write to disk."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.gpu_steps.common import arguments, device, fastest, free, tell


def copied(source: Any) -> float:
    """GB/s that a copy on the device reads and writes."""
    target = source.clone()
    return round(2 * source.nbytes / fastest(lambda: target.copy_(source)) / 1e9, 1)


def main() -> None:
    """Measure and tell."""
    asked = arguments(__doc__)
    import torch

    full, where = asked.scale == "full", device()
    elements = 2**30 if full else 2**20
    tell(copy_gb_per_s=copied(torch.ones(elements, dtype=torch.bfloat16, device=where)))
    free()
    width = 8192 if full else 256
    for dtype in (torch.bfloat16, torch.float32):
        left, right = (torch.randn(width, width, device=where, dtype=dtype) for _ in range(2))
        seconds = fastest(lambda left=left, right=right: left @ right)
        tell(**{f"matmul_{str(dtype).removeprefix('torch.')}_tflops": round(2 * width**3 / seconds / 1e12, 3)})
    free()
    host = torch.ones(2**28 if full else 2**18, dtype=torch.float32, pin_memory=where.type == "cuda")
    there = torch.empty_like(host, device=where)
    tell(to_device_gb_per_s=round(host.nbytes / fastest(lambda: there.copy_(host, non_blocking=True)) / 1e9, 1))
    content = os.urandom(1 << 20) * (1024 if full else 4)
    path = asked.disk / "written"
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    tell(disk_write_gb_per_s=round(len(content) / (time.perf_counter() - began) / 1e9, 2))
    path.unlink()


if __name__ == "__main__":
    main()
