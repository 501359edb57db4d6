"""What the steps of gpu_suite.py share: how a metric is told, clocks that wait for the GPU, what is freed between."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARK = "FIGURES "


def tell(**metrics: Any) -> None:
    """Print metrics as a line that the suite reads; what was told before a step is cut off is kept."""
    print(MARK + json.dumps(metrics), flush=True)


def arguments(doc: str | None) -> argparse.Namespace:
    """Scale, model and folders."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=["full", "tiny"], required=True)
    parser.add_argument("--model", type=Path, help="directory of a model")
    parser.add_argument("--folder", type=Path, help="for what the step writes, maybe in memory")
    parser.add_argument("--disk", type=Path, help="for what has to be on a disk")
    return parser.parse_args()


def device() -> Any:
    """The first GPU, or the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    """Until the GPU has done what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextlib.contextmanager
def clocked(name: str) -> Iterator[None]:
    """Tell the seconds of what is done inside."""
    wait()
    began = time.perf_counter()
    yield
    wait()
    tell(**{name: round(time.perf_counter() - began, 3)})


def fastest(action: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of some calls, after one that warms up."""
    action()
    found = []
    for _ in range(times):
        wait()
        began = time.perf_counter()
        action()
        wait()
        found.append(time.perf_counter() - began)
    return min(found)


def free() -> None:
    """Give back what nothing holds any longer."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_gb() -> float:
    """Most that tensors took on the GPU since the process began; 0 without one."""
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else 0.0


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:200]
