"""Which sequence a call continues: by what its messages say, whatever a client did to their form."""

from __future__ import annotations

import json
from collections.abc import Sequence

from crl.gateway.conversations import Conversations, with_text
from crl.gateway.messages import ChatRequest, as_messages, read_request
from crl.protocols import Message, ParsedTurn, Sampled, StopReason, Tool

CALL = '{"arguments": {"a": 1}, "name": "add"}'
TOOL = Tool("add", "Add.", {})


class Letters:
    """A chat of characters: ids are code points."""

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return list(map(ord, "".join(f"[{each.role}:{each.content}{''.join(each.calls)}]" for each in messages)))

    def follow(self, messages: Sequence[Message], *, ended: bool, by: int | None = None, calls: int = 0) -> list[int]:
        return self.conversation(messages)


def user(text: str) -> Message:
    return Message("user", text)


def said(made: Conversations, request: ChatRequest, text: str, *calls: str) -> tuple[bool, list[int]]:
    """Answer a call: whether it went on in place, and its prompt."""
    prompt = made.prompt(request)
    sampled = Sampled([*map(ord, text), 1], [0.0] * (len(text) + 1), StopReason.end_of_turn)
    sequence = made.answered(prompt, sampled, ParsedTurn(text, "", calls))
    if prompt.continues is not None:
        sequence.token_ids += prompt.token_ids[len(sequence.token_ids) :]
    sequence.token_ids += sampled.token_ids
    return prompt.continues is not None, prompt.token_ids


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
    went_on, ids = said(made, request, "One.")
    assert went_on and len(made.sequences) == 1
    assert "".join(map(chr, ids)) == "[user:Hi.]Well.\x01[tool:1]"
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
    went_on, ids = said(made, ChatRequest("m", (*after, user("2"))), "C")
    assert not went_on and "".join(map(chr, ids)) == "[system:S.\nHint.][user:Hi.]A\x01[user:2]"
    assert said(made, ChatRequest("m", (*after, user("2"), Message("assistant", "C"), user("3"))), "D")[0]
    free = ["".join(map(chr, each.free_prompt())) for each in made.sequences]
    assert free == ["[system:S.][user:Hi.]", "[system:S.][user:Hi.]A\x01[user:2]"]


def test_a_call_that_comes_again_has_the_same_ids_and_a_sequence_of_its_own() -> None:
    made = Conversations(Letters())  # type: ignore[arg-type]
    request = ChatRequest("m", (user("Hi."),))
    first, second = said(made, request, "A"), said(made, request, "A")
    assert first == second == (False, first[1]) and len(made.sequences) == 2
    went_on, _ = said(made, ChatRequest("m", (user("Hi."), Message("assistant", "A"), user("B"))), "C")
    again, _ = said(made, ChatRequest("m", (user("Hi."), Message("assistant", "A"), user("B"))), "C")
    assert went_on and again and len(made.sequences) == 2, "each goes on in one of the two"


def test_side_models_have_sequences_apart() -> None:
    made = Conversations(Letters(), side=frozenset({"critic"}))  # type: ignore[arg-type]
    said(made, ChatRequest("m", (user("Hi."),)), "A")
    went_on, _ = said(made, ChatRequest("critic", (user("Hi."), Message("assistant", "A"), user("B"))), "C")
    assert not went_on and [each.side for each in made.sequences] == [False, True]


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
