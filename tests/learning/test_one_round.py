"""examples/one_round.py: the whole round without a pipeline, trained for real."""

from __future__ import annotations

import math

import pytest

from examples.one_round import main


def test_both_models_train_and_the_actor_finds_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    before, *rounds = main(rounds=3, practice=64, passes=6)
    assert all(each["actor moved"] > 0 for each in rounds)
    assert sum(each["extractor moved"] for each in rounds) > 0
    assert 0 < rounds[0]["bank"] < rounds[1]["bank"] < rounds[2]["bank"]
    assert math.isnan(rounds[0]["guided"]) and not math.isnan(rounds[1]["guided"]), "round 1 has nothing to retrieve"
    assert all(each["malformed"] < 0.5 for each in rounds)
    assert rounds[2]["held out, without"] > before["held out, without"] + 0.1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed if line.startswith("round ")] == [f"round {n}" for n in range(4)]
