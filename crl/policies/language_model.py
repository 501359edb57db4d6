"""A language model that samples: weights, chat format and context of a role (protocol `Policy`).

`load_policy` reads a base model and, where given, a checkpoint of the role: full weights, or a LoRA adapter that is
merged into the base. It never downloads; `crl/policies/hub.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file

from crl.config import RoleConfig
from crl.config.models import Sampling, check_context, is_adapter, pretrained, weight_files
from crl.config.vocabulary import absent_ids, generation_config, load_tokenizer, rows_of_model
from crl.errors import RecordDamaged
from crl.policies.chat import ChatFormat
from crl.policies.exact import attend_by, exact_sampling
from crl.policies.machine import computed
from crl.policies.session import BatchSession

_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PLAIN = {"peft_type": "LORA", "bias": "none"}
_ANY = {
    "base_model_name_or_path", "exclude_modules", "inference_mode", "init_lora_weights", "lora_alpha", "lora_dropout",
    "megatron_core", "peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type",
}  # fmt: skip
"""Settings that say nothing of what is added to a module beside A, B and one scale. Any other has to be off."""


_UNPACKED = {torch.float32, torch.bfloat16, torch.float16}
"""Types of weights that are the numbers themselves, not multiples of a scale."""


class LanguagePolicy:
    """A model of a role, ready to sample (protocol `Policy`).

    Attributes:
        model: the transformers causal language model, in evaluation mode, without gradients.
        chat: its chat format.
        context: longest sequence in tokens.
        end_ids: ids that end a turn: the model's own and the template's.
        absent: ids that are no tokens and are never drawn (`vocabulary`); None: every row of the model has a token.
        way: how rows are read.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        context: int,
        role: RoleConfig | None = None,
        base: Path | None = None,
        way: Sampling | None = None,
    ) -> None:
        """
        `role`: whose chat template it is. `base`: directory of the model that adapters are merged into
        (`take_weights`). `way`: how rows are read; None:
        the fastest way that is exact, tried here.

        Raises:
            BadInput: the template cannot be used (see `ChatFormat`), the context is longer than the model's, or no way
                of sampling is exact.
        """
        check_context(model.config, name, context)
        self._base = base
        self._adapted_parts: set[str] | None = None
        """Weights that are not those of the base; None: not known."""
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        rows = rows_of_model(model.config)
        self.chat = ChatFormat.of(role, tokenizer, name, rows=rows)
        absent = absent_ids(tokenizer, rows)
        self.absent = torch.tensor(absent) if absent else None
        self.way: Sampling = exact_sampling(model, context, self.absent).way if way is None else way
        if way is not None:
            attend_by(model, way)
        self.context = context
        self.end_ids = end_ids(model.generation_config, tokenizer, self.chat)

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> BatchSession:
        """Start one row per prompt, at most `limit` of them at one time; what rows share at their start is read once.

        Raises:
            PromptTooLong: a prompt leaves no room for a token.
        """
        rows = (self.model, self.end_ids, self.context, prompts, seeds, limit)
        return BatchSession(*rows, stops=self.chat.stops, absent=self.absent, way=self.way)

    def take_weights(self, directory: Path) -> bool:
        """Read weights into the living model: the numbers that loading it again would give, without the time.

        Returns False, and changes nothing, where they are not exactly this model's tensors (others, another shape), or
        are an adapter of another kind than `additions` reads. Sessions that are open may not be used any more.
        """
        adapted = is_adapter(directory)
        tensors = tensors_of(self._base or directory if adapted else directory)
        own = dict(self.model.named_parameters())
        if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
            return False
        added = additions(directory, tensors) if adapted else {}
        if added is None:
            return False
        for name in own if self._adapted_parts is None or not adapted else self._adapted_parts | added.keys():
            own[name].data.copy_(summed(tensors[name], added.get(name)))
        self._adapted_parts = set(added) if adapted else None
        return True

    def close(self) -> None:
        """Nothing but memory is held, which goes with the last reference."""


class AdaptedPolicy(LanguagePolicy):
    """One over a base that others stand on as well: its adapter stays apart, for merging would change their numbers."""

    def __init__(self, model: Any, tokenizer: Any, adapter: Path | None, **more: Any) -> None:
        """`model` is over the shared base and gets the `adapter` of a directory; `more` as `LanguagePolicy`."""
        from peft import PeftModel

        self._adapted = None if adapter is None else PeftModel.from_pretrained(model, adapter)
        super().__init__(model, tokenizer, **more)

    def take_weights(self, directory: Path) -> bool:
        """As that of a `LanguagePolicy`, of adapters with the same tensors."""
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        file = directory / "adapter_model.safetensors"
        if self._adapted is None or not file.is_file():
            return False
        tensors, own = load_file(file), get_peft_model_state_dict(self._adapted, save_embedding_layers=False)
        if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
            return False
        set_peft_model_state_dict(self._adapted, tensors)
        return True


def end_ids(generation: Any, tokenizer: Any, chat: ChatFormat) -> frozenset[int]:
    """Ids that end a turn: the model's own (`generation_config`), the tokenizer's, and the template's."""
    own = generation.eos_token_id if generation is not None else None
    own = [] if own is None else own if isinstance(own, list) else [own]
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return frozenset([*own, *eos, *chat.end_ids])


def load_policy(
    role: RoleConfig,
    model_path: Path,
    checkpoint: Path | None,
    *,
    threads: int,
    way: Sampling | None = None,
    base: Callable[[Any], Any] | None = None,
) -> LanguagePolicy:
    """Load the model of a role for sampling, on CUDA where there is a device, else on the CPU.

    Args:
        role: precision, context and chat template.
        model_path: directory of the base model (`resolve_model`); tokenizer and template come from here.
        checkpoint: None for the base model; else a directory with `adapter_config.json` (a peft LoRA adapter, merged in
            float32, then cast) or with full weights as `save_pretrained` writes them.
        threads: CPU threads of this process.
        way: how rows are read (`LanguagePolicy`).
        base: makes the base model of a type where it is in memory for several roles (`crl.engine.frozen_base`).

    Raises:
        BadInput: the model cannot be used by this role.
        RecordDamaged: the checkpoint's weights do not fit the model, or are not there.
    """
    torch.set_num_threads(threads)
    tokenizer = load_tokenizer(model_path, role.model)
    told: dict[str, Any] = {"name": role.model, "context": role.context, "role": role, "way": way}
    dtype = getattr(torch, computed(role).dtype)
    if base is not None:
        return AdaptedPolicy(base(dtype), tokenizer, checkpoint, **told)
    model = load_model(model_path, checkpoint, dtype=dtype)
    if torch.cuda.is_available():
        model = model.to("cuda")
    return LanguagePolicy(model, tokenizer, base=model_path, **told)


def load_model(model_path: Path, checkpoint: Path | None, *, dtype: torch.dtype | Literal["auto"]) -> Any:
    """The causal language model of a base directory with a checkpoint's weights, on the CPU, LoRA merged.

    Raises:
        RecordDamaged: the checkpoint's weights do not fit the model, or are not there.
    """
    if checkpoint is None:
        return _load(model_path, model_path, dtype)
    if is_adapter(checkpoint):
        tensors = tensors_of(model_path)
        added = additions(checkpoint, tensors)
        if added is not None:  # weight by weight: a whole float32 base would take twice the memory of most files
            model = _load(model_path, model_path, dtype)
            parameters = dict(model.named_parameters())
            if added.keys() <= parameters.keys():
                for name, addition in added.items():
                    held = parameters[name].data  # the file's own numbers, unless they were rounded to another type
                    held.copy_(summed(held if held.dtype == tensors[name].dtype else tensors[name], addition))
                return model
        from peft import PeftModel

        base = _load(model_path, model_path, torch.float32)
        # Merged in float32: in bfloat16 a small update would be rounded away against the weight.
        adapted = PeftModel.from_pretrained(base, checkpoint)
        if any(hasattr(each, "base_layer") for each in (base.get_output_embeddings(), base.get_input_embeddings())):
            untie(base)  # what was learned of one of the two would be merged into both
        merged = adapted.merge_and_unload()
        for parameter in merged.parameters():  # not what positions are computed with, which stays exact
            parameter.data = parameter.data.to(dtype)
        return merged
    return _load(checkpoint, model_path, dtype)


def untie(model: Any) -> None:
    """Give the output head of a model a tensor of its own where it shares that of the embeddings."""
    both = model.get_output_embeddings(), model.get_input_embeddings()
    head, embeddings = (getattr(each, "base_layer", each) for each in both)  # inside an adapter
    if head.weight is embeddings.weight:
        head.weight = torch.nn.Parameter(embeddings.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False


def _load(weights: Path, config_from: Path, dtype: torch.dtype | Literal["auto"]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    if not any(weights.glob("*.safetensors")):
        raise RecordDamaged(
            "A checkpoint holds neither weights nor an adapter.",
            expected="model.safetensors, or adapter_config.json with its weights",
            where=str(weights),
            next_step="`crl verify` names what is missing and the command that mends it.",
        )
    config = pretrained(AutoConfig, config_from)
    if weights != config_from and hasattr(config, "quantization_config"):
        del config.quantization_config  # trained weights are plain numbers
    model, report = pretrained(
        AutoModelForCausalLM,
        weights,
        config=config,
        generation_config=generation_config(config_from, config),
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are reported then, by their names
    )
    problems = [f"{name} is missing" for name in sorted(report.get("missing_keys") or ())]
    for name, found, expected in sorted(report.get("mismatched_keys") or ()):
        problems.append(f"{name} is {[*found]}, and the model's {[*expected]}")
    if problems:  # transformers would fill these with random numbers and only warn
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecordDamaged(
            f"Weights do not fit the config of the model: {problems[0]}{more}.",
            expected="every weight of the model, in its shape",
            where=str(weights),
            next_step="`crl verify` names the damaged file and the command that mends it.",
        )
    return model


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model directory by name, mapped from its files."""
    return {name: each for file in weight_files(directory) for name, each in load_file(file).items()}


def summed(weight: torch.Tensor, addition: Callable[[], torch.Tensor] | None) -> torch.Tensor:
    """Added in float32: in bfloat16 a small update would be rounded away against the weight."""
    return weight if addition is None else addition().add_(weight)


def additions(adapter: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]] | None:
    """What makes the float32 matrix that a LoRA adapter adds to each weight, by the weight's name, as peft merges it.

    Without a peft model: W + (alpha / r) B A (Hu et al. 2021, arXiv 2106.09685, section 4.1).

    None where the adapter is not plain LoRA of modules that have a tensor of their own among `weights`: of a head that
    is tied to the embeddings, for instance.
    """
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    file = adapter / "adapter_model.safetensors"
    if not file.is_file() or not _is_plain(config):
        return None
    tensors = load_file(file)
    modules = [name.removeprefix(_PREFIX).removesuffix(_A) for name in tensors if name.endswith(_A)]
    halves = {f"{module}.weight": tuple(f"{_PREFIX}{module}{half}" for half in (_A, _B)) for module in modules}
    if {name for both in halves.values() for name in both} != tensors.keys() or not halves.keys() <= weights.keys():
        return None
    if any(weights[name].dtype not in _UNPACKED for name in halves):
        return None
    scale = config["lora_alpha"] / config["r"]
    return {name: partial(_product, tensors[a], tensors[b], scale) for name, (a, b) in halves.items()}


def _is_plain(config: Mapping[str, Any]) -> bool:
    return all(value == _PLAIN[key] if key in _PLAIN else not value for key, value in config.items() if key not in _ANY)


def _product(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    # Clones: the last digits of a product can depend on where a file's mapping begins.
    return (b.float().clone() @ a.float().clone()).mul_(scale)
