"""Supervised start of a role before round 1, with TRL's SFTTrainer: form, not the answer.

It reads token-exact samples of objective `nll` (ids and masks as they will be trained later; nothing is re-tokenized)
and writes sampling weights in the layout of `checkpoint`, without optimizer state: the first RL update starts a fresh
one. It runs plainly, without DeepSpeed, and says so (`deepspeed` 0 in the metrics). One process does it: with several
ranks, rank 0 calls it and the others wait.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from crl.config import RoleConfig, WarmStartConfig
from crl.config.models import head_only_at
from crl.errors import BadInput, StageFailed
from crl.learn.batches import check_sample, trained_tokens
from crl.learn.checkpoint import persistent_buffers, save_weights
from crl.learn.scoring import deterministic, load_trainable
from crl.records import Sample

OnStep = Callable[[int, int, float], None]
"""Called after each step with how many there were, how many there will be, and the step's loss."""
_IGNORED = -100
"""Label of a token that carries no loss."""
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_warm_start(
    role: RoleConfig,
    model_path: Path,
    samples: Sequence[Sample],
    config: WarmStartConfig,
    seed: int,
    threads: int,
    output_dir: Path,
    on_step: OnStep | None = None,
    adapter: Path | None = None,
) -> dict[str, float]:
    """Train `config.num_train_epochs` passes over `samples` and write the sampling weights into `output_dir`.

    It begins with the folder of an `adapter`, else with the model as it is.

    A step is one micro-batch of the role (`deepspeed.micro_batch` samples, shuffled by `seed`), AdamW at
    `config.learning_rate` with its `lr_scheduler_type`; full weights or LoRA as the role says. Equal inputs write equal
    bytes; no checkpoints, logs or model cards are left behind and nothing is reported anywhere but to `on_step`.

    Returns metrics: `loss_first`, `loss_last` (mean next-token loss of the first and last step), `steps`, `samples`,
    `tokens` (trained tokens of one pass), `deepspeed` 0. Raises BadInput without a sample to learn from, RecordDamaged
    for a sample that does not hold together, StageFailed when the loss is not finite.
    """
    torch.set_num_threads(threads)
    usable = [sample for sample in samples if trained_tokens(sample) > 0]
    for sample in usable:
        check_sample(sample)
        if sample.objective != "nll":
            raise BadInput(
                f"sample {sample.sample_id} has objective {sample.objective!r}",
                expected="nll: a supervised start learns from demonstrations",
                next_step="pass the samples of the warm start",
            )
    if not usable:
        raise BadInput(
            "no demonstration has a token to learn from",
            expected="at least one sample with a loss mask",
            next_step="raise the episodes of method.recipe.warm_start, or leave it out",
        )
    model = load_trainable(
        model_path,
        adapter,
        lora=role.lora,
        source=role.model,
        seed=seed,
        gradient_checkpointing=role.deepspeed.gradient_checkpointing,
    )
    losses = _train(model, usable, role, config, seed, on_step or (lambda step, steps, loss: None))
    if not all(loss == loss and abs(loss) != float("inf") for loss in losses):
        raise StageFailed(
            f"the loss of the supervised start is not finite: {losses[-1]}",
            expected="a finite number",
            where=f"role {role.model}",
            next_step="lower method.recipe.warm_start.learning_rate",
        )
    state = {
        name: parameter.detach().cpu()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or role.lora is None
    }
    if role.lora is None:
        state |= {name: buffer.detach().cpu() for name, buffer in persistent_buffers(model).items()}
    save_weights(model, state, output_dir)
    del model, state
    gc.collect()
    return {
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "steps": float(len(losses)),
        "samples": float(len(usable)),
        "tokens": float(sum(trained_tokens(sample) for sample in usable)),
        "deepspeed": 0.0,
    }


def _train(
    model: Any, samples: Sequence[Sample], role: RoleConfig, config: WarmStartConfig, seed: int, on_step: OnStep
) -> list[float]:
    """Run the SFTTrainer over the model in place; the loss of every step."""
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

    class TrainedTokensTrainer(SFTTrainer):  # type: ignore[misc]
        """Runs the vocabulary head on trained tokens only, and computes no entropy or accuracy that nobody reads: of a
        step of a miniature these were a third."""

        def compute_loss(
            self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return next_token_loss(model, inputs, num_items_in_batch)

    class LossCallback(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if logs and "loss" in logs:
                on_step(state.global_step, state.max_steps, float(logs["loss"]))

    dataset = Dataset.from_list(
        [
            {
                "input_ids": list(sample.token_ids),
                "labels": [
                    token if trained else _IGNORED
                    for token, trained in zip(sample.token_ids, sample.loss_mask, strict=True)
                ],
            }
            for sample in samples
        ]
    )
    with tempfile.TemporaryDirectory(prefix="crl-warm-start-") as scratch, _plainly(), _configs_kept(model):
        args: Any = SFTConfig(
            output_dir=scratch,
            num_train_epochs=config.num_train_epochs,
            per_device_train_batch_size=role.deepspeed.micro_batch,
            gradient_accumulation_steps=1,
            learning_rate=config.learning_rate,
            lr_scheduler_type=config.lr_scheduler_type,
            warmup_steps=config.warmup_steps,
            adam_beta1=role.optimizer.betas[0],
            adam_beta2=role.optimizer.betas[1],
            weight_decay=role.optimizer.weight_decay,
            max_grad_norm=role.optimizer.max_grad_norm,
            seed=seed,
            data_seed=seed,
            bf16=role.deepspeed.autocast == "bfloat16",
            gradient_checkpointing=False,  # load_trainable switches it on where the role asks for it
            max_length=None,
            packing=False,
            completion_only_loss=False,
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            dataloader_num_workers=0,
            dataloader_pin_memory=torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            push_to_hub=False,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )
        # The trainer would spread one process over all GPUs it sees (nn.DataParallel), which TRL refuses.
        args._n_gpu = min(1, args.n_gpu)
        trainer: Any = TrainedTokensTrainer(
            model=model,
            args=args,
            train_dataset=dataset,
            data_collator=DataCollatorForLanguageModeling(pad_token_id=0),
            processing_class=_no_tokenizer(),
        )
        # Losses are read from the trainer's history; printing each of them belongs to no one.
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(LossCallback)
        with deterministic():
            trainer.train()
        losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return losses


def next_token_loss(model: Any, inputs: dict[str, Any], num_label_tokens: Any) -> torch.Tensor:
    """Mean next-token loss over the trained labels; `num_label_tokens` counts them over the micro-batches of a step.

    `inputs` holds `input_ids` and `labels` [B, T] (-100: not trained) and perhaps an attention mask.
    """
    labels_BT = inputs["labels"]
    trained_BT = torch.zeros_like(labels_BT, dtype=torch.bool)
    trained_BT[:, :-1] = labels_BT[:, 1:] != _IGNORED
    with head_only_at(model, trained_BT):
        logits_NV = model(
            input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask"), use_cache=False
        ).logits[0]
    targets_N = labels_BT[:, 1:][trained_BT[:, :-1]]
    loss = torch.nn.functional.cross_entropy(logits_NV.float(), targets_N, reduction="sum")
    return loss / (num_label_tokens if num_label_tokens is not None else max(1, len(targets_N)))


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Hide the launcher's variables, or accelerate would join the ranks of the RL engine; say nothing about it."""
    from transformers.utils import logging as transformers_logging

    hidden = {name: os.environ.pop(name) for name in _LAUNCHER if name in os.environ}
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        os.environ.update(hidden)


@contextlib.contextmanager
def _configs_kept(model: Any) -> Iterator[None]:
    """The trainer writes its tokenizer's special tokens and its cache setting into configs that are saved: undo it."""
    configs = [model.config, model.generation_config]
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
    before = [{name: getattr(config, name, None) for name in names} for config in configs]
    try:
        yield
    finally:
        for config, values in zip(configs, before, strict=True):
            for name, value in values.items():
                setattr(config, name, value)


def _no_tokenizer() -> Any:
    """The trainer insists on a tokenizer; the samples are ids already, so an empty one is given and never used."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=empty, pad_token="<pad>", eos_token="<pad>")
