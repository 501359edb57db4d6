"""Where an argument of TRL, transformers, peft or vLLM is in an experiment, for the error that a wrong key gets.

Where a setting means what an argument of these libraries means, it has its name (rule 1 of the design), and only the
block may be wrong. The other arguments that people write are listed here with the key that does their work. A test
compares the list with the installed libraries and with the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from crl.config.experiment import Experiment
from crl.config.method import RECIPES

_MOST_PLACES = 4
"""Keys that one answer names."""


class Here(NamedTuple):
    """What an argument of another library is in an experiment."""

    keys: tuple[str, ...] = ()
    """Dotted keys; none where nothing does its work."""
    remark: str = ""
    """What is different."""


_OPTIMIZER, _SAMPLING = "method.roles.<role>.optimizer.", "method.roles.<role>.sampling."
_CORRECTION = "method.recipe.actor_objective.importance_sampling_correction"
_SERVER = "runtime.servers.<role>."
_ROUNDS = "how long a run trains is not in the file: `crl train EXPERIMENT --rounds N`"
_EVERY_ROUND = "every round is evaluated, saved and recorded as a whole"

OTHER_NAMES: dict[str, Here] = {
    # TRL's GRPOConfig
    "num_generations": Here(("method.rollout.group_size",), "all members of a group, guided and free"),
    "num_generations_eval": Here(("method.evaluation.samples",), "plays of each held-out seed"),
    "generation_batch_size": Here(("method.families.0.groups", "method.rollout.group_size"), "episodes of a round"),
    "steps_per_generation": Here((_OPTIMIZER + "num_mini_batches",), "optimizer steps of each pass over a round"),
    "max_completion_length": Here((_SAMPLING + "max_new_tokens",), "tokens of one turn, not of the episode"),
    "delta": Here((), "the clip has epsilon and epsilon_high; delta of the extractor's objective is that of eq. 7"),
    "use_vllm": Here(("method.roles.<role>.engine",), "engine: vllm"),
    "vllm_mode": Here(
        ("method.roles.<role>.engine", _SERVER + "address"), "a server; without an address it is started"
    ),
    "vllm_server_base_url": Here((_SERVER + "address",)),
    "vllm_server_host": Here((_SERVER + "address",)),
    "vllm_server_port": Here((_SERVER + "address",)),
    "vllm_server_timeout": Here((_SERVER + "start_seconds",)),
    "vllm_gpu_memory_utilization": Here((_SERVER + "gpu_memory_utilization",)),
    "vllm_tensor_parallel_size": Here((_SERVER + "tensor_parallel_size",)),
    "vllm_max_model_length": Here(("method.roles.<role>.context",)),
    "vllm_importance_sampling_correction": Here((_CORRECTION,), "null: none"),
    "vllm_importance_sampling_mode": Here((_CORRECTION + ".mode",)),
    "vllm_importance_sampling_clip_min": Here((_CORRECTION + ".clip_min",)),
    "vllm_importance_sampling_clip_max": Here((_CORRECTION + ".clip_max",)),
    "reward_weights": Here((), "an environment gives one reward"),
    "mask_truncated_completions": Here((), "an episode that was cut is trained with the reward it has"),
    "sync_ref_model": Here((), "the reference is the base model"),
    "chat_template_kwargs": Here(("method.roles.<role>.chat_template_kwargs",)),
    # transformers' TrainingArguments, and its ways to sample
    "per_device_train_batch_size": Here(
        ("method.roles.<role>.deepspeed.micro_batch", "method.families.0.groups"),
        "micro_batch is about memory alone; groups decides how many episodes an update has",
    ),
    "gradient_accumulation_steps": Here(
        ("method.roles.<role>.deepspeed.micro_batch",), "what does not fit is accumulated"
    ),
    "max_steps": Here((), _ROUNDS),
    "num_train_epochs": Here(("method.recipe.warm_start.num_train_epochs",), "of the warm start; " + _ROUNDS),
    "warmup_ratio": Here((_OPTIMIZER + "warmup_steps",), "steps, not a share of them"),
    "optim": Here((_OPTIMIZER + "kind",)),
    "adam_beta1": Here((_OPTIMIZER + "betas",)),
    "adam_beta2": Here((_OPTIMIZER + "betas",)),
    "bf16": Here(("method.roles.<role>.deepspeed.autocast", "method.roles.<role>.dtype"), "updates, and sampling"),
    "fp16": Here(("method.roles.<role>.deepspeed.autocast",), "bfloat16 or none"),
    "report_to": Here(("runtime.trackers",)),
    "run_name": Here(("name",)),
    "output_dir": Here(("runtime.runs",), "the folder that holds the runs"),
    "logging_steps": Here((), _EVERY_ROUND),
    "save_steps": Here(("runtime.keep_every",), "every round is saved; this many stay for good"),
    "save_strategy": Here(("runtime.save_total_limit", "runtime.keep_every"), _EVERY_ROUND),
    "eval_steps": Here(("method.evaluation.every",), "rounds"),
    "eval_strategy": Here(("method.evaluation.every",), "rounds; 0: never"),
    "data_seed": Here(("method.seed",)),
    "ddp_timeout": Here(("runtime.stage_time_limit_seconds",), "of a whole stage"),
    "repetition_penalty": Here((), "it would change what the stored log-probabilities mean"),
    "max_length": Here(("method.roles.<role>.context",)),
    # TRL's ModelConfig, and peft
    "model_name_or_path": Here(("method.roles.<role>.model",)),
    "use_peft": Here(("method.roles.<role>.lora",), "lora: {} has the defaults"),
    "lora_r": Here(("method.roles.<role>.lora.r",)),
    "lora_target_modules": Here(("method.roles.<role>.lora.target_modules",)),
    "lora_dropout": Here((), "dropout would change the log-probabilities that ratios compare"),
    # vLLM
    "max_model_len": Here(("method.roles.<role>.context",)),
    "max_num_seqs": Here((_SERVER + "requests",)),
}


def answer(name: str, recipe: Any = None) -> str | None:
    """What to write for a key that is not known at its place; None where the name is in no library and no other block.

    `recipe` is the kind of the experiment's recipe, whose settings count.
    """
    kind = recipe.get("kind") if isinstance(recipe, Mapping) else recipe
    root = RECIPES.load(kind if isinstance(kind, str) and kind in RECIPES.names() else "complementary")
    places = [*_places(Experiment, name, ""), *_places(root, name, "method.recipe.")]
    keys, remark = OTHER_NAMES.get(name, Here())
    if name in OTHER_NAMES and (keys or not places):
        here = f"write {' and '.join(keys)}" if keys else "there is no such setting"
        return f"{here} ({remark})" if remark else here
    if not places:
        return None
    more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return f"it belongs elsewhere: {', '.join(places[:_MOST_PLACES])}{more}"


def _places(model: type[BaseModel], name: str, before: str) -> Iterator[str]:
    """Dotted keys of this name in a model and those within it; any entry of a mapping is `<role>`, or `<name>`."""
    for field, info in model.model_fields.items():
        if field == name:
            yield before + field
        for part, held in models_in(info.annotation, field):
            yield from _places(held, name, f"{before}{field}.{part}")


def models_in(annotation: Any, field: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Models in the type of a field, each with the part of the key between the field's name and its own keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
        return
    origin, entry = get_origin(annotation), "<role>." if field in ("roles", "servers") else "<name>."
    part = entry if origin is dict else "0." if origin in (list, tuple) else ""
    for argument in get_args(annotation):
        yield from ((part + inner, model) for inner, model in models_in(argument, field))
