"""Micro-batches: the cut does not depend on row order, every rank has as many steps, damage is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.errors import RecordDamaged
from crl.learn.batches import check_sample, collate, cut, has_gradient
from crl.records import Sample

MakeSamples = Callable[..., list[Sample]]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.randoms())
def test_every_sample_is_on_one_rank_once_whatever_the_order(
    random_samples: MakeSamples, count: int, micro_batch: int, ranks: int, random: Any
) -> None:
    samples = random_samples(count) + [
        dataclasses.replace(sample, sample_id=f"n{sample.sample_id}") for sample in random_samples(count // 2, "nll")
    ]
    expected = cut(samples, micro_batch, ranks)
    shuffled = list(samples)
    random.shuffle(shuffled)
    assert cut(shuffled, micro_batch, ranks) == expected
    assert len({len(steps) for steps in expected}) == 1
    ids = [sample.sample_id for steps in expected for batch in steps for sample in batch]
    assert sorted(ids) == sorted(sample.sample_id for sample in samples)
    for steps in expected:
        for batch in steps:
            assert len(batch) <= micro_batch
            assert len({sample.objective for sample in batch}) <= 1


def test_targets_are_the_tokens_after_the_inputs(random_samples: MakeSamples) -> None:
    samples = random_samples(3)
    batch = collate(samples)
    for row, sample in enumerate(samples):
        length = len(sample.token_ids) - 1
        assert batch.input_ids_BT[row, :length].tolist() == sample.token_ids[:-1]
        assert batch.targets_BT[row, :length].tolist() == sample.token_ids[1:]
        assert batch.mask_BT[row, :length].tolist() == sample.loss_mask[1:]
        assert batch.behavior_BT[row, :length].tolist() == pytest.approx(sample.logprobs[1:])
        assert batch.mask_BT[row, length:].sum() == 0
        assert batch.attention_mask_BT[row].sum() == length


@pytest.mark.parametrize(
    "damage",
    [
        {"logprobs": [0.0]},
        {"loss_mask": [1, 1, 1], "token_ids": [1, 2, 3], "logprobs": [-1.0, -1.0, -1.0]},
        {"advantage": float("nan")},
        {"temperature": 0.0},
    ],
)
def test_samples_no_model_can_have_written_are_refused(random_samples: MakeSamples, damage: dict[str, Any]) -> None:
    [sample] = random_samples(1)
    check_sample(sample)
    with pytest.raises(RecordDamaged, match=sample.sample_id):
        check_sample(dataclasses.replace(sample, **damage))


def test_which_samples_can_change_the_weights(random_samples: MakeSamples) -> None:
    [sample] = random_samples(1)
    assert has_gradient(sample)
    assert not has_gradient(dataclasses.replace(sample, advantage=0.0))
    assert not has_gradient(dataclasses.replace(sample, weight=0.0))
    assert not has_gradient(dataclasses.replace(sample, loss_mask=[0] * len(sample.token_ids)))
    assert has_gradient(dataclasses.replace(sample, objective="nll", advantage=0.0))
