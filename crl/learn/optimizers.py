"""The optimizer of a role, its learning rate, and how far a step of it moves the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from crl.config import OptimizerConfig

_CHUNK = 1 << 24
"""Numbers of which the step is worked out at once: 64 MB each of a few temporary tensors."""


def make_optimizer(config: OptimizerConfig, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """torch's own optimizers: DeepSpeed's compile on first use, and these have the same state on every device."""
    if config.kind == "sgd":
        return torch.optim.SGD(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.AdamW(parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay)


def learning_rate(config: OptimizerConfig, update: int) -> float:
    """The rate of an optimizer step (the first is 1).

    It rises in a line from 0, which no step has, over `warmup_steps`. Then it is that of transformers' schedule of this
    name: it stays, or falls to 0, which the step after `lr_scheduler_steps` is the first to have.
    """
    if update <= config.warmup_steps:
        return config.learning_rate * update / config.warmup_steps
    if config.lr_scheduler_steps is None:
        return config.learning_rate
    share = min(1.0, (update - 1 - config.warmup_steps) / (config.lr_scheduler_steps - config.warmup_steps))
    left = 1 - share if config.lr_scheduler_type == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return config.learning_rate * left


class Moved:
    """How far the steps of an optimizer move what it steps on this rank, without a copy of the weights.

    A step is worked out from what makes it: that of SGD from the gradient before it, that of AdamW from the moments
    after it (Loshchilov and Hutter 2019, algorithm 2). What rounding the new weights adds to it is left out.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.squared = 0.0
        """Sum of squares since it was last set to 0."""
        if isinstance(optimizer, torch.optim.AdamW):
            optimizer.register_step_post_hook(self._after_adamw)
        else:
            optimizer.register_step_pre_hook(self._before_sgd)

    def _before_sgd(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            parts = [(part, part.grad) for part in group["params"] if part.grad is not None]
            for weights, gradient in _chunks(parts):
                self._add(group["lr"] * (gradient + group["weight_decay"] * weights))

    def _after_adamw(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            decay = group["lr"] * group["weight_decay"]
            stepped: dict[float, list[tuple[torch.Tensor, ...]]] = {}
            for part in group["params"]:
                if part.grad is not None:
                    state = optimizer.state[part]
                    tensors = part, state["exp_avg"], state["exp_avg_sq"]
                    stepped.setdefault(float(state["step"]), []).append(tensors)
            for count, parts in stepped.items():
                first, second = (1 - beta**count for beta in group["betas"])
                for after, mean, square in _chunks(parts):
                    step = group["lr"] / first * mean / ((square / second).sqrt() + group["eps"])
                    self._add(step + decay * (after + step) / (1 - decay))  # the decay is of the weights before

    def _add(self, step: torch.Tensor) -> None:
        self.squared += float(step.square().sum(dtype=torch.float64))


def _chunks(parts: Sequence[tuple[torch.Tensor, ...]]) -> Iterator[list[torch.Tensor]]:
    """The numbers of all parts, flat, so many at once: large parts are split, and small ones put together, because on a
    GPU hundreds of small calls take as long as hundreds of large ones."""
    waiting: list[tuple[torch.Tensor, ...]] = []
    held = 0
    for tensors in parts:
        flat = (torch.split(tensor.detach().reshape(-1), _CHUNK) for tensor in tensors)
        for pieces in zip(*flat, strict=True):
            if held + pieces[0].numel() > _CHUNK:
                yield _joined(waiting)
                waiting, held = [], 0
            waiting.append(pieces)
            held += pieces[0].numel()
    if waiting:
        yield _joined(waiting)


def _joined(pieces: Sequence[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    return list(pieces[0]) if len(pieces) == 1 else [torch.cat(each) for each in zip(*pieces, strict=True)]
