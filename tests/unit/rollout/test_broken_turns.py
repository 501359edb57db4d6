"""A turn that broke where it is sampled: the end of its episode and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crl.checks import check_tables
from crl.credit.uses import usable
from crl.protocols import StopReason
from crl.records import Episode, Generation, Turn, table_of
from crl.rollout.play import EpisodeSlot
from tests.unit.rollout.fakes import Corridor, ScriptedPolicy, ScriptedSession, task
from tests.unit.rollout.test_play import assert_exact, play


@pytest.mark.parametrize("written", ["", "rig"])
def test_a_turn_that_broke_in_the_engine_ends_its_episode_and_no_other(written):
    class Breaks(ScriptedSession):
        def sample(self, rows, sampling, answers=None):
            found = super().sample(rows, sampling, answers)
            broken = {
                row: replace(turn, stop_reason=StopReason.length, error="no_token")
                for row, turn in found.items()
                if row == 1 and len(self.sampled_at[row]) == 2
            }
            return found | broken

    class Policy(ScriptedPolicy):
        def open(self, prompts, seeds, limit=None):
            self.session = Breaks(prompts, self.script, seeds)
            return self.session

    policy = Policy(lambda row, turn: (written, False) if (row, turn) == (1, 1) else ("right", True))
    played = play(policy, Corridor(), [EpisodeSlot(task(m, 3)) for m in range(3)])
    assert_exact(policy, played)
    assert [each.episode.stop_reason for each in played] == ["success", "error", "success"]
    broken = played[1]
    assert (broken.episode.error, broken.episode.turns, broken.episode.reward) == ("no_token", 2, 0.0)
    assert broken.turns[1].output == written and not usable(broken.episode)
    generations = [replace(each.generations[0], weights_digest="0" * 64) for each in played]
    tables = {Episode: table_of(Episode, [each.episode for each in played]),
              Turn: table_of(Turn, [turn for each in played for turn in each.turns]),
              Generation: table_of(Generation, generations)}  # fmt: skip
    check_tables(tables, where="here")
