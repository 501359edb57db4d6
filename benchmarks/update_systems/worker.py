"""A process under measurement: it makes an update when it is told to, and tells what that took."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from products import compared, copy_rate, cpu_seconds

CLIP, RATE = 0.2, 1e-6


class Commands:
    """What the parent asks for, line by line, and the answers."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries print to stdout

    def next(self) -> str:
        """`step`, or an empty string at the end."""
        return sys.stdin.readline().strip()

    def answer(self, **metrics: Any) -> None:
        self._answers.write(json.dumps(metrics) + "\n")
        self._answers.flush()


def count_positions(model: Any) -> Callable[[], int]:
    """Counts the positions that go through the model; the function returned tells and resets the count."""
    counted = 0

    def hook(_module: Any, args: tuple[Any, ...], _output: Any) -> None:
        nonlocal counted
        counted += args[0].numel()

    def told() -> int:
        nonlocal counted
        found, counted = counted, 0
        return found

    if model is not None:
        model.get_input_embeddings().register_forward_hook(hook)
    return told


def clock() -> tuple[float, float]:
    """Seconds of the clock and of CPU, when a GPU has done what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), cpu_seconds()


def peak_gigabytes() -> float:
    """Most that this process held so far: tensors on the GPU where it computes there, else resident memory."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def lora_of(weights: str) -> Any:
    from crl.config import LoraConfig

    return LoraConfig(r=16, lora_alpha=32) if weights == "lora" else None


def write_gradients(options: argparse.Namespace, gradients: dict[str, Any]) -> None:
    """Write what is compared: parameters by the digest of their names, as many as fit in `--gradient-mib`.

    The first update alone is compared, so a file that is there stays."""
    from safetensors.torch import save_file

    if Path(options.gradients).exists():
        return
    left, chosen = options.gradient_mib * 2**20, {}
    for name in sorted(gradients, key=lambda each: hashlib.sha256(each.encode()).digest()):
        value = gradients[name]
        if 4 * value.numel() <= left:
            left -= 4 * value.numel()
            chosen[name] = value.float().cpu().contiguous()
    save_file(chosen, options.gradients)


def _model_of(trainer: Any) -> Any:
    """The model that a trainer holds; None where it holds it elsewhere by now, and nothing is counted."""
    return getattr(getattr(getattr(trainer, "_engine", None), "module", None), "model", None)


def crl_worker(options: argparse.Namespace, samples: Sequence[Any]) -> None:
    """Updates by `crl.learn` of whichever worktree PYTHONPATH names."""
    from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer
    from crl.policies import resolve_model

    role = RoleConfig(
        model=options.model,
        lora=lora_of(options.weights[0]),
        optimizer=OptimizerConfig(learning_rate=RATE),
        deepspeed=DeepSpeedConfig(micro_batch=options.micro_batch, autocast=options.autocast),
    )
    commands = Commands()
    trainer = Trainer(role, model_path=resolve_model(options.model).path, checkpoint=None, threads=options.threads)
    terms = objectives(ActorObjective(epsilon=CLIP))
    positions = count_positions(_model_of(trainer))
    inspect = (lambda found: write_gradients(options, found)) if options.gradients else None
    while command := commands.next():
        if command == "products":
            commands.answer(**dataclasses.asdict(compared(lambda: trainer.update(samples, terms))), copy=copy_rate())
            continue
        started = clock()
        # The first update alone: to copy gradients takes time.
        trainer.update(samples, terms, inspect=inspect)
        inspect = None
        seconds, computed = (now - then for now, then in zip(clock(), started, strict=True))
        commands.answer(seconds=seconds, computed=computed, positions=positions(), peak=peak_gigabytes())
