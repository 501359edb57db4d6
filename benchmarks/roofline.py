"""Generation and update beside what this machine reaches: their matrix products alone, and a copy of memory.

    python benchmarks/roofline.py [--groups 8] [--members 8] [--turns 15] [--threads 2]

SmolLM2-135M plays MiniHack games in bfloat16 (float32 where the CPU has no kernels for it) and is trained on recorded
ones (`benchmarks/update.py`). Passes of generation that read prompts and observations (`reading`) are told from those
that mostly add one token to each row (`one token`). Every matrix product is then made again by itself at its shape and
type, in the same process. Times are seconds of CPU over all cores, so that other load on the machine does not enter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from products import Compared, Shapes, alone, compared, copy_rate, counted, cpu_seconds, product_rate
from update_systems.recorded import MODEL, ROOT, collect, read_batch

sys.path.insert(0, str(Path(__file__).parent / "rollout_systems"))
_READING = 8
"""New tokens per row from which a pass is one that reads."""


class Passes:
    """The forward passes of a model by kind: what they took and what products they made."""

    def __init__(self, model: Any) -> None:
        self.seconds = {"reading": 0.0, "one token": 0.0}
        self.made: dict[str, Shapes] = {kind: Shapes() for kind in self.seconds}
        self.counting = False
        self._forward: Callable[..., Any] = model.forward
        model.forward = self

    def __call__(self, *args: Any, **named: Any) -> Any:
        """One pass."""
        tokens, rows = named["input_ids"].numel(), len(named["logits_to_keep"])
        kind = "reading" if tokens >= _READING * max(1, rows) else "one token"
        if self.counting:
            with counted() as made:
                found = self._forward(*args, **named)
            self.made[kind].update(made)
            return found
        started = cpu_seconds()
        found = self._forward(*args, **named)
        self.seconds[kind] += cpu_seconds() - started
        return found


def generation(options: argparse.Namespace) -> dict[str, Compared]:
    """Play the same games twice: counted, then timed."""
    from games import method_of, own_dtype, played, slots_of

    from crl.policies import load_policy, resolve_model

    method = method_of(options.turns, own_dtype(), wave_groups=options.groups, group_size=options.members)
    policy: Any = load_policy(method.role("actor"), resolve_model(MODEL).path, None, threads=options.threads)
    passes = Passes(policy.model)
    slots = slots_of(method, options.groups, options.members)
    passes.counting = True
    played(policy, method, slots)
    passes.counting = False
    started = cpu_seconds()
    played(policy, method, slots)
    whole = cpu_seconds() - started
    found = {f"generation, {kind}": alone(passes.made[kind], passes.seconds[kind]) for kind in passes.seconds}
    both = [sum(getattr(each, name) for each in found.values()) for name in ("products", "operations", "bytes_read")]
    return {**found, "generation, all": Compared(whole, *both)}


def update(options: argparse.Namespace, weights: str) -> Compared:
    """One update of the recorded episodes, after one that warms up."""
    from update_systems.worker import RATE, lora_of

    from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer
    from crl.policies import resolve_model
    from crl.policies.machine import computed

    batch = ROOT / "build" / "update_batch.jsonl"
    if not batch.is_file():
        collect(batch)
    role = RoleConfig(
        model=MODEL,
        lora=lora_of(weights),
        optimizer=OptimizerConfig(learning_rate=RATE),
        deepspeed=DeepSpeedConfig(micro_batch=8, autocast="bfloat16"),
    )
    trainer = Trainer(computed(role), model_path=resolve_model(MODEL).path, checkpoint=None, threads=options.threads)
    samples, terms = read_batch(batch), objectives(ActorObjective())
    return compared(lambda: trainer.update(samples, terms))


def main() -> None:
    """Measure and print one table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("groups", 8), ("members", 8), ("turns", 15), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    single, half, copied = (rate / 1e9 for rate in (product_rate("float32"), product_rate("bfloat16"), copy_rate()))
    print(
        f"CPU, threads: {options.threads}; products of 256 × 1024 × 1024: {single:.3g} GFLOP/s in float32, "
        f"{half:.3g} in bfloat16; a copy moves {copied:.1f} GB/s\n"
    )
    found = generation(options) | {f"update, {weights}": update(options, weights) for weights in ("lora", "full")}
    print("| | GFLOP of products | CPU s | products alone | of the whole | GFLOP/CPU s | alone | GB/CPU s | alone |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, each in found.items():
        rate = [each.operations / seconds / 1e9 for seconds in (each.whole, each.products)]
        moved = [each.bytes_read / seconds / 1e9 for seconds in (each.whole, each.products)]
        print(
            f"| {name} | {each.operations / 1e9:,.0f} | {each.whole:.1f} | {each.products:.1f} | "
            f"{each.products / each.whole:.0%} | {rate[0]:.0f} | {rate[1]:.0f} | {moved[0]:.1f} | {moved[1]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
