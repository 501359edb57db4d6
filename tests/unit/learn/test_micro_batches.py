"""Micro-batches: whatever the order of rows one cut, as many steps on every rank, what is shared computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.errors import RecordDamaged
from crl.learn.batches import check_sample, collate, cut, has_gradient, tree_of
from crl.records import Sample
from crl.rollout.live import sequence_id

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
    longest: dict[str, int] = {}
    for sample in samples:
        longest[sample.objective] = max(longest.get(sample.objective, 0), len(sample.token_ids) - 1)
    for batch in (batch for steps in expected for batch in steps if batch):
        assert len({sample.objective for sample in batch}) == 1
        assert len(tree_of(batch).token_ids) <= micro_batch * longest[batch[0].objective]
        assert len(tree_of(batch).token_ids) <= sum(len(sample.token_ids) - 1 for sample in batch), "nothing is padded"
    alone = cut(samples, micro_batch, ranks, way="rows")
    assert {len(batch) for steps in alone for batch in steps} <= {0, 1}


def group(samples: Sequence[Sample], prompt: Sequence[int]) -> list[Sample]:
    """The samples behind a prompt that all have."""
    gap = [0] * len(prompt)
    return [
        dataclasses.replace(
            sample,
            token_ids=[*prompt, *sample.token_ids],
            loss_mask=[*gap, *sample.loss_mask],
            logprobs=[*gap, *sample.logprobs],
        )
        for sample in samples
    ]


def test_a_prompt_that_a_group_shares_is_computed_once(random_samples: MakeSamples) -> None:
    own = sorted(random_samples(6), key=lambda sample: sample.token_ids)
    samples = group(own, [7, 8] * 40)
    [[together]] = cut(samples, 6, 1)
    assert together == samples
    assert len(tree_of(together).token_ids) == 80 + len(tree_of(own).token_ids)
    assert len(cut(samples, 1, 1)[0]) > 1, "one sample of the largest size is all that fits then"


def test_sequences_of_an_episode_read_what_they_share_once(random_samples: MakeSamples) -> None:
    """Each trains its last turn alone: by what one of them trains, few would be together."""
    [sample] = random_samples(1)
    length = 20
    own = [
        dataclasses.replace(
            sample, sample_id=f"s{turn}", generation_id=sequence_id("e", "collect", turn),
            token_ids=[1] * length + [2] * turn + [3] * 4, loss_mask=[0] * (length + turn) + [1] * 4,
            logprobs=[0.0] * (length + turn + 4),
        )
        for turn in range(10)
    ]  # fmt: skip
    [[together]] = cut(own, 2, 1)
    assert len(together) == 10 and len(tree_of(together).token_ids) == length + 9 + 10 * 3
    others = [dataclasses.replace(each, generation_id=each.sample_id) for each in own]
    assert {len(part) for part in cut(others, 2, 1)[0]} == {2}, "episodes apart are bounded by what one of them trains"
    assert tree_of(own).continued and not tree_of(others).continued
    trained = [dataclasses.replace(each, loss_mask=[0, *[1] * (len(each.token_ids) - 1)]) for each in own]
    longest = length + 9 + 4 - 1
    assert all(sum(sum(each.loss_mask) for each in part) <= 2 * longest for part in cut(trained, 2, 1)[0])


def test_every_sample_reads_its_own_tokens_in_segments(random_samples: MakeSamples) -> None:
    samples = sorted(group(random_samples(5), [1, 2, 3]), key=lambda sample: sample.token_ids)
    longer = dataclasses.replace(samples[-1], sample_id="longer", token_ids=[*samples[-1].token_ids, 4])
    for batch in (samples, [*samples, longer], samples[::-1], [longer, samples[-1]]):
        tree = tree_of(batch)
        assert sum(tree.segments) == len(tree.token_ids) == len(tree.depths)
        first = 0
        for sample, path, own in zip(batch, tree.paths, tree.segments, strict=True):
            assert [tree.token_ids[position] for position in path] == sample.token_ids[:-1]
            assert [tree.depths[position] for position in path] == list(range(len(path)))
            assert path[len(path) - own :] == list(range(first, first + own))
            first += own
    assert tree.segments[1] == 0, "one that continues no further adds nothing"


def test_targets_are_the_tokens_after_the_inputs(random_samples: MakeSamples) -> None:
    for samples in (random_samples(3), group(random_samples(3), [9, 9])):
        batch = collate(samples)
        places = batch.positions_N.tolist()
        for row, sample in enumerate(samples):
            length = len(sample.token_ids) - 1
            assert batch.targets_BT[row, :length].tolist() == sample.token_ids[1:]
            assert batch.mask_BT[row, :length].tolist() == sample.loss_mask[1:]
            assert batch.behavior_BT[row, :length].tolist() == pytest.approx(sample.logprobs[1:])
            assert batch.mask_BT[row, length:].sum() == 0
            trained = [index for index, value in enumerate(sample.loss_mask) if value]
            before, places = places[: len(trained)], places[len(trained) :]
            assert batch.input_ids_P[before].tolist() == [sample.token_ids[index - 1] for index in trained]
            assert batch.depths_P[before].tolist() == [index - 1 for index in trained]
        assert not places


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
    assert has_gradient(dataclasses.replace(sample, objective="nll", advantage=1.0))
    assert not has_gradient(dataclasses.replace(sample, objective="nll", advantage=0.0)), "whatever the objective"
