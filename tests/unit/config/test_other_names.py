"""Settings are called as in TRL, transformers, peft and vLLM where they mean the same; other names are answered."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from crl.config.keys import field_schema, models
from crl.config.load import parse_experiment, read_yaml
from crl.config.other_names import OTHER_NAMES, answer
from crl.errors import BadInput

ROOT = Path(__file__).parents[3]
SAME = {
    "GRPOConfig": {
        "seed", "learning_rate", "warmup_steps", "weight_decay", "lr_scheduler_type", "max_grad_norm", "num_iterations",
        "epsilon", "epsilon_high", "beta", "loss_type", "entropy_coef", "max_completion_length",
        "importance_sampling_level", "scale_rewards", "temperature", "top_p", "min_p",
        "top_k", "num_train_epochs", "gradient_checkpointing", "save_total_limit", "vllm_gpu_memory_utilization",
        "vllm_tensor_parallel_size", "chat_template_kwargs",
    },
    "GenerationConfig": {"max_new_tokens", "stop_strings"},
    "LoraConfig": {"r", "lora_alpha", "target_modules"},
}  # fmt: skip
"""Arguments by the configuration of the installed library that has them: a setting of this name means the same.

vLLM's have no prefix here. `epsilon` and `epsilon_high` of the extractor are the paper's: their descriptions say so.
"""
DIFFERENT = {
    ("RoleConfig", "deepspeed"): "a block here, a file of DeepSpeed's there",
    ("ExtractorObjective", "delta"): "of eq. 7",
    ("RetrievalConfig", "top_k"): "K of eq. 6",
    ("StoreConfig", "top_k"): "transitions that are shown",
    ("MemoryConfig", "top_k"): "reflections that are shown",
}
"""Settings that have the name of an argument and mean something else, with the reason why they keep it."""
FILES = {
    "GRPOConfig": ("trl", "trainer/grpo_config.py"),
    "_BaseConfig": ("trl", "trainer/base_config.py"),
    "ModelConfig": ("trl", "trainer/model_config.py"),
    "TrainingArguments": ("transformers", "training_args.py"),
    "LoraConfig": ("peft", "tuners/lora/config.py"),
    "GenerationConfig": ("transformers", "generation/configuration_utils.py"),
}
VLLM = {"max_model_len", "max_num_seqs"}
"""Arguments of vLLM, which is not installed beside this."""
GONE = {"warmup_ratio", "max_length"}
"""Arguments of older versions, and of configurations that are not read here."""


@cache
def arguments(name: str) -> set[str]:
    """Fields of a configuration, read from the installed source: to import it would take seconds."""
    package, path = FILES[name]
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    source = (Path(spec.origin).parent / path).read_text(encoding="utf-8")
    if name == "GenerationConfig":
        return set(re.findall(r'self\.(\w+)(?:: [^=]+)? = kwargs\.pop\("\1"', source))
    (made,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    found = {
        node.target.id for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return found | arguments("_BaseConfig") | arguments("TrainingArguments") if name == "GRPOConfig" else found


def test_a_setting_that_means_an_argument_has_its_name() -> None:
    ours = {name for schema in models().values() for name in schema.get("properties", {})}
    for library, names in SAME.items():
        assert names <= arguments(library), f"gone from the installed {library}: {names - arguments(library)}"
        missing = {name.removeprefix("vllm_") for name in names} - ours
        assert not missing, f"no setting is called {missing}"


def test_a_setting_that_has_the_name_of_an_argument_means_it_or_is_listed() -> None:
    theirs = arguments("GRPOConfig") | arguments("LoraConfig")
    same = {name.removeprefix("vllm_") for names in SAME.values() for name in names}
    found = {
        (model, name) for model, schema in models().items() for name in schema.get("properties", {})
        if name in theirs and (name not in same or (model, name) in DIFFERENT)
    }  # fmt: skip
    assert found == DIFFERENT.keys()


def test_every_other_name_is_an_argument_and_every_answer_is_a_key() -> None:
    theirs = set().union(*map(arguments, FILES)) | VLLM | GONE
    assert theirs >= OTHER_NAMES.keys()
    assert not {name for model in SAME.values() for name in model} & {
        name for name, (keys, _) in OTHER_NAMES.items() if not keys
    }
    for keys, _ in OTHER_NAMES.values():
        for key in keys:
            assert field_schema(key.replace("<role>", "actor"))


WRONG = {
    "num_generations": "method.rollout.group_size", "max_completion_length": ".sampling.max_new_tokens",
    "learning_rate": "method.roles.<role>.optimizer.learning_rate", "num_iterations": ".optimizer.num_iterations",
    "max_grad_norm": ".optimizer.max_grad_norm", "weight_decay": ".optimizer.weight_decay",
    "lr_scheduler_type": ".optimizer.lr_scheduler_type", "adam_beta2": ".optimizer.betas",
    "temperature": ".sampling.temperature", "epsilon": "method.recipe.actor_objective.epsilon",
    "epsilon_high": "method.recipe.actor_objective.epsilon_high", "loss_type": "actor_objective.loss_type",
    "scale_rewards": "method.recipe.actor_objective.scale_rewards", "beta": "actor_objective.beta",
    "importance_sampling_level": "actor_objective.importance_sampling_level", "use_vllm": "engine: vllm",
    "per_device_train_batch_size": ".deepspeed.micro_batch",
    "gradient_checkpointing": ".deepspeed.gradient_checkpointing",
    "vllm_gpu_memory_utilization": "runtime.servers.<role>.gpu_memory_utilization", "report_to": "runtime.trackers",
    "max_steps": "--rounds N", "eval_steps": "method.evaluation.every", "lora_alpha": ".lora.lora_alpha",
    "output_dir": "runtime.runs", "save_total_limit": "runtime.save_total_limit", "bf16": ".deepspeed.autocast",
    "vllm_importance_sampling_clip_max": "importance_sampling_correction.clip_max", "num_train_epochs": "--rounds N",
}  # fmt: skip
"""What somebody writes who knows TRL, and what the answer holds."""


@pytest.mark.parametrize("where", ["", "method", "method.roles.extractor", "method.recipe"])
def test_an_experiment_in_the_words_of_trl_is_told_the_right_ones(where: str) -> None:
    data: dict[str, Any] = read_yaml(ROOT / "conf/frozenlake.yaml")
    block = data
    for part in filter(None, where.split(".")):
        block = block[part]
    answers = {}
    names = list(WRONG)
    for some in (names[:15], names[15:]):  # one message lists twenty mistakes
        for name in some:
            block[name] = 1
        with pytest.raises(BadInput) as caught:
            parse_experiment(data, base=ROOT / "conf", where="mine.yaml")
        for line in str(caught.value).splitlines():
            if ": unknown key" in line:
                answers[line.partition(": unknown key")[0].strip().rpartition(".")[2]] = line
        for name in some:
            del block[name]
    assert answers.keys() == WRONG.keys()
    for name, expected in WRONG.items():
        assert expected in answers[name], answers[name]


def test_the_answers_are_those_of_the_recipe() -> None:
    assert answer("beta", {"kind": "erl"}) == "it belongs elsewhere: method.recipe.objective.beta"
    assert answer("beta", "complementary") == answer("beta", {"kind": "nothing"}) == answer("beta", 3)
    assert answer("no_such_word") is None


def test_grpo_with_the_names_of_trl_is_an_experiment() -> None:
    data = read_yaml(ROOT / "conf/frozenlake.yaml")
    data["method"]["recipe"] = {
        "kind": "baseline",
        "actor_objective": {
            "epsilon": 0.2, "epsilon_high": 0.28, "scale_rewards": "none", "importance_sampling_level": "token",
            "importance_sampling_correction": None,
        },
    }  # fmt: skip
    data["method"]["roles"]["actor"] |= {
        "optimizer": {
            "learning_rate": 1e-5, "weight_decay": 0.01, "max_grad_norm": 0.5, "lr_scheduler_type": "cosine",
            "warmup_steps": 2, "lr_scheduler_steps": 100, "num_iterations": 2,
        },
        "lora": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]},
    }  # fmt: skip
    data["runtime"] = {"save_total_limit": 3}
    made = parse_experiment(data, base=ROOT / "conf", where="mine.yaml")
    assert made.method.role("actor").lora.r == 8  # type: ignore[union-attr]
