"""TRL's GRPOTrainer, handed the recorded episodes where it would generate its own."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from update_systems.recorded import MEMBERS
from update_systems.worker import (
    CLIP,
    RATE,
    Commands,
    clock,
    count_positions,
    lora_of,
    peak_gigabytes,
    write_gradients,
)


def trl_worker(options: argparse.Namespace, samples: Sequence[Any]) -> None:
    """Updates by TRL's GRPOTrainer, which is handed the recorded episodes where it would generate its own."""
    import logging

    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from crl.learn.scoring import load_trainable
    from crl.policies import resolve_model

    commands = Commands()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    path = resolve_model(options.model).path
    model = load_trainable(path, None, lora=lora_of(options.weights[0]), source=options.model, seed=0)
    positions = count_positions(model)
    rollouts = as_trl(samples)

    class Recorded(GRPOTrainer):  # type: ignore[misc]
        """The trainer without its generation."""

        def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
            # The trainer takes what it generated to be on its device.
            return {name: value.to(self.accelerator.device) for name, value in rollouts.items()}

    class Steps(TrainerCallback):  # type: ignore[misc]
        """A step is begun when the parent asks for one, and timed from there to behind the optimizer."""

        started = 0.0, 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if not commands.next():
                os._exit(0)
            self.started = clock()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if options.gradients:
                parameters = trainer.model.named_parameters()
                write_gradients(options, {name: each.grad for name, each in parameters if each.grad is not None})

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seconds, computed = (now - then for now, then in zip(clock(), self.started, strict=True))
            commands.answer(seconds=seconds, computed=computed, positions=positions(), peak=peak_gigabytes())

    with tempfile.TemporaryDirectory() as scratch:
        trainer = Recorded(
            model=model,
            reward_funcs=lambda prompts, **more: [0.0] * len(prompts),
            args=GRPOConfig(
                output_dir=scratch, per_device_train_batch_size=options.micro_batch,
                gradient_accumulation_steps=len(samples) // options.micro_batch,
                num_generations=min(MEMBERS, len(samples)),
                max_steps=1_000_000, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0,
                max_grad_norm=1.0, loss_type="grpo", epsilon=CLIP, beta=0.0, temperature=samples[0].temperature,
                bf16=options.autocast == "bfloat16", gradient_checkpointing=False,
                use_cpu=not torch.cuda.is_available(), report_to="none", save_strategy="no", logging_strategy="no",
                disable_tqdm=True, dataloader_pin_memory=False, use_liger_kernel=options.worker == "liger",
            ),
            train_dataset=Dataset.from_list([{"prompt": "recorded"}] * len(samples)),
            processing_class=AutoTokenizer.from_pretrained(path, trust_remote_code=False),
            callbacks=[Steps()],
        )  # fmt: skip
        trainer.train()


def as_trl(samples: Sequence[Any]) -> dict[str, Any]:
    """The samples as GRPOTrainer holds its own rollouts: prompts padded on the left, all that follows on the right."""
    import torch

    firsts = [sample.loss_mask.index(1) for sample in samples]
    before = max(firsts)
    after = max(len(sample.token_ids) - first for sample, first in zip(samples, firsts, strict=True))

    def padded(values: Sequence[Sequence[float]], dtype: torch.dtype, *, left: bool = False) -> torch.Tensor:
        rows = []
        for row in values:
            gap = [0] * ((before if left else after) - len(row))
            rows.append([*gap, *row] if left else [*row, *gap])
        return torch.tensor(rows, dtype=dtype)

    pairs = list(zip(samples, firsts, strict=True))
    return {
        "prompt_ids": padded([sample.token_ids[:first] for sample, first in pairs], torch.long, left=True),
        "prompt_mask": padded([[1] * first for first in firsts], torch.long, left=True),
        "completion_ids": padded([sample.token_ids[first:] for sample, first in pairs], torch.long),
        "completion_mask": padded([[1] * (len(sample.token_ids) - first) for sample, first in pairs], torch.long),
        "tool_mask": padded([sample.loss_mask[first:] for sample, first in pairs], torch.long),
        "old_per_token_logps": padded([sample.logprobs[first:] for sample, first in pairs], torch.float32),
        "advantages": torch.tensor([sample.advantage for sample in samples]),
        "num_items_in_batch": torch.tensor(sum(sum(sample.loss_mask) for sample in samples)),
    }
