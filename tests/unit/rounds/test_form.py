"""Shares of valid and cut-off turns against counts by hand, and where their alarms begin."""

from __future__ import annotations

import dataclasses

import pytest

from crl.rounds.alarms import form_alarms, health_metrics, output_metrics, turn_metrics
from tests.unit.rounds.test_health_metrics import episode


def played(turns: int, invalid: int, *, error: str | None = None):
    made = episode(0, 0, guided=False, success=False, error=error)
    return dataclasses.replace(made, turns=turns, invalid_actions=invalid)


def test_shares_are_of_all_turns():
    episodes = [played(10, 4), played(2, 0), played(4, 0, error="step_failed")]
    stops = ["length"] * 3 + ["end_of_turn"] * 13
    assert turn_metrics(episodes, stops) == {"turns_valid": 0.75, "turns_cut": 3 / 16}
    assert turn_metrics([], []) == {} == turn_metrics([played(0, 0, error="reset_failed")], [])


def test_an_output_that_was_never_sampled_is_not_cut():
    assert output_metrics(["length", "end_of_turn", "context_limit"]) == {"outputs_cut": 0.5}
    assert output_metrics(["context_limit"]) == {} == output_metrics([])


@pytest.mark.parametrize(
    ("metrics", "alarmed"),
    [
        ({"turns_valid": 0.95, "turns_cut": 0.05, "outputs_cut": 0.05}, set()),
        ({"turns_valid": 0.949}, {"turns_valid"}),
        ({"turns_cut": 0.051, "outputs_cut": 0.0}, {"turns_cut"}),
        ({"turns_valid": 0.5, "outputs_cut": 0.06}, {"turns_valid", "outputs_cut"}),
        ({}, set()),
    ],
)
def test_alarms_begin_outside_the_bounds(metrics, alarmed):
    assert set(form_alarms(metrics)) == alarmed
    rows = health_metrics(metrics, {}, frozenset(), round=1)
    assert {row.name for row in rows if row.alarm is not None} == alarmed
    assert all("5%" in row.alarm for row in rows if row.alarm is not None)
