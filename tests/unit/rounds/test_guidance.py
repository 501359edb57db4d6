"""Whether experience misleads: the last rounds against sums by hand, and the alarm against chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crl.records import Episode
from crl.rounds.alarms import LEAD, MISLEADS, SUM, VARIANCE, guidance_metrics
from tests.unit.rounds.test_health_metrics import episode, group


def drawn(random: np.random.Generator, guided: float, free: float, members: int = 4, groups: int = 8) -> list[Episode]:
    """A round whose guided and free rollouts succeed with these probabilities."""
    return [
        each
        for number in range(groups)
        for each in group(
            number, list(random.random(members) < guided), list(random.random(members) < free)
        )
    ]  # fmt: skip


def test_two_rounds_by_hand():
    first = [*group(0, [True, False], [True, True]), *group(1, [False, False], [True, False])]
    metrics, alarms = guidance_metrics(first, {})
    # 1 of 4 guided, 3 of 4 free, 4 of 8 in all.
    assert metrics[SUM] == pytest.approx(1 / 4 - 3 / 4)
    assert metrics[VARIANCE] == pytest.approx(1 / 2 * 1 / 2 * (1 / 4 + 1 / 4))
    assert metrics[LEAD] == pytest.approx(-0.5 / math.sqrt(0.125)) and not alarms

    second, _ = guidance_metrics(group(0, [True], [False, False]), metrics)
    assert second[SUM] == pytest.approx(0.8 * -0.5 + 1.0)
    assert second[VARIANCE] == pytest.approx(0.64 * 0.125 + 1 / 3 * 2 / 3 * (1 + 1 / 2))
    assert second[LEAD] == pytest.approx(second[SUM] / math.sqrt(second[VARIANCE]))


def test_groups_of_one_kind_and_broken_episodes_do_not_count():
    both = group(0, [True], [False])
    alone = [*group(1, [], [True, True, True]), *group(2, [False, False], [])]
    broken = episode(0, 9, guided=True, success=False, error="the server is gone")
    assert guidance_metrics([*both, *alone, broken], {}) == guidance_metrics(both, {})


def test_a_round_without_guided_rollouts_changes_nothing():
    before, _ = guidance_metrics(group(0, [True], [False]), {})
    after, alarms = guidance_metrics(group(0, [], [True, False]), before)
    assert after == {SUM: before[SUM], VARIANCE: before[VARIANCE]} and not alarms
    assert guidance_metrics(group(0, [], [True]), {}) == ({}, {})


def test_without_any_variance_there_is_nothing_to_say():
    metrics, alarms = guidance_metrics(group(0, [True, True], [True]), {})
    assert metrics == {SUM: 0.0, VARIANCE: 0.0} and not alarms


def test_notes_that_mislead_are_named_within_some_rounds_and_no_longer_once_they_help():
    random, carried, alarmed = np.random.default_rng(5), {}, []
    for number in range(1, 31):
        misleads = number <= 12
        carried, alarms = guidance_metrics(drawn(random, 0.3 if misleads else 0.7, 0.55), carried)
        alarmed += [number] if alarms else []
    assert alarmed and alarmed[0] <= 8 and alarmed[-1] <= 16
    assert carried[LEAD] > 0


def test_chance_alone_hardly_ever_alarms():
    """400 runs of 60 rounds without any effect."""
    random, alarmed = np.random.default_rng(11), 0
    for _ in range(400):
        total = variance = 0.0
        guided, free = random.binomial(32, 0.5, 60) / 32, random.binomial(32, 0.5, 60) / 32
        reached = False
        for won, unguided in zip(guided, free, strict=True):
            share = (won + unguided) / 2
            total = 0.8 * total + won - unguided
            variance = 0.64 * variance + share * (1 - share) / 16
            reached = reached or total / math.sqrt(variance) < MISLEADS
        alarmed += reached
    assert alarmed < 400 * 0.05
