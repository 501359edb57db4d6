"""Independent arithmetic for the equations: float64 NumPy, loops and textbook formulas, nothing of `crl.learn`.

Gradients are analytic: for logits z and p = softmax(z / temperature), d log p[y] / d z = (onehot(y) - p) / temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class Batch:
    """A random multi-turn batch: logits of every position, targets, masks, stored behavior log-probabilities."""

    logits_BTV: Floats
    targets_BT: NDArray[np.int64]
    mask_BT: Floats
    behavior_BT: Floats
    advantages_B: Floats
    weights_B: Floats
    temperature: float

    @property
    def advantages_BT(self) -> Floats:
        """That of its sample, for each token."""
        return np.repeat(self.advantages_B[:, None], self.mask_BT.shape[1], axis=1)

    def logprobs(self) -> Floats:
        """log p of the targets, [B, T], one token at a time; 0 outside the mask."""
        out = np.zeros(self.mask_BT.shape)
        for b, t in np.argwhere(self.mask_BT > 0):
            scaled = self.logits_BTV[b, t] / self.temperature
            shifted = scaled - scaled.max()
            out[b, t] = shifted[self.targets_BT[b, t]] - np.log(np.exp(shifted).sum())
        return out

    def logit_gradient(self, d_logprob_BT: Floats) -> Floats:
        """Gradient with respect to the logits of a function with these derivatives in the log-probabilities."""
        out = np.zeros_like(self.logits_BTV)
        for b, t in np.argwhere(self.mask_BT > 0):
            scaled = self.logits_BTV[b, t] / self.temperature
            p = np.exp(scaled - scaled.max())
            p /= p.sum()
            onehot = np.eye(p.size)[self.targets_BT[b, t]]
            out[b, t] = d_logprob_BT[b, t] * (onehot - p) / self.temperature
        return out


def random_batch(seed: int, *, samples: int = 6, tokens: int = 17, vocabulary: int = 11, spread: float = 0.4) -> Batch:
    """Turns of random length between observations; ratios on both sides of any usual clip; both signs of advantage."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((samples, tokens))
    for row in mask:
        position = int(rng.integers(0, 4))
        while position < tokens:
            turn = int(rng.integers(1, 5))
            row[position : position + turn] = 1
            position += turn + int(rng.integers(1, 5))
    advantages = rng.normal(size=samples)
    advantages[:2] = abs(advantages[0]) + 0.1, -abs(advantages[1]) - 0.1
    batch = Batch(
        logits_BTV=rng.normal(size=(samples, tokens, vocabulary)) * 2,
        targets_BT=rng.integers(0, vocabulary, size=(samples, tokens)),
        mask_BT=mask,
        behavior_BT=np.zeros((samples, tokens)),
        advantages_B=advantages,
        weights_B=rng.uniform(0.05, 1.0, size=samples),
        temperature=0.99,
    )
    batch.behavior_BT = (batch.logprobs() + spread * rng.normal(size=mask.shape)) * mask
    return batch


def eq_5(
    batch: Batch,
    epsilon: float,
    epsilon_high: float | None = None,
    *,
    level: str = "token",
    loss_type: str = "grpo",
) -> tuple[float, Floats]:
    """Loss and its derivatives in the log-probabilities, [B, T]: PPO's pessimistic minimum, by cases."""
    logprobs = batch.logprobs()
    derivative = np.zeros_like(logprobs)
    loss = 0.0
    for b in range(len(logprobs)):
        positions = [t for t in range(logprobs.shape[1]) if batch.mask_BT[b, t] > 0]
        if not positions:
            continue
        a = batch.advantages_B[b]
        share = batch.weights_B[b] / (len(positions) if loss_type == "grpo" else 1)
        gaps = {t: logprobs[b, t] - batch.behavior_BT[b, t] for t in positions}
        for t in positions:
            rho = np.exp(gaps[t] if level == "token" else sum(gaps.values()))
            clipped = min(max(rho, 1 - epsilon), 1 + (epsilon if epsilon_high is None else epsilon_high))
            if rho * a <= clipped * a:
                loss -= share * rho * a
                for s in [t] if level == "token" else positions:
                    derivative[b, s] -= share * rho * a
            else:
                loss -= share * clipped * a
    return loss, derivative


def eq_3(batch: Batch, low: float, high: float) -> tuple[float, Floats]:
    """Loss and its derivatives in the log-probabilities: the clipped ratio is a constant factor of each token."""
    logprobs = batch.logprobs()
    derivative = np.zeros_like(logprobs)
    trained = float(batch.mask_BT.sum())
    loss = 0.0
    for b, t in np.argwhere(batch.mask_BT > 0):
        rho = np.exp(logprobs[b, t] - batch.behavior_BT[b, t])
        factor = min(max(rho, 1 - low), 1 + high) * batch.advantages_B[b] * batch.weights_B[b] / trained
        loss -= factor * logprobs[b, t]
        derivative[b, t] = -factor
    return loss, derivative


def relative_error(found: Floats, expected: Floats) -> float:
    """|found - expected| / |expected|, in the Euclidean norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
