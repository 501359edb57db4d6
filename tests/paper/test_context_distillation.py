"""On-policy context distillation: the sampled gradient is that of the reverse divergence, by exact enumeration."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
from crl.protocols import Reading
from crl.recipes.complementary.mechanisms.context_distillation import as_read, reverse_kl_samples, with_sampled
from crl.records import Generation, Sample, TeacherContext, TeacherLogprobs
from tests.paper.test_self_distillation import EPISODES, TEMPERATURE, grpo_sample, logprobs

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
    leaves = {prefix: torch.tensor(logits, requires_grad=True) for prefix, logits in student.items()}

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


@pytest.mark.parametrize("count", [1, 3, VOCABULARY])
def test_the_sum_over_the_likeliest_is_a_divergence_and_over_all_of_them_the_whole_one(count: int) -> None:
    import torch

    from crl.learn.objectives import top_k_divergence

    rng = np.random.default_rng(4)
    for _ in range(20):
        logits, q = rng.normal(size=VOCABULARY), log_softmax(rng.normal(size=VOCABULARY))
        pi, ids = log_softmax(logits), np.argsort(-q)[:count]
        rest = np.setdiff1d(np.arange(VOCABULARY), ids)
        # By hand: every id is as far from its teacher as its bucket is.
        gaps = pi - q
        if len(rest):
            gaps[rest] = np.log(np.exp(pi[rest]).sum() / np.exp(q[rest]).sum())
        expected = float((np.exp(pi) * gaps).sum())
        leaf = torch.tensor(logits, requires_grad=True)
        own_NK = leaf.log_softmax(0)[torch.tensor(ids)][None]
        found = top_k_divergence(own_NK, torch.tensor(q[ids])[None])
        found.sum().backward()
        assert found.item() == pytest.approx(expected, abs=1e-9) and expected >= 0
        assert expected <= float((np.exp(pi) * (pi - q)).sum()) + 1e-12
        assert leaf.grad is not None and leaf.grad.numpy() == pytest.approx(np.exp(pi) * (gaps - expected), abs=1e-9)


def test_what_was_sampled_is_among_the_likeliest() -> None:
    reading = Reading([-0.1, -5.0], [[3, 4], [7, 9]], [[-0.1, -2.5], [-0.7, -0.8]])
    assert with_sampled(reading, [3, 1]) == Reading([-0.1, -5.0], [[3, 4], [7, 1]], [[-0.1, -2.5], [-0.7, -5.0]])
    assert with_sampled(Reading([-0.1, -5.0], [], []), [3, 1]) == Reading([-0.1, -5.0], [], [])


def written(rng: np.random.Generator) -> tuple[dict[str, Generation], list[TeacherContext]]:
    """Token records of the free episodes, and how their teacher reads them: behind a longer prompt."""
    records, contexts = {}, []
    for each in (episode for episode in EPISODES if not episode.guided):
        prompt, answer, longer = (int(value) for value in rng.integers(2, 6, size=3))
        ids = [int(token) for token in rng.integers(0, 32, prompt + answer + 2)]
        mask = [0] * prompt + [1] * (answer - 1) + [0, 0] + [1]
        name = each.generation_ids[0]
        records[name] = Generation(
            generation_id=name, round=4, stage="collect", role="actor", kind="episode", weights_digest="w",
            temperature=TEMPERATURE, token_ids=ids[: len(mask)], loss_mask=mask,
            logprobs=[value * float(-3.5 + 0.4 * rng.normal()) for value in mask], prompt="p", output="o",
            stop_reason="failure",
        )  # fmt: skip
        contexts.append(
            TeacherContext(
                episode_id=each.episode_id,
                generation_id=name,
                entry_ids=["e"],
                content_digests=["d"],
                token_ids=[int(token) for token in rng.integers(0, 32, prompt + longer)],
                replaced_tokens=prompt,
            )
        )
    return records, contexts


@pytest.mark.parametrize("top_k", [0, 4], ids=["sampled tokens", "the likeliest four"])
def test_the_teacher_is_the_same_model_behind_another_prompt_and_the_update_takes_the_gradient_of_the_loss(
    model: Path, top_k: int
) -> None:
    """From rows to gradients: log-probabilities, loss and gradient against transformers in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    from crl.learn.terms import REVERSE_KL, objectives
    from crl.learn.trainer import Gradients, Trainer

    rng = np.random.default_rng(8)
    records, contexts = written(rng)
    read = [as_read(context, records[context.generation_id], round=4) for context in contexts]
    role = RoleConfig(
        model="miniature",
        optimizer=OptimizerConfig(kind="sgd", learning_rate=0.01, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(micro_batch=2),
    )
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
    found = trainer.read(read, likeliest=top_k)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    for sample in read:
        assert found[sample.sample_id].logprobs == pytest.approx(logprobs(network, sample), abs=1e-4)
    taught = [
        TeacherLogprobs(
            episode_id=context.episode_id,
            generation_id=context.generation_id,
            role="actor",
            weights_digest="w",
            tokens_read=1,
            teacher_logprobs=found[sample.sample_id].logprobs,
            top_ids=found[sample.sample_id].top_ids,
            top_logprobs=found[sample.sample_id].top_logprobs,
            reason_code=None,
        )
        for context, sample in zip(contexts, read, strict=True)
    ]
    samples = reverse_kl_samples(EPISODES, records, taught, round=4)
    assert [sample.generation_id for sample in samples] == list(records)
    weighed = [dataclasses.replace(sample, weight=0.6) for sample in samples]

    def predicted(sample: Sample) -> list[tuple[int, torch.Tensor]]:
        scaled = network(torch.tensor([sample.token_ids])).logits[0] / TEMPERATURE
        places = [place for place, trained in enumerate(sample.loss_mask) if trained]
        return [(place, scaled[place - 1].log_softmax(0)) for place in places]

    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for sample, other, row in zip(samples, read, taught, strict=True):
        for at, ((place, own_V), (_, teacher_V)) in enumerate(zip(predicted(sample), predicted(other), strict=True)):
            token, teacher_V = sample.token_ids[place], teacher_V.detach()
            if top_k:
                ids = teacher_V.argsort(descending=True)[:top_k]
                assert row.top_ids[at] == ids.tolist()
                assert row.top_logprobs[at] == pytest.approx(teacher_V[ids].tolist(), abs=1e-4)
                rest = torch.ones_like(own_V, dtype=torch.bool)
                rest[ids] = False
                own, given = (torch.cat([each[ids].exp(), each[rest].exp().sum()[None]]) for each in (own_V, teacher_V))
                total = total + (own * (own / given).log()).sum()
            else:
                ratio = (own_V[token] - sample.logprobs[place]).exp()
                total = total + ratio * (own_V[token].detach() - teacher_V[token])
            tokens += 1
    loss = 0.6 * total / tokens
    loss.backward()

    caught: list[Gradients] = []
    policy = [dataclasses.replace(grpo_sample(index, rng), advantage=0.0) for index in range(2)]
    mixed: list[Sample] = [*policy, *weighed]
    objective = {**objectives(ActorObjective()), "reverse_kl": REVERSE_KL}
    metrics = trainer.update(mixed, objective, inspect=caught.append)
    trainer.dispose()
    assert metrics["tokens"] == tokens, "no sample of the policy has a gradient"
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for name, parameter in network.named_parameters():
        if name in caught[0]:
            assert parameter.grad is not None
            # float32 beside float64: up to 4e-6 of the largest entry, by the processor.
            bound = 1e-5 * parameter.grad.abs().max().item()
            assert torch.allclose(caught[0][name].double(), parameter.grad, atol=bound), name
