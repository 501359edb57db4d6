"""Credit of single turns (GiGPO, arXiv 2505.10978) against independent arithmetic, up to the gradient of the update."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import ActorObjective, OptimizerConfig, RoleConfig
from crl.config.mechanisms import TurnCredit
from crl.credit.samples import grpo_samples
from crl.learn.batches import check_sample, collate, has_gradient
from crl.records import Episode, Generation, Turn
from tests.paper.test_loss_types import plain_loss
from tests.paper.test_stored_behavior import demonstrations

Walk = tuple[bool, float, list[tuple[str, float | None]]]
"""Whether it is guided, its reward, and of each turn what was seen and what it earned."""
WALKS = st.lists(
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from([0.0, 1.0, 0.3]),
            st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, None, 0.0, 0.5])), max_size=4),
        ),
        min_size=1, max_size=5,
    ),
    min_size=1, max_size=2,
)  # fmt: skip


def recorded(groups: list[list[Walk]]) -> tuple[list[Episode], dict[str, Generation], list[Turn]]:
    """Turns of two tokens behind one that was shown; a walk of four turns is cut into two sequences."""
    episodes, generations, turns = [], {}, []
    for g, group in enumerate(groups):
        for m, (guided, reward, seen) in enumerate(group):
            name = f"{g}-{m}"
            cuts = [seen[:3], seen[3:]] if len(seen) > 3 else [seen]
            ids = [f"{name}-{s}" for s in range(len(cuts))]
            for n, (observation, earned) in enumerate(seen):
                at = 3 * (n % 3) + 1
                turns.append(
                    Turn(
                        episode_id=name, turn=n, observation=observation, output="go", action="go", valid=True,
                        feedback=None, generation_id=ids[n // 3], first_token=at, last_token=at + 2,
                        stop_reason="end_of_turn", turn_reward=earned,
                    )
                )  # fmt: skip
            for name_of, part in zip(ids, cuts, strict=True):
                generations[name_of] = Generation(
                    generation_id=name_of, round=1, stage="collect", role="actor", kind="episode", weights_digest="w",
                    temperature=1.0, token_ids=[7, 1, 2] * len(part) or [7], loss_mask=[0, 1, 1] * len(part) or [0],
                    logprobs=[0.0, -1.0, -2.0] * len(part) or [0.0], prompt="", output="", stop_reason="end_of_turn",
                )  # fmt: skip
            episodes.append(
                Episode(
                    episode_id=name, round=1, family="room", group=g, member=m, environment_seed=g, guided=guided,
                    goal="goal", success=reward > 0.5, reward=reward, turns=len(seen), invalid_actions=0,
                    stop_reason="failure", error=None, generation_ids=ids, tokens_read=1, tokens_sampled=1,
                    last_observation="over",
                )
            )  # fmt: skip
    return episodes, generations, turns


def normalized(values: list[float], scale: str) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    if deviation < 1e-6:
        return [0.0] * len(values)
    return [(value - mean) / (deviation if scale == "group" else 1.0) for value in values]


@settings(max_examples=150, deadline=None)
@given(
    groups=WALKS, weight=st.sampled_from([0.5, 1.0]), gamma=st.sampled_from([0.5, 1.0]),
    scale=st.sampled_from(["group", "none"]), pooled=st.booleans(),
)  # fmt: skip
def test_a_turn_is_compared_with_turns_that_began_at_the_same_observation(
    groups: list[list[Walk]], weight: float, gamma: float, scale: Any, pooled: bool
) -> None:
    config = ActorObjective(
        advantage="pooled" if pooled else "subgroup",
        turn_credit=TurnCredit(weight=weight, gamma=gamma, scale_rewards=scale),
    )
    episodes, generations, turns = recorded(groups)
    samples = grpo_samples(episodes, generations, config, round=1, turns=turns)
    of_episode = {each.generation_id: each.advantage for each in grpo_samples(episodes, generations, ActorObjective(advantage=config.advantage), round=1)}  # noqa: E501  # fmt: skip
    expected: dict[tuple[str, int], float] = {}
    for g, group in enumerate(groups):
        for side in (None,) if pooled else (True, False):
            anchors: dict[str, list[tuple[str, int, float]]] = {}
            for m, (guided, reward, seen) in enumerate(group):
                if side is not None and guided is not side:
                    continue
                paid = [earned or 0.0 for _, earned in seen]
                for n, (observation, _) in enumerate(seen):
                    value = sum(gamma ** (k - n) * paid[k] for k in range(n, len(seen)))
                    value += gamma ** (len(seen) - 1 - n) * (reward - sum(paid))
                    anchors.setdefault(observation, []).append((f"{g}-{m}", n, value))
            for members in anchors.values():
                for (name, n, _), own in zip(members, normalized([v for _, _, v in members], scale), strict=True):
                    expected[name, n] = own
    for sample in samples:
        name, _, s = sample.generation_id.rpartition("-")
        first = 3 * int(s)
        own = [expected[name, first + k] for k in range(sum(sample.loss_mask) // 2)]
        advantage = of_episode[sample.generation_id]
        assert sample.advantage == advantage
        if any(own):
            wanted = [advantage + weight * each for each in own for _ in range(2)]
            assert sample.token_advantages == pytest.approx(wanted, abs=1e-9)
        else:
            assert sample.token_advantages == []
        check_sample(sample)
        moves = any(sample.token_advantages or [advantage]) and sample.weight > 0 and any(sample.loss_mask)
        assert has_gradient(sample) == moves


def test_the_papers_example_of_a_state_that_is_come_back_to() -> None:
    """Two episodes pass the same room; the one that then wins has the better turn there, whatever came before."""
    won: Walk = (False, 1.0, [("start", None), ("room", None)])
    lost: Walk = (False, 0.0, [("start", None), ("elsewhere", None), ("room", None)])
    credit = TurnCredit(gamma=0.5, scale_rewards="none")
    config = ActorObjective(advantage="pooled", turn_credit=credit, scale_rewards="none")
    one, other = grpo_samples(*recorded([[won, lost]])[:2], config, round=1, turns=recorded([[won, lost]])[2])
    assert one.token_advantages == pytest.approx([0.5 + 0.25] * 2 + [0.5 + 0.5] * 2)
    assert other.token_advantages == pytest.approx([-0.5 - 0.25] * 2 + [-0.5] * 2 + [-0.5 - 0.5] * 2), "none elsewhere"


def test_the_update_goes_by_the_advantage_of_each_token(model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer

    rng, config = np.random.default_rng(2), ActorObjective()
    samples = [
        dataclasses.replace(
            sample, advantage=0.0, token_advantages=[float(each) for each in rng.normal(size=sum(sample.loss_mask))]
        )
        for sample in demonstrations(model, "grpo")
    ]
    role = RoleConfig(optimizer=OptimizerConfig(kind="sgd", learning_rate=0.05, max_grad_norm=0))
    trainer, caught = Trainer(role, model_path=model, checkpoint=None, threads=1), dict[str, Any]()
    try:
        trainer.update(samples, objectives(config), inspect=caught.update)
    finally:
        trainer.dispose()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    tensors = [dataclasses.replace(each, advantage=torch.tensor(each.token_advantages)) for each in samples]  # type: ignore[arg-type]
    loss, _ = plain_loss(network, network, network, tensors, config)
    loss.backward()
    expected = {name: value.grad for name, value in network.named_parameters() if name in caught}
    ours = torch.cat([caught[name].double().flatten() for name in expected])
    plain = torch.cat([value.flatten() for value in expected.values()])
    assert float(torch.nn.functional.cosine_similarity(ours, plain, dim=0)) > 1 - 1e-6
    assert collate(samples).advantages_BT.shape == collate(samples).mask_BT.shape
