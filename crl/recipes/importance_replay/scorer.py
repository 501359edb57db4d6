"""The extractor network of importance-weighted replay: what a sample is worth, learned from whether updates helped.

Shapes: N samples, F features. One hidden layer; its output layer begins at zero, so that every score is exactly 0.5
before the first step. Everything runs in float32 on one thread of the CPU: equal rows give equal bits. Weights and the
state of Adam come from rows and go to rows (`rows.py`); no file is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from crl.errors import RecordDamaged, StageFailed

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """How the network is trained."""

    learning_rate: float
    extractor: float
    """Factor of the binary cross-entropy."""
    coupling: float
    """Factor of mean |score - label|."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter with the state of Adam; all three of one shape."""

    weights: Floats
    first_moment: Floats
    second_moment: Floats
    steps: int


@dataclass(frozen=True, slots=True)
class ScorerLosses:
    """The network's two losses without their factors, mean over samples."""

    extractor: float
    coupling: float


def scorer_losses(logits_N: torch.Tensor, labels_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(binary cross-entropy of the scores, mean of |score - label|), each a mean over samples.

    score = sigmoid(logit). Labels are 0 or 1.
    """
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits_N, labels_N)
    return entropy, (torch.sigmoid(logits_N) - labels_N).abs().mean()


class ExtractorNetwork:
    """F features to a score between 0 and 1."""

    def __init__(self, tensors: Mapping[str, Tensor], settings: ScorerSettings | None = None) -> None:
        """Continue from tensors (:func:`first_tensors` gives those to begin with). Without settings it only scores.

        Raises RecordDamaged where they are not those of one network.
        """
        if set(tensors) != set(_NAMES):
            raise RecordDamaged(
                f"the network has tensors {', '.join(sorted(tensors))}",
                expected=", ".join(_NAMES),
                next_step="run `crl verify` on the run",
            )
        self._settings, self._steps = settings, tensors[_NAMES[0]].steps
        self._parameters = {
            name: torch.tensor(tensors[name].weights, dtype=torch.float32, requires_grad=True) for name in _NAMES
        }
        self._optimizer = torch.optim.Adam(self._parameters.values(), lr=settings.learning_rate if settings else 0.0)
        if self._steps:
            for name, parameter in self._parameters.items():
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self._steps)),
                    "exp_avg": torch.tensor(tensors[name].first_moment, dtype=torch.float32),
                    "exp_avg_sq": torch.tensor(tensors[name].second_moment, dtype=torch.float32),
                }

    @property
    def width(self) -> int:
        """F."""
        return self._parameters["hidden.weight"].shape[1]

    def scores(self, features_NF: Floats) -> Floats:
        """Scores [N] of samples."""
        with _one_thread(), torch.no_grad():
            scores_N: Floats = torch.sigmoid(self._logits(torch.from_numpy(features_NF))).numpy()
        return scores_N

    def fit(self, features_NF: Floats, labels_N: Floats, epochs: int) -> ScorerLosses:
        """So many steps on all samples; the losses are those before the first.

        Raises StageFailed where a loss is not finite.
        """
        if self._settings is None:
            raise ValueError("the network was given no settings to be trained by")
        inputs, labels = (torch.from_numpy(np.ascontiguousarray(each)) for each in (features_NF, labels_N))
        before: ScorerLosses | None = None
        with _one_thread():
            for _ in range(epochs):
                extractor, coupling = scorer_losses(self._logits(inputs), labels)
                before = before or ScorerLosses(float(extractor.detach()), float(coupling.detach()))
                loss = self._settings.extractor * extractor + self._settings.coupling * coupling
                if not torch.isfinite(loss):
                    raise StageFailed(
                        f"the loss of the extractor network is {float(loss.detach())}",
                        expected="a finite number",
                        next_step="lower method.recipe.extractor.learning_rate",
                    )
                self._optimizer.zero_grad()
                torch.autograd.backward(loss)
                self._optimizer.step()
                self._steps += 1
        if before is None:
            raise ValueError(f"{epochs} epochs; expected at least one")
        return before

    def tensors(self) -> dict[str, Tensor]:
        """Its parameters and the state of its optimizer, by name."""
        found = {}
        for name, parameter in self._parameters.items():
            state = self._optimizer.state.get(parameter, {})
            weights: Floats = parameter.detach().numpy().copy()
            first, second = (
                state[key].numpy().copy() if key in state else np.zeros_like(weights)
                for key in ("exp_avg", "exp_avg_sq")
            )
            found[name] = Tensor(weights, first, second, self._steps)
        return found

    def _logits(self, features_NF: torch.Tensor) -> torch.Tensor:
        of = self._parameters
        hidden_NH = torch.tanh(features_NF @ of["hidden.weight"].T + of["hidden.bias"])
        logits_N: torch.Tensor = hidden_NH @ of["output.weight"] + of["output.bias"]
        return logits_N


_NAMES = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")


def first_tensors(features: int, hidden: int, seed: np.random.SeedSequence) -> dict[str, Tensor]:
    """A network that scores everything 0.5: hidden weights uniform within 1/sqrt(F), the output layer zero."""
    bound = 1 / np.sqrt(features)
    weights = {
        "hidden.weight": np.random.default_rng(seed).uniform(-bound, bound, (hidden, features)).astype(np.float32),
        "hidden.bias": np.zeros(hidden, np.float32),
        "output.weight": np.zeros(hidden, np.float32),
        "output.bias": np.zeros(1, np.float32),
    }
    return {name: Tensor(each, np.zeros_like(each), np.zeros_like(each), 0) for name, each in weights.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums that threads share round by how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
