"""What sampling and updates hold at most in a process, which prints it: `python -m … SMALL CASES`.

All of it was done before with a small model, so that libraries are loaded and have set aside what they do. As in an
engine, the way that a model is computed in is known.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from pathlib import Path

import torch

from crl.config import ActorObjective, RoleConfig, SamplingConfig
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.policies.language_model import load_policy
from crl.policies.machine import settle_torch
from crl.records import Sample

ROWS = 8
"""Rows that are sampled side by side."""
NEW_TOKENS = 8
READ_TOKENS = 10
"""Of a sample of an update; all others are trained."""


def status(key: str) -> int:
    """A number of bytes that the kernel has of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def sample(model: Path, role: RoleConfig) -> None:
    """Rows that are sampled until they are full."""
    policy = load_policy(role, model, None, threads=1, way="packed")
    policy.end_ids = frozenset()  # type: ignore[attr-defined]
    length = role.context - NEW_TOKENS
    session = policy.open([[3 + row] + [7] * (length - 1) for row in range(ROWS)], range(ROWS))
    session.sample(list(range(ROWS)), SamplingConfig(max_new_tokens=NEW_TOKENS))
    assert all(session.length(row) >= role.context - 1 for row in range(ROWS))


def update(model: Path, role: RoleConfig) -> None:
    """Steps over one micro-batch of full samples, and the checkpoint."""
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1, way="packed")
    length = role.context - READ_TOKENS
    samples = [
        Sample(
            sample_id=f"s{number}", round=1, role="actor", objective="grpo", source="0001/collect",
            generation_id=f"g{number}", reward=0.0, advantage=1.0 - 2 * (number % 2), weight=0.5, temperature=1.0,
            token_ids=[3 + number, *range(10, 9 + role.context)],
            loss_mask=[0] * READ_TOKENS + [1] * length, logprobs=[0.0] * READ_TOKENS + [-5.0] * length,
        )
        for number in range(role.deepspeed.micro_batch)
    ]  # fmt: skip
    for _ in range(2):  # from the second one on the optimizer's state is there in the backward pass
        assert trainer.update(samples, objectives(ActorObjective()))["stepped"]
    with tempfile.TemporaryDirectory() as folder:
        trainer.save(Path(folder))
    trainer.dispose()


def added(model: Path, kind: str, role: RoleConfig) -> int:
    """Bytes that this process held more, at most, than before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    (sample if kind == "sample" else update)(model, role)
    return status("VmHWM") - before


def main(small: Path, cases: list[tuple[str, str]]) -> None:
    """Print the bytes of each case (kind, role as JSON), in order."""
    settle_torch(1)
    roles = [(kind, RoleConfig.model_validate_json(settings)) for kind, settings in cases]
    for kind, role in roles:
        added(small, kind, role.model_copy(update={"context": 40}))
    print(json.dumps([added(Path(role.model), kind, role) for kind, role in roles]))


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
