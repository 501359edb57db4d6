"""Samples: advantages and weights join the token record untouched."""

from __future__ import annotations

from typing import Any

import pytest

from crl.config import ActorObjective, ExtractorObjective
from crl.credit.samples import cispo_samples, grpo_samples
from crl.errors import RecordDamaged
from crl.records import BufferItem, Episode, Generation


def episode(group: int, member: int, *, guided: bool, reward: float, stop_reason: str = "failure") -> Episode:
    return Episode(
        episode_id=f"g{group}m{member}", round=3, family="room", group=group, member=member, environment_seed=group,
        guided=guided, goal="goal", success=reward > 0,
        reward=reward, turns=1, invalid_actions=0, stop_reason=stop_reason, error=None,
        generation_ids=[f"a-g{group}m{member}"], tokens_read=1, tokens_sampled=2,
        last_observation=None if stop_reason == "error" else "over",
    )  # fmt: skip


def generation(generation_id: str, round: int = 3, stage: str = "collect") -> Generation:
    return Generation(
        generation_id=generation_id, round=round, stage=stage, role="actor", kind="episode", weights_digest="w",
        temperature=0.9, token_ids=[1, 2, 3], loss_mask=[0, 1, 1], logprobs=[0.0, -1.0, -2.0], prompt="", output="",
        stop_reason="end_of_turn",
    )  # fmt: skip


def item(generation_id: str, uses: int = 1, score_sum: float = 1.0, **changes: Any) -> BufferItem:
    values: dict[str, Any] = {
        "generation_id": generation_id, "generation_round": 1, "generation_stage": "distill", "kind": "used",
        "entered_round": 2, "entered_order": 0, "uses": uses, "score_sum": score_sum, "train_count": 0,
        "last_trained_round": None, "status": "waiting", "reason": None,
    }  # fmt: skip
    return BufferItem(**{**values, **changes})


def test_guided_and_free_are_normalized_apart_and_weighted_half_each() -> None:
    rewards = {True: [1.0, 0.0], False: [1.0, 1.0, 0.0, 1.0]}
    episodes = [
        episode(0, index, guided=guided, reward=reward)
        for index, (guided, reward) in enumerate((key, value) for key in rewards for value in rewards[key])
    ]
    episodes += [episode(1, 0, guided=False, reward=1.0)]
    generations = {row.generation_ids[0]: generation(row.generation_ids[0]) for row in episodes}
    samples = grpo_samples(episodes, generations, ActorObjective(), round=3)
    assert [round(sample.advantage, 6) for sample in samples[:2]] == [1.0, -1.0]
    assert samples[4].advantage == pytest.approx(-(3**0.5))
    assert samples[6].advantage == 0.0, "a singleton says nothing"
    assert [sample.weight for sample in samples] == pytest.approx([0.125, 0.125, *[0.0625] * 4, 0.25])
    assert (samples[0].token_ids, samples[0].loss_mask, samples[0].logprobs) == (
        [1, 2, 3],
        [0, 1, 1],
        [0.0, -1.0, -2.0],
    )
    assert (samples[0].temperature, samples[0].source, samples[0].objective) == (0.9, "0003/collect", "grpo")
    assert len({sample.sample_id for sample in samples}) == len(samples)


def test_broken_episodes_leave_no_trace_in_the_baseline() -> None:
    good = [episode(0, 0, guided=False, reward=1.0), episode(0, 1, guided=False, reward=0.0)]
    broken = [
        episode(0, 2, guided=False, reward=0.0, stop_reason="error"),
        episode(1, 0, guided=False, reward=0.0, stop_reason="error"),
    ]
    generations = {row.generation_ids[0]: generation(row.generation_ids[0]) for row in good + broken}
    with_broken = grpo_samples(good + broken, generations, ActorObjective(), round=3)
    assert with_broken == grpo_samples(good, generations, ActorObjective(), round=3)


def test_pooled_baseline_is_one_over_the_group() -> None:
    episodes = [episode(0, 0, guided=True, reward=1.0), episode(0, 1, guided=False, reward=0.0)]
    generations = {row.generation_ids[0]: generation(row.generation_ids[0]) for row in episodes}
    samples = grpo_samples(episodes, generations, ActorObjective(advantage="pooled"), round=3)
    assert [(sample.advantage, sample.weight) for sample in samples] == [(1.0, 0.5), (-1.0, 0.5)]


def test_an_output_is_rewarded_by_the_mean_of_its_uses_less_the_mean_of_the_batch() -> None:
    batch = [
        item("x", uses=4, score_sum=2.0),
        item("y", uses=1, score_sum=-2.0, kind="malformed"),
        item("z", uses=2, score_sum=2.0, train_count=3, last_trained_round=1),
    ]
    generations = {row.generation_id: generation(row.generation_id, 1, "distill") for row in batch}
    samples = cispo_samples([batch], generations, ExtractorObjective(baseline="all"), round=5)
    baseline = (0.5 - 2.0 + 1.0) / 3
    assert [sample.reward for sample in samples] == [0.5, -2.0, 1.0]
    assert [sample.advantage for sample in samples] == pytest.approx([0.5 - baseline, -2.0 - baseline, 1.0 - baseline])
    assert [sample.weight for sample in samples] == [1.0, 1.0, 0.5]
    assert {sample.source for sample in samples} == {"0001/distill"}
    assert cispo_samples([], {}, ExtractorObjective(), round=5) == []


def test_every_batch_is_a_step_with_a_baseline_of_its_own() -> None:
    batches = [
        [item("x", score_sum=1.0), item("y", score_sum=-1.0)],
        [item("z", score_sum=1.0), item("w", score_sum=0.0)],
    ]
    generations = {row.generation_id: generation(row.generation_id, 1, "distill") for batch in batches for row in batch}
    samples = cispo_samples(batches, generations, ExtractorObjective(), round=5)
    assert [(sample.step, sample.advantage) for sample in samples] == [(0, 1.0), (0, -1.0), (1, 0.5), (1, -0.5)]


def test_a_flood_of_malformed_outputs_does_not_make_failing_notes_look_good() -> None:
    """24 notes that always fail beside 40 malformed outputs at -2: against the mean of all they would gain +0.625."""
    batch = [item(f"n{index}", score_sum=-1.0) for index in range(24)]
    batch += [item(f"m{index}", score_sum=-2.0, kind="malformed") for index in range(40)]
    generations = {row.generation_id: generation(row.generation_id, 1, "distill") for row in batch}
    pooled = cispo_samples([batch], generations, ExtractorObjective(baseline="all"), round=5)
    assert {sample.advantage for sample in pooled} == {0.625, -0.375}
    apart = cispo_samples([batch], generations, ExtractorObjective(baseline="used"), round=5)
    assert {sample.advantage for sample in apart} == {0.0, -1.0}, "failing notes gain nothing, malformed ones lose"


def test_a_missing_token_record_is_damage() -> None:
    with pytest.raises(RecordDamaged, match="a-g0m0") as caught:
        grpo_samples([episode(0, 0, guided=True, reward=1.0)], {}, ActorObjective(), round=3)
    assert caught.value.where == "samples of actor, round 3"
