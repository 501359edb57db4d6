"""Success that falls, and the warning before a collapse: against plain arithmetic, and by drawn runs."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from crl.rounds.alarms import (
    FALL,
    FALLS,
    FEWEST_ROUNDS,
    KEPT,
    ROUNDS,
    WARNED,
    WARNING,
    fall_metrics,
    health_metrics,
)


def rounds(successes, *, others=()):
    """Metrics and alarms of every round of a guarded run."""
    previous, found = {}, []
    for number, success in enumerate(successes, 1):
        of_round = {"success": float(success), **dict(others)}
        rows = health_metrics(of_round, previous, {"actor"}, round=number, guard=lambda collapsed: ({}, {}))
        previous = {row.name: row.value for row in rows}
        found.append((previous, {row.name: row.alarm for row in rows if row.alarm}))
    return found


def test_how_far_success_is_behind_its_best_is_what_plain_arithmetic_says():
    successes = np.random.default_rng(3).random(25)
    metrics = [of for of, _ in rounds(successes)]
    lately = []
    for last in range(len(successes)):
        weights = KEPT ** np.arange(last, -1, -1.0)
        lately.append(float(successes[: last + 1] @ weights / weights.sum()))
        assert metrics[last]["success_lately"] == pytest.approx(lately[-1])
        if last + 1 < FEWEST_ROUNDS:
            assert FALL not in metrics[last]
            continue
        noise = fmean(np.diff(successes[: last + 1]) ** 2) / 2
        error = (2 * noise * (weights**2).sum()) ** 0.5 / weights.sum()
        behind = max(lately[FEWEST_ROUNDS - 1 :]) - lately[-1]
        assert metrics[last][FALL] == pytest.approx(behind / error)


def test_a_fall_is_warned_of_and_then_named():
    generator = np.random.default_rng(0)
    up = np.concatenate([np.full(30, 0.8), np.linspace(0.8, 0.3, 20), np.full(20, 0.3)])
    told = rounds(generator.binomial(64, up) / 64)
    warned = [number for number, (_, alarms) in enumerate(told, 1) if WARNING in alarms]
    collapsed = [number for number, (_, alarms) in enumerate(told, 1) if "collapsed" in alarms]
    assert 30 < warned[0] < collapsed[0] < 50
    assert collapsed[0] - warned[0] == ROUNDS - WARNED
    assert "early warning" in told[warned[0] - 1][1][WARNING]
    assert told[collapsed[0] - 1][0][WARNING] == 1.0


def test_a_round_in_which_no_game_was_played_is_passed_over():
    successes = [0.9, 0.8] * 5 + [0.2, 0.3]
    whole, broken = {}, {}
    for number, success in enumerate(successes):
        whole = {"success": success, **fall_metrics({"success": success}, whole)}
        if number == 10:
            broken = fall_metrics({}, broken)
        broken = {"success": success, **fall_metrics({"success": success}, broken)}
        assert broken.get(FALL, 0.0) >= (1.0 if number >= 10 else 0.0)
    assert broken[FALL] > 1 and whole[FALL] > 1


def test_noise_alone_is_no_collapse():
    generator = np.random.default_rng(1)
    named = 0
    for _ in range(20):
        previous, behind = {}, 0
        for success in generator.binomial(16, 0.6, size=100) / 16:
            previous = {"success": float(success), **fall_metrics({"success": float(success)}, previous)}
            behind = behind + 1 if previous.get(FALL, 0.0) > FALLS else 0
            if behind == ROUNDS:
                named += 1
                break
    assert named <= 1


def test_other_signs_are_warned_of_too_and_without_a_guard_nobody_warns():
    told = rounds([0.5] * 5, others={"share_without_experience": 0.9})
    assert [WARNING in alarms for _, alarms in told] == [False, True, True, True, False]
    assert [of[WARNING] for of, _ in told] == [0.2, 0.4, 0.6, 0.8, 1.0]
    rows = health_metrics({"success": 0.5}, {}, {"actor"}, round=1)
    assert {row.name for row in rows} == {"success", "best_success", "collapsed"}
