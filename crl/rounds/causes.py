"""Why sampler and trainer may disagree about tokens of the same weights, the likeliest cause first.

In this code the ids of a record are read by both as they are, the files of the base model (weights, config, tokenizer,
template) are proven by their digest whenever they are loaded, both hide the same ids that are no tokens, and tokens of
older weights are not counted. So a template, a tokenizer or an earlier round is no cause. What is left is who computes
(another engine), how it computes (a model's own code, noise, a router), with what (a checkpoint that changed), and last
of all how exactly: two passes in bfloat16 differ by some 0.07 nats, a divergence of some 0.004 and far below
the bound of the alarm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crl.config import RoleConfig
from crl.config.roles import TransformersEngine

_NOISE = ("dropout", "pdrop", "jitter")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_FLOAT = "float32"


def mismatch_causes(role: RoleConfig, model: Mapping[str, Any]) -> list[str]:
    """Possible causes for a role as this machine computes it; `model` is the config.json of its base model."""
    sizes = {**(model.get("text_config") or {}), **model}
    return [*_other_engine(role), *_own_code(role, sizes), *_other_files(role), *_rounding(role)]


def _other_engine(role: RoleConfig) -> Iterator[str]:
    if not isinstance(role.engine, TransformersEngine):
        yield (
            f"the engine {role.engine.kind}, which samples with kernels, weights and settings of its own, or reports "
            "log-probabilities of another distribution than it draws from: play a round with the engine transformers"
        )


def _own_code(role: RoleConfig, model: Mapping[str, Any]) -> Iterator[str]:
    noise = [f"{key} {value}" for key, value in sorted(model.items()) if _is_noise(key, value)]
    if noise:
        yield f"noise that is on in an update, although it should be off: the model's config has {', '.join(noise)}"
    yield (
        f"the code of this model ({model.get('model_type', 'of an unknown type')}), which computes a whole text "
        "otherwise than turn by turn: `crl doctor EXPERIMENT` compares both with plain transformers"
    )
    experts = next((model[key] for key in _EXPERTS if model.get(key)), None)
    if experts and not _exact(role):
        yield f"its {experts} experts: after the smallest rounding a router chooses others"


def _other_files(role: RoleConfig) -> Iterator[str]:
    adapter = " or its adapter" if role.lora is not None else ""
    yield f"a checkpoint{adapter} that changed on the disk after it was written: `crl verify RUN` compares every digest"


def _rounding(role: RoleConfig) -> Iterator[str]:
    if _exact(role):
        return
    learns = "bfloat16" if role.deepspeed.autocast == "bfloat16" else _FLOAT
    merged = ", the adapter merged before it is rounded" if role.lora is not None and role.dtype != _FLOAT else ""
    yield (
        f"rounding: it samples in {role.dtype}{merged} and learns in {learns}, which rarely makes as much; set dtype: "
        "float32 and autocast: none or, with optimizer.passes 1, `correction` where the role's objective has it"
    )


def _exact(role: RoleConfig) -> bool:
    return role.dtype == _FLOAT and role.deepspeed.autocast == "none"


def _is_noise(key: str, value: Any) -> bool:
    return any(each in key for each in _NOISE) and isinstance(value, float) and value > 0
