"""The matrix products of a piece of work, each made again by itself at its shape: what the machine could reach."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_REPEATS = 3
_COLD = 2**27
"""Bytes of weights, keys or values to go through before the same come again: no cache holds as many."""
_MOST = 500
"""Copies of one operand: small ones stay in a cache in the work, too."""
Shapes = Counter[tuple[tuple[int, ...], tuple[int, ...], Any]]
"""Products [a, b] × [b, c], or batches of them, by both shapes and the type of their elements."""


@dataclass(frozen=True)
class Compared:
    """A piece of work beside its products alone."""

    whole: float
    """Seconds of CPU on all cores."""
    products: float
    """Seconds of CPU of the products made by themselves."""
    operations: float
    """Floating-point operations of the products."""
    bytes_read: float
    """Their operands, read once per product."""


def cpu_seconds() -> float:
    """What this process has computed so far, on all cores."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def counted() -> Iterator[Shapes]:
    """The products made inside."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    made: Shapes = Counter()
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    attention = {
        torch.ops.aten.scaled_dot_product_attention.default,  # undivided without gradients, as layers are
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        backward,
    }

    class Products(TorchDispatchMode):
        """Counts products by shape and type. Without gradients a linear layer comes here undivided."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
                made[tuple(args[0].shape), tuple(args[1].shape), args[0].dtype] += 1
            elif func is torch.ops.aten.linear.default:
                rows = args[0].numel() // args[0].shape[-1]
                made[(rows, args[0].shape[-1]), tuple(args[1].shape[::-1]), args[0].dtype] += 1
            elif func in attention:
                # One kernel: scores of all keys, masked or not, and sums of what they weigh.
                query, key = (args[1], args[2]) if func is backward else (args[0], args[1])
                (rows, heads, asked, width), known, kind = query.shape, key.shape[2], query.dtype
                scores, sums = (2, 3) if func is backward else (1, 1)
                made[(rows * heads, asked, width), (rows * heads, width, known), kind] += scores
                made[(rows * heads, asked, known), (rows * heads, known, width), kind] += sums
            return func(*args, **(kwargs or {}))

    with Products():
        yield made


def alone(made: Shapes, whole: float) -> Compared:
    """Make products again, each shape a few times; `whole` is what the work that they are from took."""
    import torch

    seconds = operations = read = 0.0
    for (first, second, dtype), count in made.items():
        one, other = torch.ones(first, dtype=dtype), torch.ones(*second[:-2], *second[:-3:-1], dtype=dtype).mT
        # The work finds its activations in a cache, but no weights or keys: those of the other layers went through it.
        others = [other, *(other.clone() for _ in range(min(_COLD // other.nbytes, _MOST)))]
        repeats = max(_REPEATS, len(others))
        one @ other
        started = cpu_seconds()
        for number in range(repeats):
            one @ others[number % len(others)]
        seconds += count * (cpu_seconds() - started) / repeats
        operations += count * 2 * math.prod(first) * second[-1]
        read += count * (one.nbytes + other.nbytes)
    return Compared(whole, seconds, operations, read)


def compared(work: Callable[[], Any]) -> Compared:
    """Do the work twice: once to count its products, once to time it; then the products alone."""
    with counted() as made:
        work()
    started = cpu_seconds()
    work()
    return alone(made, cpu_seconds() - started)


def product_rate(dtype: str) -> float:
    """FLOP/s of the fastest of three products [256, 1024] × [1024, 1024], after one that only warms up."""
    import torch

    left, right = (torch.ones(rows, 1024, dtype=getattr(torch, dtype)) for rows in (256, 1024))
    times = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - started)
    return 2 * 256 * 1024**2 / min(times[1:])


def copy_rate() -> float:
    """Bytes per second that a plain copy of 256 MB reads and writes."""
    import torch

    source, target = torch.ones(2**26), torch.ones(2**26)
    target.copy_(source)
    started = time.perf_counter()
    for _ in range(5):
        target.copy_(source)
    return 5 * 2 * 4 * 2**26 / (time.perf_counter() - started)
