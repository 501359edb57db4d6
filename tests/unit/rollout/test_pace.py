"""Rows at their own pace: whatever order a session's turns end in, the episodes are the same."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, wait
from itertools import count

from crl.envs.side_by_side import SideBySide
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


class ByTime(ScriptedSession):
    """Turns end one by one, the lowest row's first; with none to sample it waits for a step."""

    waiting: tuple[int, ...] = ()

    def begin(self, rows, sampling, answers=None):
        self.waiting = tuple(sorted({*self.waiting, *rows}))

    def advance(self):
        return self.advance_beside(())

    def advance_beside(self, others):
        if self.waiting:
            row, *rest = self.waiting
            self.waiting = tuple(rest)
            return self.sample([row], SAMPLING, None)
        wait(others, PATIENCE_SECONDS, FIRST_COMPLETED)
        return {}


def corridors(step):
    """Corridors side by side; `step(slot, turn)` is called before each step."""
    numbers = count()  # instances are made in the order of their slots

    class One(Corridor):
        def __init__(self):
            super().__init__()
            self.slot, self.turns = next(numbers), 0

        def step_many(self, actions):
            step(self.slot, self.turns)
            self.turns += 1
            return super().step_many(actions)

    return SideBySide(One, workers=3)


def test_behind_a_server_a_slow_step_holds_up_no_other_row():
    """Row 0's first step lasts until the others have played to their ends."""
    scripts = [["right", "right"], ["hm", "right", "right"], ["hm", "hm", "right"]]
    slots = [EpisodeSlot(task(m, s)) for m, s in enumerate([2, 2, 1])]
    over = threading.Event()

    def script(row, turn):
        return scripts[row][turn], True

    def progress(told):
        if told["done"] == 2:
            over.set()

    by_time, in_step = ScriptedPolicy(script), ScriptedPolicy(script)
    by_time.open = lambda prompts, seeds, limit: ByTime(prompts, script, seeds)

    def step(slot, turn):
        assert slot or turn or over.wait(PATIENCE_SECONDS)

    played = play(by_time, corridors(step), slots, progress=progress)
    assert played == play(in_step, Corridor(), slots)


def test_with_a_lag_a_slow_step_holds_up_no_step_of_others():
    """Row 0's first step lasts until row 1 has stepped, which is asked for later."""
    scripts = [["right", "right"], ["hm", "right"]]
    slots = [EpisodeSlot(task(m, s)) for m, s in enumerate([2, 1])]
    other = threading.Event()

    class OneByOne(ByTime):
        advance_beside = None

        def advance(self):
            if not self.waiting:
                return {}
            row, *rest = self.waiting
            self.waiting = tuple(rest)
            return self.sample([row], SAMPLING, None)

    def script(row, turn):
        return scripts[row][turn], True

    def step(slot, turn):
        if slot:
            other.set()
        else:
            assert turn or other.wait(PATIENCE_SECONDS)

    beside, in_step = ScriptedPolicy(script), ScriptedPolicy(script)
    beside.open = lambda prompts, seeds, limit: OneByOne(prompts, script, seeds)
    played = play(beside, corridors(step), slots, rollout={"environment_lag": 1})
    assert played == play(in_step, Corridor(), slots)


def test_the_batch_of_the_method_bounds_the_session():
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    play(policy, Corridor(), [EpisodeSlot(task(m, 1)) for m in range(3)], rollout={"batch": 2})
    assert policy.limit == 2
