"""The base model beside the weights that are trained: its log-probabilities, for objectives that penalize leaving it.

With adapters it is the same model with its adapter off, which takes no memory; full weights have a frozen copy of the
base model beside them. The copy is whole on every rank: under ZeRO-3, whose point is that no rank holds a whole model,
such an objective is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from crl.config import RoleConfig
from crl.errors import BadInput
from crl.learn.scoring import ScoredModel, load_trainable


class Reference:
    """Log-probabilities under the base model of a role."""

    def __init__(self, role: RoleConfig, model_path: Path, trained: ScoredModel, device: torch.device) -> None:
        """`trained` is the model under training, on `device`. Raises BadInput under ZeRO-3."""
        if role.deepspeed.zero_stage == 3:
            raise BadInput(
                "the objective compares with the base model, which ZeRO-3 would have to hold whole on every rank",
                expected="zero_stage 0, 1 or 2, or no penalty",
                where="deepspeed.zero_stage",
                next_step="lower zero_stage, or set the coefficient of the divergence (kl) to 0",
            )
        self._trained: ScoredModel | None = trained
        self._copy: ScoredModel | None = None
        if role.lora is None:
            base = load_trainable(model_path, None, lora=None, source=role.model, seed=0)
            self._copy = ScoredModel(base.requires_grad_(False), autocast=trained.autocast).to(device)

    def logprobs(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Log-probabilities [B, T] of the targets; `inputs` are those of :meth:`ScoredModel.forward`."""
        with torch.no_grad():
            if self._copy is not None:
                return self._copy(*inputs)  # type: ignore[no-any-return]
            assert self._trained is not None
            with self._trained.model.disable_adapter():
                return self._trained(*inputs)  # type: ignore[no-any-return]

    def dispose(self) -> None:
        """Free what it holds."""
        self._trained = self._copy = None
