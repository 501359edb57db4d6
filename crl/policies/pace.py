"""What a model of a shape reaches on this machine: a few of its layers, timed as they read, sample and learn.

The layers are transformers' own (Llama), with adapters, autocast and checkpointing as the role has them, so that the
share of plain matrix products that a shape reaches, and what adapters cost, are measured instead of assumed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from crl.config import LoraConfig, RoleConfig
from crl.policies.rates import best_seconds, device, device_name

if TYPE_CHECKING:
    import torch

_HELD_BYTES = 2**27
"""Weights that a pass of one token per row has to read from memory, because no cache holds them."""
_MOST_PARAMETERS = 2**28
"""Of a layer: a wider one is halved in width, to the same rate and a quarter of the memory."""
_LONGEST = 0.2
"""Seconds that one pass may take."""
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_FEWEST, _MOST = 16, 512
"""Tokens of one pass."""


@dataclass(frozen=True, slots=True)
class Widths:
    """What one layer's cost follows from."""

    hidden: int
    attention: int
    key_value: int
    intermediate: int

    @property
    def head(self) -> int:
        """Size of an attention head."""
        return math.gcd(self.attention, self.key_value, 128)

    @property
    def parameters(self) -> int:
        """Of the matrices of one layer: query, key, value, output; gate, up, down."""
        return self.hidden * (2 * self.attention + 2 * self.key_value + 3 * self.intermediate)

    def halved(self) -> Widths:
        """The same proportions at half of every width."""
        return Widths(self.hidden // 2, self.attention // 2, self.key_value // 2, self.intermediate // 2)

    def possible(self) -> Widths:
        """The nearest that transformers' Llama can be: its hidden width is a multiple of its number of heads."""
        heads = self.attention // self.head
        return replace(self, hidden=heads * max(1, round(self.hidden / heads)))


@dataclass(frozen=True, slots=True)
class Pace:
    """What one process reaches with a role's model."""

    device: str
    """Name of the GPU, or `CPU, n threads`."""
    reading: float
    """FLOP/s of passes over many tokens."""
    sampling: float
    """Bytes/s of weights in passes of one token per row, their arithmetic included."""
    learning: float
    """FLOP/s of forward and backward passes; infinite where nothing is learned."""
    devices: int = 1
    """GPUs that ranks share out; 1 on a CPU, whose cores they would share."""


def learning_passes(role: RoleConfig) -> int:
    """FLOPs of a forward and a backward pass, as a multiple of a forward pass.

    A backward pass costs twice a forward pass; with adapters once, since frozen weights get no gradient. Checkpointing
    repeats the forward pass.
    """
    return _passes(role.lora is not None, role.deepspeed.gradient_checkpointing)


def pace_of(role: RoleConfig, widths: Widths, *, layers: int, rows: int, threads: int, learns: bool = True) -> Pace:
    """The pace of a model with so many such layers, `rows` of which are sampled side by side by so many threads.

    `role` is the role as this machine computes it (`precision.computed`). Takes some seconds; what was measured once in
    this process is not measured again.
    """
    import torch

    while widths.parameters > _MOST_PARAMETERS:
        widths = widths.halved()
    widths = widths.possible()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        reading, sampling = _inference(widths, layers, rows, role.dtype == "bfloat16", threads)
        settings = role.deepspeed.autocast == "bfloat16", role.deepspeed.gradient_checkpointing
        rank, modules = (0, ()) if role.lora is None else (role.lora.rank, _modules(role.lora))
        return Pace(
            device=device_name(threads),
            reading=reading,
            sampling=sampling,
            learning=_learning(widths, rank, modules, *settings, threads) if learns else math.inf,
            devices=max(1, torch.cuda.device_count()) if torch.cuda.is_available() else 1,
        )
    finally:
        torch.set_num_threads(before)


def _modules(lora: LoraConfig) -> tuple[str, ...]:
    """Which of a layer's modules have adapters; all where the model's own names are others."""
    if isinstance(lora.target_modules, str):
        return _LINEAR
    named = {name.rpartition(".")[2] for name in lora.target_modules}
    return tuple(name for name in _LINEAR if name in named) or _LINEAR


@cache
def _inference(widths: Widths, layers: int, rows: int, half: bool, threads: int) -> tuple[float, float]:
    import torch

    dtype = torch.bfloat16 if half else torch.float32
    held = widths.parameters * dtype.itemsize
    count = max(1, min(layers, math.ceil(_HELD_BYTES / held)))
    model = _stack(widths, count, dtype).eval().requires_grad_(False)

    def passes(rows: int, tokens: int) -> float:
        return _seconds(model, rows, tokens, widths.hidden, dtype, lambda _: None)

    tokens = _tokens(lambda tokens: passes(1, tokens))
    reading = 2 * count * widths.parameters * tokens / passes(1, tokens)
    return reading, count * held / passes(rows, 1)


@cache
def _learning(
    widths: Widths, rank: int, modules: tuple[str, ...], autocast: bool, checkpointing: bool, threads: int
) -> float:
    import torch

    model = _stack(widths, 1, torch.float32)
    if rank:
        model = _adapted(model, rank, modules)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()

    def backward(outputs: torch.Tensor) -> None:
        outputs.sum().backward()  # type: ignore[no-untyped-call]
        model.zero_grad(set_to_none=True)

    def passes(tokens: int) -> float:
        with torch.autocast(device().type, dtype=torch.bfloat16, enabled=autocast):
            return _seconds(model, 1, tokens, widths.hidden, torch.float32, backward)

    tokens = _tokens(passes)
    return _passes(bool(rank), checkpointing) * 2 * widths.parameters * tokens / passes(tokens)


def _stack(widths: Widths, layers: int, dtype: torch.dtype) -> Any:
    """So many layers without a vocabulary, every weight the same number: only time is looked at."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1,
        hidden_size=widths.hidden,
        intermediate_size=widths.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=widths.attention // widths.head,
        num_key_value_heads=widths.key_value // widths.head,
        head_dim=widths.head,
        bos_token_id=None,
        eos_token_id=None,
        dtype=dtype,
    )
    with torch.device("meta"):
        model = LlamaModel(config).to(dtype)
    model.to_empty(device=device())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0.01)
    return model


def _passes(adapters: bool, checkpointing: bool) -> int:
    return (2 if adapters else 3) + int(checkpointing)


def _adapted(model: Any, rank: int, modules: tuple[str, ...]) -> Any:
    import peft

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers.modeling_utils")  # peft's calls
    config = peft.LoraConfig(r=rank, lora_dropout=0.0, target_modules=list(modules), bias="none")
    return peft.get_peft_model(model, config)


def _tokens(seconds: Callable[[int], float]) -> int:
    """Tokens of a pass that takes about as long as one may."""
    return int(min(_MOST, max(_FEWEST, _FEWEST * _LONGEST / seconds(_FEWEST))))


def _seconds(
    model: Any, rows: int, tokens: int, hidden: int, dtype: torch.dtype, after: Callable[[torch.Tensor], None]
) -> float:
    import torch

    inputs = torch.full((rows, tokens, hidden), 0.01, dtype=dtype, device=device(), requires_grad=model.training)

    def once() -> None:
        after(model(inputs_embeds=inputs, use_cache=not model.training).last_hidden_state)

    return best_seconds(once)
