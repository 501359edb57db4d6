"""On-policy context distillation: the sampled gradient is that of the reverse divergence, by exact enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

VOCABULARY, LENGTH = 5, 3


def network(rng: np.random.Generator) -> dict[tuple[int, ...], np.ndarray]:
    """Logits of the next token behind every prefix: a policy with nothing shared between states."""
    prefixes = (prefix for n in range(LENGTH) for prefix in itertools.product(range(VOCABULARY), repeat=n))
    return {prefix: rng.normal(size=VOCABULARY) for prefix in prefixes}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


@pytest.mark.parametrize("moved", [0.0, 0.4], ids=["on policy", "after steps of the update"])
def test_the_expected_gradient_is_that_of_the_full_sum_over_the_vocabulary(moved: float) -> None:
    """Every sequence of three tokens out of five, each with the probability that the behavior policy has of it; the
    gradient of sum_y pi (log pi - log q) at each state is taken by its own formula, in numpy."""
    import torch

    from crl.learn.objectives import reverse_kl_objective

    rng = np.random.default_rng(3)
    behavior, teacher = network(rng), network(rng)
    student = {prefix: logits + moved * rng.normal(size=VOCABULARY) for prefix, logits in behavior.items()}

    # By hand: d KL / d z_y = pi_y (log pi_y - log q_y - KL), at states as often as the behavior policy comes there.
    visited = {(): 1.0}
    expected: dict[tuple[int, ...], np.ndarray] = {}
    divergence = 0.0
    for prefix in sorted(student, key=len):
        pi, q = log_softmax(student[prefix]), log_softmax(teacher[prefix])
        kl = float((np.exp(pi) * (pi - q)).sum())
        expected[prefix] = visited[prefix] * np.exp(pi) * (pi - q - kl)
        divergence += visited[prefix] * kl
        for token, chance in enumerate(np.exp(log_softmax(behavior[prefix]))):
            visited[(*prefix, token)] = visited[prefix] * chance

    sequences = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    weights_B = torch.tensor([visited[each] for each in sequences], dtype=torch.float64)
    leaves = {prefix: torch.tensor(logits, dtype=torch.float64, requires_grad=True) for prefix, logits in student.items()}

    def logprobs_of(policy: dict[tuple[int, ...], torch.Tensor]) -> torch.Tensor:
        rows = [[policy[each[:t]].log_softmax(0)[each[t]] for t in range(LENGTH)] for each in sequences]
        return torch.stack([torch.stack(row) for row in rows])

    fixed = [{prefix: torch.tensor(logits) for prefix, logits in policy.items()} for policy in (behavior, teacher)]
    logprobs_BT, behavior_BT, teacher_BT = logprobs_of(leaves), *map(logprobs_of, fixed)
    mask_BT = torch.ones_like(behavior_BT)
    loss, counted = reverse_kl_objective(logprobs_BT, behavior_BT, mask_BT, teacher_BT, weights_B, normalizer=1.0)
    loss.backward()
    assert loss.item() == pytest.approx(divergence, rel=1e-12), "the value is the divergence"
    assert counted.tokens == LENGTH * len(sequences)
    largest = 0.0
    for prefix, leaf in leaves.items():
        assert leaf.grad is not None
        assert leaf.grad.numpy() == pytest.approx(expected[prefix], rel=1e-10, abs=1e-14), prefix
        largest = max(largest, float(np.abs(expected[prefix]).max()))
    assert largest > 0.01
