"""Rows at their own pace: whatever order a session's turns end in, the episodes are the same."""

from __future__ import annotations

import threading

from crl.rollout.play import EpisodeSlot
from tests.processes import PATIENCE_SECONDS
from tests.unit.rollout.fakes import Corridor, ScriptedPolicy, ScriptedSession, task
from tests.unit.rollout.test_play import SAMPLING, play


def test_rows_at_their_own_pace_play_the_same_episodes():
    """A session that returns one turn at a time, the last row's first, and one that keeps all rows in step."""
    scripts = [["right"], ["right", "right", "right"], ["hm", "right", "left"], ["hm"] * 6]
    slots = [EpisodeSlot(task(m, s, group=m // 2)) for m, s in enumerate([1, 3, 3, 2])]

    class OneByOne(ScriptedSession):
        def __init__(self, *given):
            super().__init__(*given)
            self.waiting = {}

        def begin(self, rows, sampling, answers=None):
            self.waiting |= dict.fromkeys(rows, sampling)

        def advance(self):
            if not self.waiting:
                return {}
            row, sampling = max(self.waiting.items())
            del self.waiting[row]
            return self.sample([row], sampling, None)

    def script(row, turn):
        return scripts[row][turn], True

    together, apart = ScriptedPolicy(script), ScriptedPolicy(script)
    apart.open = lambda prompts, seeds, limit: OneByOne(prompts, script, seeds)
    assert play(together, Corridor(), slots) == play(apart, Corridor(), slots)


def test_other_rows_are_sampled_while_an_environment_steps():
    """Row 0's environment does not return before rows 1 and 2 have been sampled once more; without a lag it would wait
    for ever, and the episodes are those of no lag."""
    scripts = [["right", "right"], ["hm", "right", "right"], ["hm", "hm", "right"]]
    slots = [EpisodeSlot(task(m, s)) for m, s in enumerate([2, 2, 1])]
    sampled_more = threading.Event()

    class OneByOne(ScriptedSession):
        def begin(self, rows, sampling, answers=None):
            self.waiting = sorted({*getattr(self, "waiting", ()), *rows})

        def advance(self):
            if not self.waiting:
                return {}
            row = self.waiting.pop(0)
            if self.sampled_at[0] and row == 2:
                sampled_more.set()
            return self.sample([row], SAMPLING, None)

    class Slow(Corridor):
        def step_many(self, actions):
            assert 0 not in actions or sampled_more.wait(PATIENCE_SECONDS)
            return super().step_many(actions)

    def script(row, turn):
        return scripts[row][turn], True

    beside, after = ScriptedPolicy(script), ScriptedPolicy(script)
    beside.open = lambda prompts, seeds, limit: OneByOne(prompts, script, seeds)
    played = play(beside, Slow(), slots, rollout={"environment_lag": 2})
    assert sampled_more.is_set() and played == play(after, Corridor(), slots)


def test_the_batch_of_the_method_bounds_the_session():
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    play(policy, Corridor(), [EpisodeSlot(task(m, 1)) for m in range(3)], rollout={"batch": 2})
    assert policy.limit == 2
