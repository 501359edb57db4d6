"""Chats in the formats of many families: openings have the ids of the template's own rendering, with tools and without,
with a system text and without, thinking or not; replies, and results of calls, are what the template puts there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from jinja2.meta import find_undeclared_variables
from transformers.utils.chat_template_utils import _compile_jinja_template

from crl.errors import BadInput
from crl.policies.chat import ChatFormat
from crl.protocols import Tool
from tests.unit.policies.families import FAMILIES, OTHERS, TRL, encoded, ids_of, rendered, tokenizer_of

SEARCH = Tool(
    "search",
    "Find things.",
    {"type": "object", "properties": {"words": {"type": "string"}, "k": {"type": "integer"}}, "required": ["words"]},
)
TOOLS = [{"type": "function", "function": {"name": SEARCH.name, "description": SEARCH.description,
          "parameters": dict(SEARCH.parameters)}}]  # fmt: skip
CALL = {"name": "search", "arguments": {"words": 'the "stairs"', "k": 3}}
SYSTEM, USER = {"role": "system", "content": "Find the way."}, {"role": "user", "content": "You see:\n\n  #.@ <b>x</b>"}
SHOTS = [{"role": "user", "content": "An example."}, {"role": "assistant", "content": "north"}]
SWITCHES = {"enable_thinking", "thinking", "reasoning_effort", "reasoning_strength", "reasoning", "thinking_budget"}
TAKE_TOOLS = {
    "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "glm4moe", "gptoss", "lfm2", "lfm2_2_5",
    "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2", "llama3_1", "llama3_2", "nemotron_3_5_lightning", "nemotron_3_nano",
    "nemotron_3_super",
    "nemotron_3_ultra", "qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8",
    "qwen3_instruct_2507", "qwen3_vl",
    "mistral_3", "magistral", "seed_oss", "kimi", "granite", "exaone_4", "command_a_reasoning", "llama_4", "smollm3",
    "qwq",
}  # fmt: skip
"""Templates that show tools, and whose calls are read. The rest describe tools in the prompt."""


QUICK = {"gptoss", "qwen3", "magistral"}


def families(names: Iterable[str | tuple[str, str]]) -> list[Any]:
    """All of them, perhaps with something beside, most among the slow tests."""
    rows = [(name,) if isinstance(name, str) else name for name in names]
    return [pytest.param(*row, marks=() if row[0] in QUICK else pytest.mark.slow) for row in rows]


def settings_of(name: str) -> Iterator[dict[str, Any]]:
    """Nothing, and each switch of thinking that the template reads."""
    yield {}
    template = tokenizer_of(name).chat_template
    for switch in SWITCHES & find_undeclared_variables(_compile_jinja_template(template).environment.parse(template)):
        values = {"reasoning_effort": ("low",), "reasoning_strength": ("low",), "thinking_budget": (0,)}
        yield from ({switch: value} for value in values.get(switch, (True, False)))


def as_template_takes(chat: ChatFormat, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the format hands messages to its template: without a system role, or in parts."""
    return [chat._as_written(message) for message in chat._as_shown(messages)]


@pytest.mark.slow
def test_none_of_them_is_refused() -> None:
    assert len(TRL) >= 41 and len(OTHERS) >= 10
    takes = {name for name in FAMILIES if ChatFormat(tokenizer_of(name), name).takes_tools}
    assert takes == TAKE_TOOLS


@pytest.mark.parametrize("name", families(FAMILIES))
def test_an_opening_is_the_templates_own_rendering(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for given in settings_of(name):
        chat = ChatFormat(tokenizer, name, template_kwargs=given)
        for system, shots, tools in itertools.product((False, True), repeat=3):
            if tools and not chat.takes_tools:
                continue
            messages = [*[SYSTEM][:system], *(SHOTS if shots else []), USER]
            own = ids_of(tokenizer, as_template_takes(chat, messages), tools=TOOLS if tools else None, **given)
            assert chat.opening(messages, [SEARCH] if tools else []) == own, (given, system, shots, tools)


@pytest.mark.parametrize("name", families(FAMILIES))
def test_a_reply_is_what_the_template_puts_between_two_turns(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for given in settings_of(name):
        chat = ChatFormat(tokenizer, name, template_kwargs=given)
        first, second = {"role": "user", "content": "A."}, {"role": "user", "content": "You see:\n\n  #.@"}
        whole = as_template_takes(chat, [first, {"role": "assistant", "content": "anAnswer"}, second])
        after = rendered(tokenizer, whole, **given).rpartition("anAnswer")[2].lstrip()
        ids = chat.reply(second["content"], ended=False)
        assert ids == encoded(tokenizer, after)
        assert chat.reply(second["content"], ended=True, by=chat.end_ids[0]) == ids[1:]


@pytest.mark.parametrize("name", families(sorted(TAKE_TOOLS)))
def test_calls_are_read_and_answered_in_the_models_own_form(name: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    said = chat.answer(json.dumps(CALL), call=True)
    assert chat.calls(said, [SEARCH]) == [json.dumps(CALL, sort_keys=True)]
    assert chat.calls(said[:-1], [SEARCH]) == [json.dumps(CALL, sort_keys=True)], "cut off behind the call"
    assert chat.calls(said[: len(said) // 2], [SEARCH]) == [], "cut off inside it"
    assert chat.calls(chat.answer("north"), [SEARCH]) == []
    result = 'Two "stairs":\n  #.@'
    ids = chat.reply(result, ended=True, by=said[-1], call="search")
    if chat._tools._result is None:
        assert ids == chat.reply(result, ended=True, by=said[-1])
        return
    call = {"id": "call00000", "type": "function", "function": CALL}
    asked = [{"role": "user", "content": "A."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    answered = [*asked, {"role": "tool", "name": "search", "tool_call_id": "call00000", "content": result}]
    own = encoded(tokenizer, rendered(tokenizer, answered, tools=TOOLS))
    assert [said[-1], *ids] == own[-len(ids) - 1 :]


@pytest.mark.parametrize("name", ["qwen3", "mistral_3"])
def test_several_calls_of_a_turn_are_read_in_their_order(name: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    calls = [{"name": "search", "arguments": {"words": words}} for words in ("a", "b")]
    asked = [
        {"type": "function", "id": f"call0000{at}", "function": {**call, "arguments": call["arguments"]}}
        for at, call in enumerate(calls)
    ]
    user = {"role": "user", "content": "A."}
    opened = rendered(tokenizer, [user], tools=TOOLS, add_generation_prompt=True)
    whole = rendered(
        tokenizer,
        [user, {"role": "assistant", "content": "", "tool_calls": asked}],
        tools=TOOLS,
        add_generation_prompt=False,
    )
    said = encoded(tokenizer, whole.removeprefix(opened))
    assert chat.calls(said, [SEARCH]) == [json.dumps(call, sort_keys=True) for call in calls]


def test_a_turn_that_ends_by_the_beginning_of_the_next_one() -> None:
    """GLM closes no turn: its model goes on with whose turn is next. Where that is another one, both stand there."""
    tokenizer = tokenizer_of("glm4moe")
    chat = ChatFormat(tokenizer, "m")
    user, tool = (tokenizer.convert_tokens_to_ids(token) for token in ("<|user|>", "<|observation|>"))
    assert set(chat.end_ids) == {user, tool}
    whole = chat.reply("Go on.", ended=False)
    assert chat.reply("Go on.", ended=True, by=user) == whole[1:]
    assert chat.reply("Go on.", ended=True, by=tool) == whole
    assert chat.reply("Found.", ended=True, by=tool, call="search")[0] != tool
    assert chat.reply("Found.", ended=True, by=user, call="search")[0] == tool


def test_a_turn_of_several_messages_ends_with_the_last_one() -> None:
    """gpt-oss: `<|end|>` ends its analysis, the turn goes on."""
    tokenizer = tokenizer_of("gptoss")
    chat = ChatFormat(tokenizer, "m")
    assert tokenizer.convert_ids_to_tokens(list(chat.end_ids)) == ["<|return|>", "<|call|>"]
    assert tokenizer.decode(chat.answer("north")) == "<|channel|>final<|message|>north<|return|>"
    assert chat.decode(chat.answer("north")) == "north"
    written = (
        "<|channel|>analysis<|message|>Is it north?<|end|><|start|>assistant<|channel|>final<|message|>south<|return|>"
    )
    assert chat.decode(encoded(tokenizer, written)) == "<think>Is it north?</think>\nsouth"
    other = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
    other += '<|constrain|>json<|message|>{"words": "x"}<|call|>'
    assert chat.calls(encoded(tokenizer, other), [SEARCH]) == ['{"arguments": {"words": "x"}, "name": "search"}']
    broken = encoded(tokenizer, other.replace('"x"}', '"x'))
    assert chat.calls(broken, [SEARCH]) == []
    assert chat.decode(broken).startswith("<think>Hm.</think>"), "the thought is kept"


@pytest.mark.parametrize(
    ("name", "answer"),
    families(
        [
            ("exaone_4", ""),
            ("qwen3", "<think>\n\n</think>\n\n"),
            ("qwen3_5_think", "\n</think>\n\n"),
            ("deepseek_r1_distill", "\n</think>\n\n"),
            ("glm4moe", "\n<think></think>\n"),
            ("muse_glimmer", " to=user<|message|>"),
            ("command_a_reasoning", "\n<|END_THINKING|><|START_RESPONSE|>"),
        ]
    ),
)
def test_a_demonstration_has_the_whole_form_of_an_answer(name: str, answer: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    ids = chat.answer("north")
    assert ids == [*encoded(tokenizer, f"{answer}north"), chat.end_ids[0]]


@pytest.mark.parametrize(
    ("name", "written"),
    families(
        [
            ("qwen3", "<think>\nLook.\n</think>\n\nnorth"),
            ("qwen3_5_think", "Look.\n</think>\n\nnorth"),
            ("gptoss", "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>final<|message|>north"),
            ("gemma4_v5", "<|channel>thought\nLook.\n<channel|>north"),
            ("muse_glimmer", " to=self<|message|>Look.<|eom|><|start|>assistant to=user<|message|>north"),
            ("qwen2_5", "<think>Look.</think>north"),
            ("qwq", "Look.</think>north"),
        ]
    ),
)
def test_a_demonstration_thinks_in_the_models_own_form(name: str, written: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    if chat.opens_thought:
        assert tokenizer.decode(chat.answer("Look.</think>north")[:-1]) == written
    assert tokenizer.decode(chat.answer("<think>Look.</think>north")[:-1]) == written
    if name in ("qwen3", "qwen3_5_think", "gptoss"):
        said = chat.answer("<think>Look.</think>" + json.dumps(CALL), call=True)
        assert chat.calls(said, [SEARCH]) == [json.dumps(CALL, sort_keys=True)]
        assert "Look." in tokenizer.decode(said)


CALLS = {
    "qwen2_5": '<tool_call>\n{"name": "search", "arguments": {"words": "a"}}\n</tool_call>',
    "qwen3_6": "<tool_call>\n<function=search>\n<parameter=words>\na\n</parameter>\n</function>\n</tool_call>",
    "llama3_1": '{"name": "search", "parameters": {"words": "a"}}',
    "gemma4": '<|tool_call>call:search{words:<|"|>a<|"|>}<tool_call|>',
    "glm4moe": "<tool_call>search\n<arg_key>words</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "mistral_3": '[TOOL_CALLS] [{"name": "search", "arguments": {"words": "a"}}]',
    "magistral": '[TOOL_CALLS]search[ARGS]{"words": "a"}',
    "command_a_reasoning": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "search", '
    '"parameters": {"words": "a"}}]<|END_ACTION|>',
}


@pytest.mark.parametrize("name", families(CALLS))
def test_texts_around_a_call_are_no_part_of_it(name: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    thought = (
        "Hm.<|END_THINKING|>" if name == "command_a_reasoning" else "Hm.</think>\n\n" if chat.opens_thought else ""
    )
    for around in ("{}", "Now: {}", "{}\nThat should do.", "Now: {}\nThat should do."):
        ids = encoded(tokenizer, thought + around.format(CALLS[name]))
        assert chat.calls([*ids, chat.end_ids[0]], [SEARCH]) == ['{"arguments": {"words": "a"}, "name": "search"}']
        inside = encoded(tokenizer, "<think>" + around.format(CALLS[name]))
        assert chat.calls(inside, [SEARCH]) == [], "a call that is only thought of is none"


@pytest.mark.parametrize(
    ("name", "thought"),
    families(
        [
            ("seed_oss", "<seed:think>north?</seed:think>"),
            ("magistral", "[THINK]north?[/THINK]"),
            ("gemma4", "<|channel>thought\nnorth?<channel|>"),
            ("apertus", "<|inner_prefix|>north?<|inner_suffix|>"),
            ("qwen3", "<think>\nnorth?\n</think>"),
            ("gptoss", "<|channel|>analysis<|message|>north?<|end|><|start|>assistant<|channel|>final<|message|>"),
            ("muse_glimmer", " to=self<|message|>north?<|eom|><|start|>assistant to=user<|message|>"),
        ]
    ),
)
def test_thoughts_are_no_answer_whatever_their_tags(name: str, thought: str) -> None:
    from crl.rollout.actions import parse_action

    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)

    def acted(text: str) -> str | None:
        return parse_action(chat.decode(encoded(tokenizer, text)), ("north", "south"), "word")

    assert acted(f"{thought}south") == "south"
    assert acted(thought.partition("?")[0]) is None, "a thought that does not end"


def test_settings_reach_the_template_and_others_are_refused() -> None:
    tokenizer = tokenizer_of("qwen3")
    on, off = ChatFormat(tokenizer, "m"), ChatFormat(tokenizer, "m", template_kwargs={"enable_thinking": False})
    assert tokenizer.decode(off.opening([USER])).endswith("<think>\n\n</think>\n\n")
    assert len(off.reply("Go on.", ended=True)) > len(on.reply("Go on.", ended=True))
    for name in ("reasoning_effort", "tools", "messages", "add_generation_prompt", "eos_token"):
        with pytest.raises(BadInput, match=f"chat_template_kwargs.{name}"):
            ChatFormat(tokenizer, "m", template_kwargs={name: "high"})


def test_a_template_of_ones_own_takes_the_place_of_the_models() -> None:
    tokenizer = tokenizer_of("qwen3")
    own = tokenizer_of("qwen2_5").chat_template
    chat = ChatFormat(tokenizer, "m", template=own)
    assert chat.template == "roles.<name>.chat_template" and chat.written == own
    assert chat.opening([SYSTEM, USER]) == ids_of(tokenizer, [SYSTEM, USER], own)
    assert chat.calls(chat.answer(json.dumps(CALL), call=True), [SEARCH])
    with pytest.raises(BadInput, match="does not show"):
        ChatFormat(tokenizer, "m", template="")
    with pytest.raises(BadInput, match=r"is no jinja, line 2: .*(?s:.)*Correct the template"):
        ChatFormat(tokenizer, "m", template="{{ messages[0].content }}\n{{ } }}")


REPLIES = ("You see a wall.", "  two\n\nlines\n", "", '{"a": "b\\n"} \\ <b>', "<|im_end|> [INST] 🙂é", "\n", "user\nx")


@pytest.mark.parametrize("name", families(FAMILIES))
def test_the_text_of_a_reply_is_read_back_from_its_ids(name: str) -> None:
    chat = ChatFormat(tokenizer_of(name), name)
    for call in (None, SEARCH.name) if chat.takes_tools else (None,):
        for text, end in itertools.product(REPLIES, (None, *chat.end_ids)):
            ids = chat.reply(text, ended=end is not None, by=end, call=call)
            assert chat.replied(ids, ended=end is not None, by=end, call=call) == text
            assert chat.replied(ids[:-1], ended=end is not None, by=end, call=call) is None
    assert chat.replied([1, 2, 3], ended=False) is None and chat.replied([], ended=True) is None
