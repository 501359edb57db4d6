"""Action parsing: legal actions only, and never a crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.protocols import FreeText, Tool, ToolCalls
from crl.rollout.actions import parse_action, parse_question
from crl.text.calls import actions_text

MOVES = ("north", "northeast", "east", "pick up", "pick", "wait")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("north", "north"),
        ("Northeast.", "northeast"),
        ("I go NORTHEAST, not north", "northeast"),
        ("not northern, east", "east"),
        ("north-east", None),
        ("pick  up", "pick up"),
        ("pick\nup", "pick up"),
        ("pick it up", "pick"),
        ("await", None),
        ("wait_", None),
        ("**wait**", "wait"),
        ("", None),
    ],
)
def test_word_takes_the_first_whole_word(text, expected):
    assert parse_action(text, MOVES, "word") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<action>north</action>", "north"),
        ("<action>north</action> no: <ACTION> East </ACTION>", "east"),
        ("<action>north</action><action>fly</action>", None),
        ("<action>go north</action>", None),
        ("<action>\npick   UP\n</action>", "pick up"),
        ("<action><action>north</action>", "north"),
        ("north", None),
        ("<action>north", None),
    ],
)
def test_tag_takes_the_last(text, expected):
    assert parse_action(text, MOVES, "tag") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>if I write {north} I die", None),
        ("<think>if I write {north} I die</think>{east}", "east"),
        ("<think>{north}</think>", None),
        ("<think>{north}</think>\n\nSo: {east}", "east"),
        ("{north}<think>or {east}?", None),  # it is thinking again: nothing is decided
        ("{north}<think>or {east}?</think>", None),
        ("<think>{north}</think>{east}<think>{wait}", None),
        ("<think>{north}</think>{east}<think>{north}</think> {wait}", "wait"),
        ("<think>a <think>{north}</think> {east}", "east"),  # thoughts do not nest: the last tag decides
        ("<THINK>{north}</Think>{east}", "east"),
        ("<Think>{north}", None),
        ("{north}</think>{east}", "east"),  # the thought began in the prompt
        ("< think>{north}", "north"),  # no tag
    ],
)
@pytest.mark.parametrize("form", ["tag", "word"])
def test_only_what_follows_the_end_of_a_thought_counts(text, expected, form):
    written = {move: move if form == "word" else f"<action>{move}</action>" for move in MOVES}
    assert parse_action(text.format(**written), MOVES, form) == expected
    ask = "<ask>{}</ask>" if form == "tag" else "\nASK: {}\n"
    asked = {move: ask.format(move) for move in MOVES}
    assert parse_question(text.format(**asked), MOVES, form) == expected


NASTY = st.text(max_size=60) | st.lists(
    st.sampled_from(
        [
            "<action>",
            "</action>",
            "<think>",
            "</think>",
            "north",
            "ı",
            "ſ",
            "K",
            "EAST",
            " ",
            "\n",
            "-",
            "{",
            "pick",
            "up",
            "\x00",
        ]
    ),
    max_size=30,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(
    text=NASTY,
    actions=st.lists(st.sampled_from(MOVES) | st.text(max_size=6), max_size=5),
    form=st.sampled_from(["tag", "word"]),
)
def test_only_legal_actions_come_back(text, actions, form):
    found = parse_action(text, actions, form)
    assert found is None or found in actions


@settings(deadline=None)
@given(action=st.sampled_from(MOVES), before=st.text("xyz .,", max_size=10), after=st.text(".,! ", max_size=10))
def test_a_named_action_is_found(action, before, after):
    assert parse_action(f"{before} {action.upper()}{after}", MOVES, "word") == action
    assert parse_action(f"{before}<action> {action} </action>{after}", MOVES, "tag") == action


def test_a_long_text_is_parsed_in_time():
    assert parse_action("<action>" * 20_000 + "north</action>", MOVES, "tag") == "north"
    assert parse_action("northish " * 50_000 + "north", MOVES, "word") == "north"


CALL = '{"name": "look", "arguments": {"at": %d}}'


def test_a_turn_may_hold_several_calls_where_the_environment_takes_them():
    tools = (Tool("look", "Look.", {}), Tool("go", "Go.", {}))
    text = f"<tool_call>{CALL % 1}</tool_call> then <tool_call>{CALL % 2}</tool_call>"
    first, second = ({"arguments": {"at": at}, "name": "look"} for at in (1, 2))
    assert json.loads(parse_action(text, ToolCalls(tools, several=True), "word")) == [first, second]
    assert json.loads(parse_action(text, ToolCalls(tools), "word")) == second, "else the last one counts"
    assert json.loads(parse_action(CALL % 1, ToolCalls(tools, several=True), "word")) == [first]
    assert parse_action("none", ToolCalls(tools, several=True), "word") is None
    assert "once per call" in actions_text(ToolCalls(tools, several=True))
    assert "one or more of the tools look, go" in actions_text(ToolCalls(tools, several=True), takes_tools=True)


def test_an_environment_may_be_given_all_that_was_written():
    whole = FreeText("anything", whole=True)
    for text in ("<think>hm</think> yes ", "", "<action>left</action>", "<think>cut off"):
        assert parse_action(text, whole, "tag", thinking=True) == text
