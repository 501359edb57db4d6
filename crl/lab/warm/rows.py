"""What demonstrations share: two symbols at random, and the token record of one demonstrated answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from crl.protocols import Chat
from crl.records import Generation

WAVE = 500
"""Demonstrations made side by side."""
STAGE = "warm"
"""What demonstrations call their stage."""


def any_two(symbols: Iterable[str], random: np.random.Generator) -> tuple[str, str]:
    """Two different symbols, in random order."""
    first, second = random.choice(sorted(symbols), size=2, replace=False)
    return str(first), str(second)


def written_row(
    generation_id: str, role: str, kind: str, opening: Sequence[int], answer: Sequence[int], chat: Chat, prompt: str
) -> Generation:
    """A prompt and what is to be said to it: the loss is on the answer alone."""
    return Generation(
        generation_id=generation_id, round=0, stage=STAGE, role=role, kind=kind, weights_digest="",
        temperature=1.0, token_ids=[*opening, *answer], loss_mask=[0] * len(opening) + [1] * len(answer),
        logprobs=[0.0] * (len(opening) + len(answer)), prompt=prompt, output=chat.decode(answer),
        stop_reason="end_of_turn",
    )  # fmt: skip
