"""What environments and models say is made valid Unicode where it enters; valid text passes as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from crl.envs import make_environment
from crl.protocols import Environment, FreeText, Start, Step, StopReason, Tool, ToolCalls
from crl.records import Episode, Evaluation, Generation, Metric, Task, Turn
from crl.rollout.actions import parse_action
from crl.rollout.environments import Readable
from crl.rounds.alarms import unreadable_metrics
from crl.rounds.context import MemoryWriter, StageContext
from crl.rounds.recipe import recipe_of
from crl.rounds.tasks import task_of
from crl.text.outputs import Prompt, sample_outputs
from crl.text.unicode import valid_text
from tests.unit.recipes.played import Played, Policy, Services, experiment, write

VALID = ["", "plain", "nät \U0001f600 \u202b", "a\0b\x1b[31m\r\n\t\x7f\x85", "\ufffd", "\ud7ff\ue000", "<|im_start|>"]


@pytest.mark.parametrize("text", VALID)
def test_valid_text_passes_byte_for_byte(text: str) -> None:
    assert valid_text(text) == text


def test_each_lone_surrogate_is_replaced() -> None:
    assert valid_text("a\ud800b\udfff\udbff") == "a\ufffdb\ufffd\ufffd"


class Broken:
    """One cell to go: any text is a surrogate's neighbor, and only the action's own name wins."""

    OWN = ("wait", "go \udc80")

    def reset_many(self, seeds: Any) -> list[Start]:
        self.turns = dict.fromkeys(range(len(seeds)), 0)
        return [Start("reach \ud800 it", f"seed {seed} \udfff\0", self.OWN) for seed in seeds]

    def step_many(self, actions: Any) -> dict[int, Step]:
        steps = {}
        for slot, action in actions.items():
            self.turns[slot] += 1
            assert action is None or action in self.OWN, "under the environment's own names"
            won, over = action == self.OWN[1], self.turns[slot] == 2
            steps[slot] = Step(f"seen \ud900 {slot}\x1b", self.OWN, action is not None, "said \udabc", won or over, won,
                               float(won), None if won or not over else StopReason.turn_limit)  # fmt: skip
        return steps

    def oracle(self, slot: int) -> str:
        return self.OWN[1]

    def close(self) -> None:
        pass


class Spoiled(Services):
    """Services whose environment, actor and extractor all say lone surrogates."""

    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self._policies = {
            "actor": Policy(lambda read, random: ("go \ufffd" if random.random() < 0.5 else "wait") + " \ud812"),
            "extractor": Policy(lambda read, random: write(read, random) + "\n\udead"),
        }

    def environment(self, family: str, round_number: int) -> Any:
        return Broken()


@pytest.mark.slow
def test_a_round_of_lone_surrogates_is_recorded(tmp_path: Any) -> None:
    made = experiment()
    played = Played(tmp_path, made, 2, Spoiled(made))
    tasks = played.rows(Task, "plan", 1)
    assert {task.goal for task in tasks} == {"reach \ufffd it"}
    assert all(task.first_observation.endswith("\ufffd\0") for task in tasks), "control characters are kept"
    episodes, turns = played.rows(Episode, "collect", 1), played.rows(Turn, "collect", 1)
    assert {turn.action for turn in turns} == {"wait", "go \ufffd"} and any(each.success for each in episodes)
    assert {turn.feedback for turn in turns} == {"said \ufffd"} and all(each.error is None for each in episodes)
    assert all(turn.output.endswith(" \ufffd") for turn in turns)
    assert all(
        "\ufffd" in (each.last_observation or "") and "\x1b" in (each.last_observation or "") for each in episodes
    )
    assert all("\ufffd" in each.output for each in played.rows(Generation, "distill", 1))
    evaluated = {row.condition: row for row in played.rows(Evaluation, "evaluate", 0)}
    assert "random" in evaluated
    metrics = {row.name: row.value for row in played.rows(Metric, "health", 1)}
    said = [text for turn in turns for text in (turn.observation, turn.feedback)]
    said += [text for each in episodes for text in (each.goal, each.last_observation)]
    assert metrics["unreadable_characters"] == sum(text.count("\ufffd") for text in said if text) > 0


def test_a_round_of_valid_text_has_no_such_metric(tmp_path: Any) -> None:
    played = Played(tmp_path, experiment(), 1)
    assert "unreadable_characters" not in {row.name for row in played.rows(Metric, "health", 1)}


def test_an_environment_of_valid_text_is_seen_as_it_is() -> None:
    family = experiment().method.families[0]
    plain, readable = make_environment(family), Readable(make_environment(family))
    assert plain.reset_many([1, 2]) == readable.reset_many([1, 2])
    assert plain.step_many({0: "right", 1: None}) == readable.step_many({0: "right", 1: None})


def test_free_text_and_tools_are_made_valid() -> None:
    class Other(Broken):
        def reset_many(self, seeds: Any) -> list[Start]:
            tool = Tool("f\ud800", "d\ud800", {"a\ud800": ["b\ud800", 1]})
            return [Start("", "", FreeText("form \ud800")), Start("", "", ToolCalls((tool,)))]

    first, second = Readable(Other()).reset_many([0, 1])
    assert first.actions == FreeText("form \ufffd")
    assert second.actions == ToolCalls((Tool("f\ufffd", "d\ufffd", {"a\ufffd": ["b\ufffd", 1]}),))
    assert parse_action('{"name": "f", "arguments": {"x": "\\ud800"}}', second.actions, "tag") == (
        '{"arguments": {"x": "\ufffd"}, "name": "f"}'
    )


def test_what_is_no_text_is_left_to_who_reads_it() -> None:
    class Silent(Broken):
        def step_many(self, actions: Any) -> dict[int, Step]:
            steps = super().step_many(actions)
            return {slot: dataclasses.replace(step, feedback=None) for slot, step in steps.items()}  # type: ignore[arg-type]

    wave = Readable(Silent())
    wave.reset_many([1])
    assert cast(Any, wave.step_many({0: "wait"})[0].feedback) is None


def test_rows_of_any_recipe_are_made_valid() -> None:
    """A recipe of another package may ask its environment itself."""
    writer = MemoryWriter()
    made = experiment()
    recipe = recipe_of(made.method)
    context = StageContext(
        method=made.method, recipe=recipe, stage=recipe.stages[0], round_number=1, reader=cast(Any, None),
        writer=writer, services=cast(Any, None), progress=lambda metrics: None,
    )  # fmt: skip
    start = Broken().reset_many([7])[0]
    context.write(Task, [task_of(context, start, episode_id="a", family="f", group=0, environment_seed=7)])
    [task] = writer.rows(Task)
    assert (task.goal, task.first_observation) == ("reach \ufffd it", "seed 7 \ufffd\0")


def test_characters_of_tool_calls_are_counted_and_those_of_a_byte_level_model_are_not() -> None:
    turns = [('{"x": "\\ud800"}', '{"x": "\ufffd"}'), ("go \ufffd", "go \ufffd"), ("\ufffd", None)]
    assert unreadable_metrics([], turns) == {"unreadable_characters": 1.0}
    assert unreadable_metrics([None, "a"], turns[1:]) == {}


def test_outputs_are_made_valid() -> None:
    method, policy = experiment().method, Policy(lambda read, random: "a \ud800\x7f b")
    (output,) = sample_outputs(policy, [Prompt("x", [], [1, 2], 0)], method.role("extractor").sampling, batch=1)
    assert output.text == "a \ufffd\x7f b"


def test_an_image_ends_its_episode_with_a_reason_in_words() -> None:
    shown: list[Any] = ["text", np.zeros((2, 2))]

    class Pictures:
        def reset_many(self, seeds: Sequence[int]) -> list[Start]:
            return [Start("goal", shown[seed], ("go",)) for seed in seeds]

        def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
            return {slot: Step(shown[1], ("go",), True, "", False, False, 0.0) for slot in actions}

    readable = Readable(cast(Environment, Pictures()))
    starts = readable.reset_many([0, 1])
    assert starts[0].error is None and starts[1].error == "environment_no_text"
    assert starts[1].details == "numpy.ndarray is shown; a model reads text only: describe it in words"
    assert readable.step_many({0: "go"})[0].error == "environment_no_text"
