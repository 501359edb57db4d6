"""Environments that parse what the actor writes, take tool calls, and pay what they like."""

from __future__ import annotations

import json
import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import SamplingConfig
from crl.envs.game import Game, Move
from crl.envs.slots import TurnLimit
from crl.protocols import FreeText, Start, Step, StopReason, Tool, ToolCalls
from crl.rollout.actions import parse_action, parse_question
from crl.rollout.play import EpisodeSlot
from crl.text.calls import actions_text
from tests.unit.rollout.fakes import ScriptedPolicy, task
from tests.unit.rollout.test_play import play

FORM = FreeText("write search[words]")
TOOLS = ToolCalls((Tool("search", "Find things.", {"type": "object", "properties": {"words": {"type": "string"}}}),))


class Shop:
    """Answers from a list of steps, one per turn; keeps what it was given."""

    def __init__(self, *steps: Step, actions=FORM) -> None:
        self.steps, self.actions, self.given = steps, actions, []

    def reset_many(self, seeds):
        return [Start("Go {right}.", f"{seed} to go {{x}}", self.actions) for seed in seeds]

    def step_many(self, actions):
        self.given.append(actions[0])
        return {0: self.steps[len(self.given) - 1]}

    def close(self):
        pass


def seen(text, *, legal=True, feedback="", reward=0.0, actions=FORM):
    return Step(text, actions, legal, feedback, False, False, reward)


def last(*, success=False, reward=0.0, feedback="", stop_reason=None, legal=True):
    return Step("the end", (), legal, feedback, True, success, reward, stop_reason)


def played(shop, *said, context=100_000, **rollout):
    policy = ScriptedPolicy(lambda row, turn: (said[turn], True), context)
    return play(policy, shop, [EpisodeSlot(task(0, 3))], rollout=rollout)[0], policy


def shown(policy):
    """The text of everything that the actor read and wrote."""
    return "".join(chr(token) for token in policy.session.ids[0] if token >= 32 or token == ord("\n"))


def test_the_environment_gets_the_text_and_tells_what_it_likes():
    shop = Shop(seen("results", feedback="3 found."), seen("same", legal=False, feedback="What?"), last(reward=0.37))
    one, policy = played(shop, " search[red {shoe}]\n", "hm", "buy now")
    assert shop.given == ["search[red {shoe}]", "hm", "buy now"]
    assert (one.episode.reward, one.episode.success, one.episode.stop_reason) == (0.37, False, "failure")
    assert [turn.valid for turn in one.turns] == [True, False, True] and one.episode.invalid_actions == 1
    assert [turn.feedback for turn in one.turns] == ["3 found.", "What?", None]
    assert "Actions: write search[words]." in shown(policy)
    assert "3 found.\nresults" in shown(policy) and "What?\nsame" in shown(policy)
    assert one.feedback == "The episode ended: failure. Reward: 0.37."


def test_with_tags_the_last_one_is_what_was_meant():
    shop = Shop(last(reward=-2.5, success=True, feedback="You paid too much.", stop_reason=StopReason.turn_limit))
    one, _ = played(shop, "I <action>first</action> think\n<action> search[a] b </action>.", action_format="tag")
    assert shop.given == ["search[a] b"]
    assert one.episode.success and one.episode.stop_reason == "success", "success is the environment's word"
    assert one.episode.reward == -2.5 and one.feedback == "You paid too much."
    shop = Shop(seen("on", legal=False, feedback="No answer."), last())
    played(shop, "no tag", "<action></action>", action_format="tag")
    assert shop.given == [None, None]


def test_words_about_one_step_do_not_hide_how_the_episode_ended():
    one, _ = played(Shop(last(legal=False, feedback="No such door.", reward=0.25)), "x")
    assert one.feedback == "No such door. The episode ended: failure. Reward: 0.25."
    cut = Shop(seen("b" * 500, feedback="3 found.", reward=-0.75), last())
    one, _ = played(cut, "x", "y", context=400)
    assert one.feedback == "3 found. The episode ended: context limit. Reward: -0.75."


class Hall(Game):
    """Every action takes a key; the door is never found."""

    kind: Literal["hall"] = "hall"

    def begin(self, random):
        return None

    def goal(self, state):
        return "Go {right}."

    def look(self, state):
        return "3 to go {x}"

    def actions(self, state):
        return FORM

    def act(self, state, action):
        return Move("You pick up the key.")


KEY = "You pick up the key. The episode ended: turn limit. Reward: 0."


def test_words_about_the_last_move_do_not_hide_that_a_turn_limit_ended_the_episode():
    """The limit is counted outside of the environment, which knows nothing of it when it speaks of the move."""
    for shop in (TurnLimit(Shop(seen("on", feedback="You pick up the key.")), 1), Hall(max_turns=1).make()):
        one, _ = played(shop, "x")
        assert (one.episode.stop_reason, one.turns[-1].valid, one.feedback) == ("turn_limit", True, KEY)


def test_what_the_environment_says_itself_at_its_turn_limit_is_kept():
    own = last(feedback="No answer was given.", reward=0.5, stop_reason=StopReason.turn_limit)
    one, _ = played(Shop(own), "x")
    assert one.feedback == "No answer was given. The episode ended: turn limit. Reward: 0.5."


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_an_error_of_its_slot(reward):
    one, _ = played(Shop(last(success=True, reward=reward)), "x")
    assert (one.episode.stop_reason, one.episode.error) == ("error", "environment_reward")
    assert one.episode.reward == 0.0 and not one.episode.success


def test_an_episode_that_outgrows_the_context_is_worth_what_its_last_step_says():
    shop = Shop(seen("a", reward=-0.5), seen("b" * 500, reward=-0.75), last())
    one, policy = played(shop, "x", "y", context=400)
    assert one.episode.stop_reason == "context_limit" and one.episode.reward == -0.75
    assert len(policy.session.ids[0]) <= 400 and len(shop.given) == 2


def test_tools_are_described_where_the_chat_does_not_show_them():
    shop = Shop(seen("found", actions=TOOLS), last(reward=1.0, success=True), actions=TOOLS)
    said = '<tool_call>\n{"name": "search", "arguments": {"words": "é"}}\n</tool_call>', "no call"
    one, policy = played(shop, *said)
    assert shop.given == ['{"arguments": {"words": "é"}, "name": "search"}', None]
    assert "- search: Find things. Arguments: {" in shown(policy)
    assert one.turns[0].action == shop.given[0]


def test_a_chat_that_takes_tools_is_given_them():
    shop = Shop(last(success=True, reward=1.0), actions=TOOLS)
    policy = ScriptedPolicy(lambda row, turn: ("{}", True))
    policy.chat.takes_tools = True
    plain, offered = policy.chat.opening, []
    policy.chat.opening = lambda messages, tools=(): offered.append(tools) or plain(messages)
    play(policy, shop, [EpisodeSlot(task(0, 3))])
    assert offered == [TOOLS.tools]
    assert "Actions: call one of the tools search." in shown(policy)


CALL = '{"arguments": {"n": 1}, "name": "f"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"n": 1}}',
        'So be it.\n```json\n{"name": "f", "parameters": {"n": 1}}\n```',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}]',
        '{"name": "f", "arguments": "{\\"n\\": 1}"}',
        '<tool_call>{"name": "g", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {"n": 1}}',
        '{ not this {"name": "f", "arguments": {"n": 1}} nor {"this": 2}',
        '<think>{"name": "g"}</think>{"name": "f", "arguments": {"n": 1}}',
        '{"name": "f", "arguments": {"n": 1}} and the result will be {"files": [{"name": "a.py"}]}',
    ],
)
def test_a_tool_call_is_found_however_models_write_it(text):
    assert parse_action(text, TOOLS, "word") == parse_action(text, TOOLS, "tag") == CALL


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_calls": [{"name": "g", "arguments": {}}, {"name": "search", "arguments": {"words": "a"}}]}',
        '{"type": "function", "function": {"name": "search", "arguments": {"words": "a"}}}',
        '{"name": "search", "arguments": {"words": "a"}} and then {"files": [{"name": "a.py"}]}',
    ],
)
def test_inside_an_object_that_is_no_call_a_tool_s_name_makes_one(text):
    assert parse_action(text, TOOLS, "word") == '{"arguments": {"words": "a"}, "name": "search"}'


@pytest.mark.parametrize("arguments", ["null", '""', '" "', "{}"])
def test_no_arguments_are_none_however_they_are_written(arguments):
    assert parse_action(f'{{"name": "f", "arguments": {arguments}}}', TOOLS, "word") == '{"arguments": {}, "name": "f"}'


def test_a_line_break_inside_an_argument_is_part_of_it():
    found = parse_action('{"name": "f", "arguments": {"code": "ls\n\tcd"}}', TOOLS, "word")
    assert json.loads(found)["arguments"] == {"code": "ls\n\tcd"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f(1)",
        '{"arguments": {}}',
        '{"name": 3}',
        '{"thought": {"name": "plan"}}',
        '{"name": "f", "arguments": [{"name": "x"}]}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"n": NaN}}',
        '{"name": "f", "arguments": {"n": 1e999}}',
        "{" * 5000,
        '{"a":' * 5000,
        '<think>{"name": "f"}',
    ],
    ids=range(13),
)
def test_what_is_no_tool_call_is_none(text):
    assert parse_action(text, TOOLS, "word") is None


PARTS = ['{"name":', '"f"', "}", "{", "<action>", "</action>", "\ud800", ","]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(PARTS)).map("".join))
def test_any_text_gives_something_that_rows_can_hold(text):
    for actions in (FORM, TOOLS):
        for form in ("word", "tag"):
            found = parse_action(text, actions, form)
            assert found is None or (found and found.encode())
            if found is not None and actions is TOOLS:
                assert isinstance(json.loads(found)["name"], str)
            parse_question(text, actions, form)


def test_a_question_is_told_from_free_text():
    assert parse_question("north\nASK: where?", FORM, "word") == "where?"
    assert parse_question("search[x]", FORM, "word") is None


def test_listed_actions_stand_in_the_prompt_as_before():
    assert actions_text(("a", "b")) == "a, b" and actions_text(FORM) == FORM.form


def test_sampling_is_not_restricted_where_nothing_is_listed():
    from crl.errors import BadInput
    from crl.rollout.actions import AnswerTrees

    with pytest.raises(BadInput, match="no legal action"):
        AnswerTrees(ScriptedPolicy(lambda row, turn: ("", True)).chat, SamplingConfig().max_new_tokens).of(FORM)
