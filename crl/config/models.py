"""What is asked of a model: that it is numbers and settings without code; and the ways in which it is computed.

Left to itself, transformers asks on a terminal whether it may run the Python files of a model. Here it may not; weights
that are pickles are not read, and kernels that a config names are not fetched.

Packed passes are the fast way. They need plain scaled dot product attention over all of a row, in every layer. Other
models are computed by transformers' own attention. Which way is exact is measured (`crl.engine.probe`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from crl.errors import BadInput
from crl.limits import parse_json, read_limited

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of an adapter in peft's layout."""
_NOT_PLAIN = {"softcap": "limited scores", "s_aux": "sinks", "position_bias": "biases by position"}
"""Arguments that change what attention computes, and are not followed here."""
Sampling = Literal["packed", "padded", "rows", "tokens", "reread"]
"""How rows are read: in packed passes of this project's own attention; by the model's own, with a cache that rows share
(`padded`), or one of each row that reads many ids a pass or one; or whole for each token."""
Update = Literal["packed", "padded", "rows"]
"""How samples are read: as one packed tree; by the model's own attention, together or one by one."""
WAYS = "ways"
"""The folder of a run that holds those of each set of weights, and their key in the provenance of a stage."""


def is_adapter(checkpoint: Path) -> bool:
    """Whether the weights in a folder are an adapter, which needs its base."""
    return (checkpoint / ADAPTER_CONFIG).is_file()


def weight_files(directory: Path) -> list[Path]:
    """Files of weights in a model directory: those that transformers reads. A checkout of Mistral's has the weights a
    second time, by other names (`consolidated.safetensors`)."""
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        return [directory / name for name in sorted({*json.loads(index.read_text("utf-8"))["weight_map"].values()})]
    return sorted(directory.glob("*.safetensors"))


@dataclass(frozen=True)
class Ways:
    """How a model is sampled from and updated: the fastest ways that compute what transformers computes."""

    sampling: Sampling = "packed"
    update: Update = "packed"
    adapter: Mapping[str, Any] | None = None
    """What an adapter adapts, for people (`crl.learn.adapters.Adapted`); None: full weights are trained, or none."""

    @classmethod
    def read(cls, file: Path) -> Ways:
        """Those that are written in a file; `update` is missing for weights that are not trained, `sampling` for those
        that a server samples from. Raises OSError, ValueError."""
        content = parse_json(read_limited(file))
        known = set(cls.__annotations__)
        if not isinstance(content, dict) or not {"sampling", "update"} & content.keys() or not content.keys() <= known:
            raise ValueError("it says neither what `sampling` nor what `update` is, or more than a run knows")
        ways = cls(**content)
        if ways.sampling not in get_args(Sampling) or ways.update not in get_args(Update):
            raise ValueError(f"there is no way {ways.sampling!r} or {ways.update!r}")
        return ways


def check_context(model_config: Any, name: str, context: int, role: str | None = None) -> None:
    """Raise BadInput where a role's context is longer than its model (a transformers config) has positions for."""
    longest = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise BadInput(
            f"The role's context of {context} tokens is longer than the model {name!r} allows.",
            expected=f"at most {longest}",
            where=_place(role, "context"),
            next_step="Lower the context.",
        )


def check_plain(module: Any, arguments: Mapping[str, Any]) -> None:
    """Raise BadInput where a layer's attention is given what packed passes do not follow."""
    if more := [what for key, what in _NOT_PLAIN.items() if arguments.get(key) is not None]:
        raise _refusal(f"{type(module).__name__} has attention with {' and '.join(more)}")


@contextmanager
def head_only_at(model: Any, chosen: Any) -> Iterator[None]:
    """Inside, the vocabulary head of a causal language model runs at chosen positions only: its logits are [1, N, V].

    `chosen`: a tensor, true at these of the positions [B, T], or their indices among all B times T [N], some perhaps
    twice.
    """

    def narrow(_module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden_BTD, *rest = args
        return (hidden_BTD.flatten(0, 1)[chosen.flatten()][None], *rest)

    handle = model.get_output_embeddings().register_forward_pre_hook(narrow, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def logits_at(model: Any, positions_N: Any, **inputs: Any) -> tuple[Any, Any]:
    """Logits [N, V] of a pass of a causal language model at indices among its B times T positions, and its output."""
    with nullcontext() if model.get_output_embeddings() is None else head_only_at(model, positions_N):
        output = model(**inputs)
    logits_NV = output.logits.flatten(0, 1)
    if len(logits_NV) == inputs["input_ids"].numel() != len(positions_N):  # its head is none that a hook can be put on
        logits_NV = logits_NV[positions_N]
    return logits_NV, output


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
        raise _refusal(f"{type(self._model).__name__}: {what}")


def _refusal(found: str) -> BadInput:
    return BadInput(
        f"{found}. A packed pass would compute another model.",
        expected="plain scaled dot product attention in every layer",
        where="the `model` of a role",
        next_step="Have it computed in another way (`Ways`): `crl doctor` says which one is exact.",
    )


def _place(role: str | None, key: str) -> str:
    return f"the `{key}` of a role" if role is None else f"method.roles.{role}.{key}"


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
    except Exception as error:
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise _own_code(path, name, "transformers has no such class") from error
        if kind is transformers.AutoModelForCausalLM:  # memory, a GPU: not always the folder's fault
            raise
        raise _unreadable(kind, path, name, error) from error
    if kind is transformers.AutoModelForCausalLM and getattr(options["config"], "quantization_config", None):
        _make_plain(found[0] if isinstance(found, tuple) else found, options.get("dtype"))
    if kind is transformers.AutoConfig:
        own = "AutoModelForCausalLM" in (getattr(found, "auto_map", None) or {})
        if own and type(found) not in transformers.AutoModelForCausalLM._model_mapping:
            raise _own_code(path, name, f"transformers has no language model of type {found.model_type}")
        kernels = str(getattr(found, "_attn_implementation_internal", None) or "")
        if "/" in kernels:
            raise _own_code(path, name, f"its attention is {kernels}, from a hub")
    return found


def check_language_model(config: Any, path: Path, name: str) -> None:
    """Raise BadInput where transformers has no causal language model of a config's type: of one that also sees it has
    one where its text model is, or holds, the whole model."""
    if type(config) in sys.modules["transformers"].AutoModelForCausalLM._model_mapping:
        return
    text = config.get_text_config()
    inside = "" if text is config else f"; its text model is of type {text.model_type}"
    raise BadInput(
        f"the model {name} is of type {config.model_type}, which transformers has no causal language model of{inside}",
        expected="a model that AutoModelForCausalLM opens",
        where=str(path),
        next_step="name a text model: the one that this was made from, or its text part saved by itself",
    )


def _dequantize(config: Any) -> None:
    """Have transformers make plain numbers of fp8 or mxfp4 weights, also where a GPU could compute with them as they
    are: what samples and what learns would not agree."""
    packed = getattr(config, "quantization_config", None)
    if isinstance(packed, dict):
        packed["dequantize"] = True
    elif packed is not None:
        packed.dequantize = True


def _make_plain(model: Any, dtype: Any) -> None:
    """Give a dequantized model one type, where transformers leaves what was packed, and what was not, as each is. It is
    saved as it is, not packed again."""
    torch = sys.modules["torch"]
    wanted = dtype if isinstance(dtype, torch.dtype) else model.config.get_text_config().dtype
    for parameter in model.parameters():
        parameter.data = parameter.data.to(wanted or torch.float32)
    model._weight_conversions = None


def _unreadable(kind: Any, path: Path, name: str | None, error: Exception) -> BadInput:
    lines = [line.strip() for line in str(error).strip().splitlines()] or ["it says nothing more"]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return BadInput(
        f"transformers cannot open the model {name or path} ({kind.__name__}): {type(error).__name__}: {said}",
        expected="a folder that save_pretrained of a model and of its tokenizer wrote",
        where=str(path),
        next_step="copy or download the model once more, or use another one",
    )


def _own_code(path: Path, name: str | None, why: str) -> BadInput:
    files = ", ".join(sorted(each.name for each in path.glob("*.py"))) or "no file of it is here"
    return BadInput(
        f"the model {name or path} needs code that comes with it ({files}): {why}",
        expected="a model that the installed transformers has: code from a model's folder is never run",
        where=str(path),
        next_step="choose another model, or the same one in the format of transformers, without `auto_map`",
    )
