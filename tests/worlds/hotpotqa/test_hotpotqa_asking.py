"""Search-and-ask beside a search: a question is a turn of the episode, and what was found stays shown."""

from __future__ import annotations

import numpy as np

from crl.config import SearchAndAskConfig
from crl.rollout.play import play_wave
from crl.worlds.hotpotqa.environment import HotpotQAConfig
from tests.unit.rollout.fakes import ScriptedPolicy, method
from tests.unit.rollout.test_asking import SAMPLING, Answers, guided_slot


def test_who_asks_is_told_how_many_turns_are_left() -> None:
    environment = HotpotQAConfig(max_turns=4).make()
    (start,) = environment.reset_many([7])
    slot = guided_slot(start)
    said = ["search[a city]", "ASK: where?", "ASK: who?", "answer[no]"]
    (played,) = play_wave(
        ScriptedPolicy(lambda row, turn: (said[turn], True)), environment, [slot],
        method=method(search_and_ask=SearchAndAskConfig(uses=2)), seed_of=lambda name: np.random.SeedSequence(1),
        sampling=SAMPLING, weights_digest="w", stage="collect", advisor=Answers(),
    )  # fmt: skip
    environment.close()
    shown = [turn.observation.split("\nTurns left: ") for turn in played.turns]
    assert [left for _, left in shown] == ["4.", "3.", "2.", "1."]
    assert shown[1][0] == shown[2][0] == shown[3][0], "and what was found"
