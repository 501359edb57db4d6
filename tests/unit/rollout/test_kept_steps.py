"""Steps of finished episodes, kept for the next attempt at a wave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from crl.envs.side_by_side import SideBySide
from crl.protocols import Actions, FreeText, Start, Step, Tool, ToolCalls
from crl.rollout.kept_steps import KeptSteps
from crl.run.journal import JsonLines
from tests.processes import wait_until
from tests.unit.rollout.fakes import Corridor

NAMES = ["one", "three"]
FORM = FreeText("one call:\n<function=run>\n</function>")
TOOLS = ToolCalls((Tool("run", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),))


class Counted(Corridor):
    """A corridor that remembers what it was asked."""

    def __init__(self, actions: Actions = Corridor.actions, breaks: tuple[int, int] | None = None) -> None:
        super().__init__(breaks=breaks, whole=True)
        self.asked: list[tuple[int, str | None]] = []
        self.says = actions

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return [Start(each.goal, each.observation, self.says) for each in super().reset_many(seeds)]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        self.asked += actions.items()
        return super().step_many(actions)


def wave(folder: Path, corridor: Counted) -> KeptSteps:
    kept = KeptSteps(corridor, JsonLines(folder / "steps.jsonl"), NAMES)
    kept.reset_many([1, 3])
    return kept


def test_what_was_answered_is_answered_again_and_the_rest_is_asked_for(tmp_path: Path) -> None:
    first = wave(tmp_path, Counted())
    answered = [first.step_many({0: "right", 1: "right"}), first.step_many({1: "right"})]
    assert answered[0][0].done and not answered[1][1].done
    corridor = Counted()
    second = wave(tmp_path, corridor)
    assert [second.step_many({0: "right", 1: "right"}), second.step_many({1: "right"})] == answered
    assert corridor.asked == [(1, "right"), (1, "right")]
    assert second.step_many({1: "right"})[1].success
    corridor = Counted()
    third = wave(tmp_path, corridor)
    assert third.step_many({0: "right", 1: "right"}) == answered[0] and not corridor.asked


def test_an_episode_that_ended_at_the_actor_s_context_limit_is_not_asked_for_again(tmp_path: Path) -> None:
    first = wave(tmp_path, Counted())
    answered = [first.step_many({0: "right", 1: "right"}), first.step_many({1: "wait"})]
    assert answered[0][0].done and not answered[1][1].done
    first.ended([0, 1])
    corridor = Counted()
    second = wave(tmp_path, corridor)
    assert [second.step_many({0: "right", 1: "right"}), second.step_many({1: "wait"})] == answered
    second.ended([0, 1])
    assert not corridor.asked and len((tmp_path / "steps.jsonl").read_text().splitlines()) == 2


def test_an_episode_that_goes_another_way_is_played_for_real(tmp_path: Path) -> None:
    first = wave(tmp_path, Counted())
    for _ in range(3):
        first.step_many({1: "right"})
    corridor = Counted()
    second = wave(tmp_path, corridor)
    assert not second.step_many({1: "right"})[1].done and not corridor.asked
    assert second.step_many({1: None})[1].legal is False
    assert corridor.asked == [(1, "right"), (1, None)]
    assert not second.step_many({1: "right"})[1].done
    assert second.step_many({1: "right"})[1].success


def test_a_broken_episode_is_kept_as_it_ended(tmp_path: Path) -> None:
    first = wave(tmp_path, Counted(breaks=(0, 0)))
    broken = first.step_many({0: "right", 1: "right"})
    assert broken[0].error == "environment_KeyError" and broken[1].error is None
    corridor = Counted()
    assert wave(tmp_path, corridor).step_many({0: "right"})[0] == broken[0] and not corridor.asked


def test_a_torn_line_and_one_of_another_form_are_played_for_real(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text(
        '{"episode": "three", "steps": [["right", {"seen": 1}]]}\n{"episode": "one", '
    )
    corridor = Counted()
    wave(tmp_path, corridor).step_many({0: "right", 1: "right"})
    assert corridor.asked == [(0, "right"), (1, "right")]
    corridor = Counted()
    assert wave(tmp_path, corridor).step_many({0: "right"})[0].success and not corridor.asked


@pytest.mark.parametrize("actions", [FORM, TOOLS, ("up", "down"), ()], ids=["text", "tools", "names", "none"])
def test_a_step_is_the_same_whatever_may_be_done_next(tmp_path: Path, actions: Actions) -> None:
    class Says(Counted):
        def step_many(self, done: Mapping[int, str | None]) -> dict[int, Step]:
            said = Step("sä\u2028w\n", actions, True, "", True, False, 1 / 3)
            return dict.fromkeys(done, said)

    said = wave(tmp_path, Says()).step_many({0: '{"name": "submit"}'})
    again = wave(tmp_path, Counted()).step_many({0: '{"name": "submit"}'})
    assert again == said and type(again[0].actions) is type(actions)


def test_an_episode_that_is_over_is_kept_while_others_still_step(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "steps.jsonl")

    class Waits(Corridor):
        def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
            if self.left[0] == 3:
                wait_until(lambda: [line["episode"] for line in file.read()] == ["one"], "the fast slot is kept")
            return super().step_many(actions)

    kept = KeptSteps(SideBySide(Waits, workers=2), file, NAMES)
    kept.reset_many([1, 3])
    assert [step.done for step in kept.step_many({1: "right", 0: "right"}).values()] == [False, True]
