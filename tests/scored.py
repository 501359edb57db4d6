"""What given ids would have had as log-probabilities, by teacher forcing: what stored ones are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crl.policies.sampling import scaled_logprobs

_POSITIONS = 256
"""Positions whose float32 log-probabilities are held at once (a vocabulary of 150,000 makes that 150 MB)."""


@torch.inference_mode()
def sequence_logprobs(
    model: Any,
    token_ids: Sequence[Sequence[int]],
    temperature: float,
    *,
    batch: int,
    choices: Sequence[Mapping[int, Sequence[int]]] | None = None,
) -> list[NDArray[np.float32]]:
    """Log-probability of every id given those before it, under the temperature-scaled distribution.

    Args:
        model: a transformers causal language model in evaluation mode.
        token_ids: sequences, none empty.
        temperature: divides the logits.
        batch: sequences a forward pass.
        choices: of each sequence, by position, the ids that the id there was chosen among: its probability is
            renormalized over them.

    Returns:
        One float32 array a sequence, as long as the sequence; position 0 has nothing before it and is 0.
    """
    results: list[NDArray[np.float32]] = [np.zeros(len(ids), dtype=np.float32) for ids in token_ids]
    by_length = sorted(range(len(token_ids)), key=lambda index: (-len(token_ids[index]), index))
    for start in range(0, len(by_length), batch):
        chosen = by_length[start : start + batch]
        width = len(token_ids[chosen[0]])
        # Padded on the right: causal attention never looks there, so no mask is needed.
        ids_BT = torch.zeros(len(chosen), width, dtype=torch.int64)
        for row, index in enumerate(chosen):
            ids_BT[row, : len(token_ids[index])] = torch.as_tensor(token_ids[index])
        ids_BT = ids_BT.to(model.device)
        mask_BT = torch.ones_like(ids_BT)
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
        for row, index in enumerate(chosen):
            for first in range(0, len(token_ids[index]) - 1, _POSITIONS):
                last = min(first + _POSITIONS, len(token_ids[index]) - 1)
                logprobs_TV = scaled_logprobs(logits_BTV[row, first:last], temperature)
                targets_T1 = ids_BT[row, first + 1 : last + 1, None]
                results[index][first + 1 : last + 1] = logprobs_TV.gather(1, targets_T1)[:, 0].cpu().numpy()
                for position, ids in (choices[index] if choices is not None else {}).items():
                    if first < position <= last:
                        among_K = logprobs_TV[position - first - 1][torch.as_tensor(ids, device=model.device)]
                        results[index][position] -= float(among_K.logsumexp(0))
    return results
