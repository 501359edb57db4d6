"""Histories without thoughts: ids are cut out and none is made, and what is left is the template's own rendering."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crl.policies.chat import OWN, ChatFormat
from crl.policies.endpoint import EndpointChat
from crl.policies.tool_turns import THOUGHTS, schema_of
from crl.protocols import Start, Tool, ToolCalls
from crl.rollout.history import following, remember
from crl.rollout.live import EpisodeSlot, LiveEpisode
from tests.unit.policies.families import encoded, ids_of, rendered, template_of, tokenizer_of
from tests.unit.rollout import fakes

TURNS = ("You see: #.@", "You see:\n\n..@", "You see: @")
STRIP = (
    "qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "deepseek_r1_distill", "glm4moe", "nemotron_3_nano",
    "lfm2_2_5", "exaone_4", "qwq",
)  # fmt: skip
"""Families whose own templates leave out thoughts."""
KEEP = (
    "qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "glm4moe", "nemotron_3_nano", "lfm2_2_5", "gptoss",
)  # fmt: skip
"""Families whose own templates keep thoughts between tool calls, until a user speaks."""
GO = Tool("go", "Go.", {"type": "object", "properties": {"way": {"type": "string"}}})


def cut(chat: ChatFormat, answers: list[list[int]]) -> list[int]:
    """The prompt behind these answers."""
    asked, ids = chat.opening([{"role": "user", "content": TURNS[0]}]), []
    for answer, turn in zip(answers, TURNS[1:], strict=True):
        before, after = chat.without_thoughts(asked, answer)
        ids += before + after
        asked = chat.reply(turn, ended=True)
    return ids + asked


def messages(answers: list[str]) -> list[dict[str, str]]:
    found = [{"role": "user", "content": TURNS[0]}]
    for answer, turn in zip(answers, TURNS[1:], strict=True):
        found += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
    return found


@pytest.mark.parametrize("name", STRIP)
def test_a_later_prompt_is_the_templates_own_rendering(name: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name, strips=True)
    assert chat.rewrites and chat.written == template_of(name) if name not in ("exaone_4", "qwq") else chat.rewrites
    between = " (but between tool calls)" if name in KEEP else ""
    assert chat.template == f"{OWN}; earlier turns stay without their thoughts{between}"
    prompt = tokenizer.decode(chat.opening([{"role": "user", "content": TURNS[0]}])).rstrip()
    thought = "" if prompt.endswith("</think>") else "<think>\nIs it north?\n</think>\n\n"
    answers = [chat.answer(f"{thought}{each}") for each in ("north", "south, behind\n\nthe door")]
    begun = "<think>\n" if chat.opens_thought else ""
    expected = ids_of(tokenizer, messages([begun + chat.decode(each) for each in answers]))
    assert cut(chat, answers) == expected
    assert "Is it" not in tokenizer.decode(expected)


@pytest.mark.parametrize("name", KEEP)
def test_thoughts_between_tool_calls_stay_as_the_template_has_them(name: str) -> None:
    tokenizer, tools = tokenizer_of(name), [schema_of(GO)]
    chat = ChatFormat(tokenizer, name, strips=True)
    assert chat.keeps_thoughts("go") and chat.template.endswith("without their thoughts (but between tool calls)")
    said: list[dict[str, Any]] = [{"role": "user", "content": TURNS[0]}]
    prompt = chat.opening([{"role": "user", "content": TURNS[0]}], [GO])
    row = LiveEpisode(
        slot=EpisodeSlot(fakes.task(0, 50)), start=Start("Go.", "", ToolCalls((GO,))), actions=ToolCalls((GO,)),
        observation="", seed=1, sequences=[], history="strip_thoughts", asked=prompt,
    )  # fmt: skip
    thinks = "" if tokenizer.decode(prompt).rstrip().endswith("</think>") else "Is it {}?"
    for turn, way in enumerate(("north", "south", None, "east", "west")):
        # What was sampled stays: gpt-oss's template writes another end behind answers that are no longer the last.
        own = rendered(tokenizer, said, tools=tools)
        assert prompt == encoded(tokenizer, own.replace("All done.<|end|>", "All done.<|return|>")), turn
        thought = thinks.format(way)
        call = {"name": "go", "arguments": {"way": way}}
        text = json.dumps(call) if way else "All done."
        wrote = chat.answer(f"<think>\n{thought}\n</think>\n\n{text}" if thought else text, call=way is not None)
        answer: dict[str, Any] = {"role": "assistant", "content": "" if way else text}
        answer |= dict.fromkeys(THOUGHTS, thought) if thought else {}
        reply = "It is done."
        if way:
            answer["tool_calls"] = [{"id": "call00000", "type": "function", "function": call}]
            said += [answer, {"role": "tool", "name": "go", "tool_call_id": "call00000", "content": reply}]
        else:
            said += [answer, {"role": "user", "content": reply}]
        remember(row, chat, wrote, text, "go" if way else None)
        row.asked = chat.reply(reply, ended=True, by=wrote[-1], call="go" if way else None)
        found = following(row, row.asked, 100_000)
        assert found is not None
        _, prompt = found
    shown = tokenizer.decode(prompt)
    assert [way for way in ("north", "south", "None", "east", "west") if f"Is it {way}?" in shown] == (
        ["east", "west"] if thinks else []
    )


@pytest.mark.parametrize("name", ["deepseek_r1_distill", "exaone_4", "qwq", "qwen2_5", "gemma4_v2"])
def test_other_templates_keep_no_thoughts_between_tool_calls(name: str) -> None:
    chat = ChatFormat(tokenizer_of(name), name, strips=True)
    assert not chat.keeps_thoughts("go") and "between" not in chat.template


def test_messages_of_an_analysis_are_left_out() -> None:
    tokenizer = tokenizer_of("gptoss")
    chat = ChatFormat(tokenizer, "m", strips=True)
    analysis = "<|channel|>analysis<|message|>Is it north?<|end|><|start|>assistant"
    call = " to=functions.go<|channel|>commentary json<|message|>{}<|call|>"
    final = "<|channel|>final<|message|>north<|return|>"
    asked = chat.opening([{"role": "user", "content": TURNS[0]}])
    for written, left in (
        (analysis + final, final), (final, final), (analysis + call, call), (analysis * 2 + final, final),
        ("<|channel|>analysis<|message|>Is it<|return|>", "<|return|>"),
        ("<|channel|>analysis<|message|>Is it", ""),
    ):  # fmt: skip
        assert chat.without_thoughts(asked, encoded(tokenizer, written)) == (asked, encoded(tokenizer, left))


@pytest.mark.parametrize(
    ("name", "written", "left"),
    [
        ("qwen3", "<think>a</think>b<think>c</think>\n\n\nnorth", "north"),
        ("qwen3", "<think>\nIs it", ""),  # it never ended
        ("qwen3", "</think>", ""),
        ("qwen3", "north", "north"),
        ("qwen3", " \n north", " \n north"),  # nothing is left out where nobody thought
        ("deepseek_r1_distill", "Is it?\n</think>north", "north"),
        ("nemotron_3_nano", "Is it?</think>\nnorth", "</think>\nnorth"),  # its template shows an empty thought
        ("nemotron_3_nano", "Is it", ""),
        ("glm4moe", "<think>Is it?</think>north", "north"),
        ("qwen3", "", ""),
        ("qwen3", "<think>a</think>\n\n<tool_call>\n{}\n</tool_call>", "<tool_call>\n{}\n</tool_call>"),
    ],
)
def test_what_is_written_otherwise_is_cut_at_ends_of_thoughts(name: str, written: str, left: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name, strips=True)
    asked = chat.opening([{"role": "user", "content": TURNS[0]}])
    for end in ([chat.end_ids[0]], []):
        before, after = chat.without_thoughts(asked, [*encoded(tokenizer, written), *end])
        assert after == [*encoded(tokenizer, left), *end]
        assert before == asked[: len(before)]
        shown = tokenizer.decode([*before, *after])
        assert shown.count("<think>") == shown.count("</think>")


def test_an_endpoint_loses_its_thoughts_too() -> None:
    chat = EndpointChat()
    asked = chat.opening([{"role": "user", "content": TURNS[0]}])
    assert chat.without_thoughts(asked, chat.answer("<think>a</think>\n\nnorth")) == (asked, chat.answer("north"))
    assert chat.without_thoughts(asked, [*map(ord, "<think>a")]) == (asked, [])
