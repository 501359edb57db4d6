"""What is asked of a model: that it is numbers and settings without code, and that its attention is what a role needs.

Left to itself, transformers asks on a terminal whether it may run the Python files of a model. Here it may not; weights
that are pickles are not read, and kernels that a config names are not fetched. Attention has to see the whole context,
and to be plain scaled dot product attention, when a role samples and when it is trained.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from crl.errors import BadInput

_NOT_PLAIN = {"softcap": "limited scores", "s_aux": "sinks", "position_bias": "biases by position"}
"""Arguments that change what attention computes, and are not followed here."""
_NOTED: ContextVar[list[BadInput] | None] = ContextVar("noted", default=None)


def check_attention(model_config: Any, name: str, context: int, role: str | None = None) -> None:
    """Raise BadInput where a model (its transformers config) does not attend to all of a role's context, or limits its
    scores; it names the role. What a config does not tell (sinks) is refused when it is first computed.

    Not only sampling needs that: an update computes attention over paths of a tree, which knows no window, and a
    server of its own would follow the window that the update leaves out.
    """
    config = model_config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise BadInput(
            f"The role's context of {context} tokens is longer than the model {name!r} allows.",
            expected=f"at most {longest}",
            where=_place(role, "context"),
            next_step="Lower the context.",
        )
    if (original := _changing_rope(config)) is not None and context > original:
        raise BadInput(
            f"The model {name!r} has rotary positions that all rows of a pass change together once one is "
            f"longer than {original} tokens: log-probabilities would depend on the rows beside.",
            expected=f"a context of at most {original}",
            where=_place(role, "context"),
            next_step="Lower the context, or use another model.",
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and "layer_types" not in config:
        kinds.add("sliding_attention")
    if window is None or window >= context:
        kinds.discard("sliding_attention")
    if not kinds <= {"full_attention"}:
        raise BadInput(
            f"The model {name!r} has layers that do not see the whole context: {sorted(kinds - {'full_attention'})}.",
            expected=f"full attention over the role's context of {context} tokens",
            where=_place(role, "model"),
            next_step=f"Use another model{f', or a context of at most {window}' if window else ''}.",
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise not_plain("limited scores (softcap)", f"The model {name!r}", _place(role, "model"))


@contextmanager
def noting() -> Iterator[list[BadInput]]:
    """Inside, what :func:`check_plain` and :class:`EveryLayerOnce` would raise is noted, and work goes on: whoever
    compares models measures what would become of it."""
    notes: list[BadInput] = []
    token = _NOTED.set(notes)
    try:
        yield notes
    finally:
        _NOTED.reset(token)


def _raise_or_note(error: BadInput) -> None:
    notes = _NOTED.get()
    if notes is None:
        raise error
    notes.append(error)


def check_plain(module: Any, arguments: Mapping[str, Any]) -> None:
    """Raise BadInput where a layer's attention is given what sampling and updates do not follow."""
    if more := [what for key, what in _NOT_PLAIN.items() if arguments.get(key) is not None]:
        _raise_or_note(not_plain(" and ".join(more), type(module).__name__, "the `model` of a role"))


class EveryLayerOnce:
    """Around a forward pass: every layer attends exactly once, through the attention that the pass is made for, with
    the mask that the model was handed. Otherwise the pass would compute another model, without a word.

    A decoder layer that drops keyword arguments, an attention of its own, or a bias that is added to the mask ends in
    BadInput. The attention calls :meth:`attends` in each layer.
    """

    _inside: ContextVar[EveryLayerOnce | None] = ContextVar("every layer once", default=None)

    def __init__(self, model: Any, mask: Any = None) -> None:
        """`mask`: what the model is handed, a tensor or None."""
        self._model, self._mask = model, mask
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._attended: Counter[int | None] = Counter()

    def __enter__(self) -> None:
        self._token = self._inside.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._inside.reset(self._token)
        if kind is None and self._attended != dict.fromkeys(range(self._layers), 1):
            times = ", ".join(f"layer {layer}: {self._attended[layer]}" for layer in self._wrong())
            self._refuse(f"not every layer attends exactly once through this project's attention ({times})")

    @classmethod
    def attends(cls, module: Any, mask: Any, *, has_mask: bool) -> None:
        """Note that a layer attends. `has_mask`: whether it was given what the pass is about."""
        guard = cls._inside.get()
        if guard is None:
            return
        if not has_mask:
            guard._refuse("its layers do not hand their attention the arguments of a forward pass")
        ours = guard._mask
        if mask is not ours and (mask is None or ours is None or mask.data_ptr() != ours.data_ptr()):
            guard._refuse("its attention is given a mask of the model's own, such as biases by position")
        guard._attended[getattr(module, "layer_idx", None)] += 1

    def _wrong(self) -> list[int | None]:
        layers = [*range(self._layers), *(self._attended.keys() - set(range(self._layers)))]
        return [layer for layer in layers if self._attended[layer] != (layer in range(self._layers))][:4]

    def _refuse(self, what: str) -> None:
        _raise_or_note(_refusal(f"{type(self._model).__name__}: {what}", "the `model` of a role"))


def not_plain(what: str, whose: str, where: str) -> BadInput:
    """The error of a model whose attention is more than sampling and updates compute."""
    return _refusal(f"{whose} has attention with {what}", where)


def _refusal(found: str, where: str) -> BadInput:
    return BadInput(
        f"{found}. Sampling and updates would compute another model.",
        expected="plain scaled dot product attention in every layer",
        where=where,
        next_step="Use another model.",
    )


def _place(role: str | None, key: str) -> str:
    return f"the `{key}` of a role" if role is None else f"method.roles.{role}.{key}"


def _changing_rope(config: Any) -> int | None:
    """Tokens up to which rotary positions of type `longrope` or `dynamic` stay the same; None for other types."""
    told = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [told, *(each for each in told.values() if isinstance(each, dict))]  # of all layers, or by kind of layer
    found = [each for each in kinds if {"longrope", "dynamic"} & {each.get("rope_type"), each.get("type")}]
    own = getattr(config, "original_max_position_embeddings", None) or getattr(config, "max_position_embeddings", None)
    return min((int(each.get("original_max_position_embeddings") or own or 0) for each in found), default=None)


def pretrained(kind: Any, path: Path, name: str | None = None, **options: Any) -> Any:
    """`kind.from_pretrained(path)` of one of transformers' classes that begin with Auto.

    Args:
        kind: the class.
        path: the folder.
        name: what people call the model; default its path.
        options: as the class takes them.

    Raises BadInput where the model needs code of its own, which is seen when its config is read: before work starts.
    """
    transformers = sys.modules["transformers"]
    if kind is transformers.AutoModelForCausalLM:
        options = {"use_safetensors": True, "config": None, **options}
        options["config"] = options["config"] or pretrained(transformers.AutoConfig, path, name)
        _dequantize(options["config"])
    try:
        found = kind.from_pretrained(path, trust_remote_code=False, local_files_only=True, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise _own_code(path, name, "transformers has no such class") from error
    if kind is transformers.AutoConfig:
        own = "AutoModelForCausalLM" in (getattr(found, "auto_map", None) or {})
        if own and type(found) not in transformers.AutoModelForCausalLM._model_mapping:
            raise _own_code(path, name, f"transformers has no language model of type {found.model_type}")
        kernels = str(getattr(found, "_attn_implementation_internal", None) or "")
        if "/" in kernels:
            raise _own_code(path, name, f"its attention is {kernels}, from a hub")
    return found


def _dequantize(config: Any) -> None:
    """Have transformers make plain numbers of fp8 or mxfp4 weights, also where a GPU could compute with them as they
    are: what samples and what learns would not agree."""
    packed = getattr(config, "quantization_config", None)
    if isinstance(packed, dict):
        packed["dequantize"] = True
    elif packed is not None:
        packed.dequantize = True


def _own_code(path: Path, name: str | None, why: str) -> BadInput:
    files = ", ".join(sorted(each.name for each in path.glob("*.py"))) or "no file of it is here"
    return BadInput(
        f"the model {name or path} needs code that comes with it ({files}): {why}",
        expected="a model that the installed transformers has: code from a model's folder is never run",
        where=str(path),
        next_step="choose another model, or the same one in the format of transformers, without `auto_map`",
    )
