"""Which sequence a call continues: by what its messages say, whatever a client did to their form."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from crl.gateway.conversations import Conversations, with_text
from crl.gateway.messages import ApiError, ChatRequest, as_messages, read_request
from crl.protocols import Message, ParsedTurn, Sampled, StopReason, Tool

CALL = '{"arguments": {"a": 1}, "name": "add"}'
TOOL = Tool("add", "Add.", {})


class Letters:
    """A chat of characters: ids are code points."""

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return list(map(ord, "".join(f"[{each.role}:{each.content}{''.join(each.calls)}]" for each in messages)))

    def follow(self, messages: Sequence[Message], *, ended: bool, by: int | None = None, calls: int = 0) -> list[int]:
        return self.conversation(messages)

    takes_tools = True

    def keeps_thoughts(self, call: str) -> bool:
        return call == "add"

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        """A prompt's last character begins a thought, which ends with a brace."""
        thought = wrote.index(ord("}")) + 1 if ord("}") in wrote else 0
        return list(asked[:-1] if thought else asked), list(wrote[thought:])


def user(text: str) -> Message:
    return Message("user", text)


def said(made: Conversations, request: ChatRequest, text: str, *calls: str) -> tuple[bool, str, str]:
    """Answer a call: whether it went on in place, its prompt, and that without what is shown."""
    prompt = made.prompt(request)
    sampled = Sampled([*map(ord, text), 1], [0.0] * (len(text) + 1), StopReason.end_of_turn)
    content = text.partition("}")[2] if "}" in text else text
    assert made.answered(prompt, sampled, ParsedTurn(content, "", calls)) == (
        len(made.sequences) - 1 if prompt.continues is None else prompt.continues
    )
    return prompt.continues is not None, *("".join(map(chr, ids)) for ids in (prompt.token_ids, prompt.free_prompt()))


def test_answers_are_the_same_if_content_and_calls_are() -> None:
    made = Conversations(Letters())  # type: ignore[arg-type]
    first = ChatRequest("m", (user("Hi."),), (TOOL,))
    said(made, first, "Well.", CALL)
    again = {
        "model": "other", "tools": [{"type": "function", "function": {"name": "add", "description": "Add."}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "assistant", "content": "Well.", "refusal": None, "reasoning_content": "left in",
             "tool_calls": [{"id": "zz", "type": "function", "function": {"name": "add", "arguments": '{ "a" :1 }'}}]},
            {"role": "tool", "tool_call_id": "zz", "content": "1"},
        ],
    }  # fmt: skip
    request = read_request(json.dumps(again).encode())
    assert said(made, request, "One.")[:2] == (True, "[user:Hi.]Well.\x01[tool:1]")
    assert len(made.sequences) == 1
    for changed in (
        ChatRequest("m", request.messages),  # without the tools
        ChatRequest("m", (request.messages[0], Message("assistant", "Well!", (CALL,)), request.messages[2]), (TOOL,)),
        ChatRequest("m", (*request.messages, Message("assistant", "Mine."), user("So?")), (TOOL,)),
    ):
        assert not said(made, changed, "x")[0]
    assert len(made.sequences) == 4


def test_a_call_from_an_earlier_answer_copies_the_ids_up_to_there() -> None:
    made = Conversations(Letters(), shown="Hint.")  # type: ignore[arg-type]
    start = (Message("system", "S."), user("Hi."))
    said(made, ChatRequest("m", start), "A")
    after = (*start, Message("assistant", "A"))
    assert said(made, ChatRequest("m", (*after, user("1"))), "B")[0]
    went_on, ids, free = said(made, ChatRequest("m", (*after, user("2"))), "C")
    assert not went_on and ids == "[system:S.\nHint.][user:Hi.]A\x01[user:2]" and free == ids.replace("\nHint.", "")
    assert said(made, ChatRequest("m", (*after, user("2"), Message("assistant", "C"), user("3"))), "D")[0]


def test_thoughts_are_left_out_of_later_prompts() -> None:
    made = Conversations(Letters(), shown="Hint.", strip=True)  # type: ignore[arg-type]
    one = (Message("system", "S."), user("Hi."))
    two = (*one, Message("assistant", "A"), user("1"))
    three = (*two, Message("assistant", "B"), user("2"))
    said(made, ChatRequest("m", one), "{Hm}A")
    went_on, ids, free = said(made, ChatRequest("m", two), "B")
    assert not went_on and ids == "[system:S.\nHint.][user:Hi.A\x01[user:1]", "as the prompt began the thought"
    assert free == ids.replace("\nHint.", "")
    went_on, ids, free = said(made, ChatRequest("m", three), "C")
    assert went_on and ids.endswith("[user:1]B\x01[user:2]") and free == ids.replace("\nHint.", "")
    assert [len(each) for each in made.sequences] == [len("[system:S.\nHint.][user:Hi.]{Hm}A") + 1, len(ids) + 2]


def test_thoughts_between_tool_calls_stay_until_a_user_speaks() -> None:
    made = Conversations(Letters(), strip=True)  # type: ignore[arg-type]
    called = (user("Hi."), Message("assistant", "", (CALL,)), Message("tool", "1", (), "add"))
    twice = (*called, Message("assistant", "", (CALL,)), Message("tool", "2", (), "add"))
    asked = (*twice, Message("assistant", "3"), user("So?"))
    assert not said(made, ChatRequest("m", called[:1]), "{Hm}", CALL)[0]
    assert said(made, ChatRequest("m", called), "{Oh}", CALL)[0]
    went_on, ids, _ = said(made, ChatRequest("m", twice), "{Ah}3")
    assert went_on and ids == "[user:Hi.]{Hm}\x01[tool:1]{Oh}\x01[tool:2]"
    went_on, ids, _ = said(made, ChatRequest("m", asked), "4")
    assert not went_on and ids == "[user:Hi.\x01[tool:1\x01[tool:23\x01[user:So?]"


def test_a_call_that_comes_again_has_the_same_ids_and_a_sequence_of_its_own() -> None:
    made = Conversations(Letters())  # type: ignore[arg-type]
    request = ChatRequest("m", (user("Hi."),))
    first, second = said(made, request, "A"), said(made, request, "A")
    assert first == second == (False, "[user:Hi.]", "[user:Hi.]") and len(made.sequences) == 2
    further = ChatRequest("m", (user("Hi."), Message("assistant", "A"), user("B")))
    assert said(made, further, "C")[0] and said(made, further, "C")[0]
    assert len(made.sequences) == 2, "each goes on in one of the two"


def test_side_models_have_sequences_apart() -> None:
    made = Conversations(Letters(), side=frozenset({"critic"}))  # type: ignore[arg-type]
    said(made, ChatRequest("m", (user("Hi."),)), "A")
    assert not said(made, ChatRequest("critic", (user("Hi."), Message("assistant", "A"), user("B"))), "C")[0]
    assert len(made.sequences) == 2


def test_a_text_stands_at_the_end_of_the_first_system_message() -> None:
    system, hint = Message("system", "S."), Message("system", "S.\nHint.")
    assert with_text((user("A"), system, system), "Hint.") == (user("A"), hint, system)
    assert with_text((user("A"),), "Hint.") == (Message("system", "Hint."), user("A"))
    assert with_text((Message("system", ""),), "Hint.") == (Message("system", "Hint."),)
    assert with_text((user("A"), system), "") == (user("A"), system)


def test_messages_are_written_and_read_again() -> None:
    messages = (
        Message("system", "S"), user("Hi."), Message("assistant", "", (CALL, CALL)), Message("tool", "1", (), "add"),
        Message("tool", "2", (), "add"),
    )  # fmt: skip
    body = json.dumps({"model": "m", "messages": as_messages(messages)}).encode()
    assert read_request(body).messages == messages


def test_a_text_stands_at_the_mark_where_there_is_one() -> None:
    system, task = Message("system", "S {experience} S."), user("Goal\n{experience}Look.")
    assert with_text((user("A"), system), "Hint.\n") == (user("A"), Message("system", "S Hint.\n S."))
    assert with_text((task, user("{experience}")), "Hint.\n") == (user("Goal\nHint.\nLook."), user("{experience}"))
    assert with_text((task,), "") == (user("Goal\nLook."),), "an episode without one reads nothing of it"
    assert with_text((task,), "{experience}") == (user("Goal\n{experience}Look."),), "it is filled once"
    for wrong in ((system, task), (user("{experience} and {experience}"),)):
        with pytest.raises(ApiError, match="in 2 places"):
            with_text(wrong, "Hint.")
    made = Conversations(Letters(), shown="Hint.\n")  # type: ignore[arg-type]
    assert said(made, ChatRequest("m", (task,)), "A") == (False, "[user:Goal\nHint.\nLook.]", "[user:Goal\nLook.]")
    assert said(made, ChatRequest("m", (task, Message("assistant", "A"), user("B"))), "C")[0]


def test_a_window_keeps_the_opening_and_the_last_turns_that_fit() -> None:
    made = Conversations(Letters(), window=2, room=40)  # type: ignore[arg-type]
    messages: tuple[Message, ...] = (user("Open"),)
    prompts = []
    for number in range(4):
        went_on, ids, _ = said(made, ChatRequest("m", messages), f"A{number}")
        prompts.append((went_on, ids))
        messages = (*messages, Message("assistant", f"A{number}"), user(f"B{number}"))
    assert prompts == [
        (False, "[user:Open]"),
        (True, "[user:Open]A0\x01[user:B0]"),
        (True, "[user:Open]A0\x01[user:B0]A1\x01[user:B1]"),
        (False, "[user:Open]A1\x01[user:B1]A2\x01[user:B2]"),
    ]
    large = user("x" * 30)
    _, ids, _ = said(made, ChatRequest("m", (*messages[:-1], large)), "A4")
    assert ids == f"[user:Open]A3\x01[user:{'x' * 30}]", "too long all the same: whoever asks is told"
