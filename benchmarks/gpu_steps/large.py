"""A 7B model with adapters: made, loaded, updated with 8 × 4,096 tokens, saved, synced, hashed, merged to sample."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.common import arguments, clocked, free, peak_gb, tell
from benchmarks.made_model import SHAPES, write_model


def samples_of(count: int, tokens: int, vocabulary: int) -> list[Any]:
    """Made-up episodes: half of the first is shared by all, every eighth token behind it is trained."""
    import numpy as np

    from crl.records import Sample

    draw = np.random.default_rng(0)
    shared = draw.integers(8, vocabulary, tokens // 2).tolist()
    made = []
    for index in range(count):
        ids = shared + draw.integers(8, vocabulary, tokens - len(shared)).tolist()
        mask = [int(at >= len(shared) and at % 8 == 0) for at in range(tokens)]
        made.append(
            Sample(
                sample_id=str(index), round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=str(index), reward=0.0, advantage=1.0 if index % 2 else -1.0, weight=1 / count,
                temperature=1.0, token_ids=ids, loss_mask=mask,
                logprobs=[-float(np.log(vocabulary)) if each else 0.0 for each in mask],
            )
        )  # fmt: skip
    return made


def main() -> None:
    """Do it in the order of a run; each part is told as it ends."""
    asked = arguments(__doc__)
    from crl.config import ActorObjective, DeepSpeedConfig, LoraConfig, RoleConfig
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer
    from crl.policies import load_policy

    full = asked.scale == "full"
    shape, base = SHAPES["7b" if full else "tiny"], asked.folder / "base"
    with clocked("make"):
        parameters = write_model(base, shape)
    tell(parameters=parameters)
    free()
    count, tokens = (8, 4096) if full else (4, 128)
    role = RoleConfig(
        model=str(base),
        dtype="bfloat16",
        context=tokens,
        lora=LoraConfig(r=16),
        deepspeed=DeepSpeedConfig(micro_batch=2, autocast="bfloat16", gradient_checkpointing=True),
    )
    threads = 8 if full else 1
    with clocked("load_trainer"):
        trainer = Trainer(role, model_path=base, checkpoint=None, threads=threads)
    samples, terms = samples_of(count, tokens, shape.vocabulary), objectives(ActorObjective())
    tell(tokens=count * tokens)
    with clocked("update"):
        trainer.update(samples, terms)
    tell(update_peak_gb=peak_gb())
    checkpoint = asked.disk / "checkpoint"
    checkpoint.mkdir()
    with clocked("save"):
        trainer.save(checkpoint)
    trainer.dispose()
    del trainer
    free()
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    tell(checkpoint_gb=round(sum(path.stat().st_size for path in files) / 1e9, 3))
    with clocked("fsync"):
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    with clocked("hash_checkpoint"):
        for path in files:
            digest(path)
    with clocked("load_and_merge"):
        policy = load_policy(role, base, checkpoint, threads=threads)
    del policy
    free()
    with clocked("hash_base"):
        for path in sorted(base.glob("*.safetensors")):
            digest(path)
    tell(base_gb=round(sum(path.stat().st_size for path in base.glob("*.safetensors")) / 1e9, 3))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
