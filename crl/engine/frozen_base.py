"""The frozen base that several roles stand on: its numbers are in memory once, and every role has a model over them.

Such a model has modules, a config, an attention and an adapter of its own: the ways of sampling and of updating set
these, peft and DeepSpeed wrap them. Only its parameters' storage is the others'. Nobody writes to it: parameters are
frozen, DeepSpeed flattens and steps those that are trained, and sampling keeps its adapter apart, for merging would
change everybody's numbers. So no adapter is ever switched on or off for another role, and a role's gradients are those
of a run of its own. ZeRO-3, which takes weights apart, is refused (`RoleConfig.check_shared_base`).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from crl.config.models import pretrained
from crl.policies.language_model import load_model


class FrozenBase:
    """A base model. It is loaded when it is first asked for, on the GPU where there is one."""

    def __init__(self, path: Path) -> None:
        """`path`: directory of a transformers checkpoint."""
        self._path = path
        self._models: dict[Any, Any] = {}
        """What models are copied from, by the type of its weights; no pass is computed with it."""

    def model(self, dtype: torch.dtype | Literal["auto"]) -> Any:
        """A model of its own over the base's numbers in this type; auto: that which its config names."""
        held: Any = (pretrained(AutoConfig, self._path).dtype or dtype) if dtype == "auto" else dtype
        if held not in self._models:
            model = load_model(self._path, None, dtype=held).eval()
            self._models[held] = model.to("cuda") if torch.cuda.is_available() else model
        model = self._models[held]
        # Buffers are copied: they are small, and a model may fill them anew.
        shared = {id(each): torch.nn.Parameter(each.detach(), requires_grad=False) for each in model.parameters()}
        return copy.deepcopy(model, shared)
