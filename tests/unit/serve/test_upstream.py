"""In front of a vLLM server: what it is sent, what comes back, and what is said where it does not answer. The server is
this project's own gateway, which speaks the same API."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from crl.errors import BadInput
from crl.gateway.messages import Answer, ApiError
from crl.gateway.server import Call, Client, Gateway
from crl.protocols import ParsedTurn, StopReason
from crl.serve.answering import Answering
from crl.serve.upstream import KEY, Upstream
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.serve.calls import MARKED, FakeAgent, answered, assistant, request

CALL = '{"arguments": {"a": "ü"}, "name": "go"}'
WIRE = {"id": "1", "type": "function", "function": {"name": "go", "arguments": '{"a": "ü"}'}}
TOOL = {"type": "function", "function": {"name": "go", "description": "Go.", "parameters": {"type": "object"}}}


def whole(turn: ParsedTurn, reason: StopReason = StopReason.end_of_turn) -> Answer:
    return Answer(0, turn, reason, 11, 7)


@contextmanager
def server(submit: Callable[[Call], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a key, and its address."""
    monkeypatch.setenv(KEY, "secret\n")
    with Gateway() as gateway:
        client = gateway.serve(Client("", "secret", submit, ("org/exported",), served=True))
        yield gateway.url(client)


@contextmanager
def behind(address: str, **more: Any) -> Iterator[Upstream]:
    made = Upstream(address, Answering(FakeAgent(), **more))
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(PATIENCE_SECONDS)


def test_only_the_retrieval_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []

    def submit(call: Call) -> None:
        calls.append(call)
        call.answer(whole(ParsedTurn("left", "Hm", (CALL,) if call.request.tools else ())))

    with server(submit, monkeypatch) as address, behind(address.removesuffix("/v1")) as upstream:
        assert upstream.model == "org/exported"
        first = answered(upstream, *MARKED, seed=4, stop="END", tools=[TOOL])
        after = (
            *MARKED,
            {**assistant("left"), "tool_calls": [WIRE]},
            {"role": "tool", "tool_call_id": "1", "content": "3"},
        )
        second = answered(upstream, *after, temperature=0, max_tokens=3, tools=[TOOL])
    one, two = (call.request for call in calls)
    assert [each.content for each in one.messages] == ["S.", "Goal\nAdvice: E1\nLook."]
    assert (one.model, one.settings.seed, one.settings.temperature) == ("org/exported", 4, 0.5)
    assert one.stop == ("</a>", "END") and one.tools[0].name == "go" and one.stream
    assert [each.content for each in two.messages][1:] == ["Goal\nAdvice: E1\nLook.", "left", "3"]
    assert two.messages[2].calls == (CALL,) and two.messages[3].name == "go"
    assert (two.settings.max_tokens, two.settings.temperature) == (3, 0.001)
    assert first.parsed == ParsedTurn("left", "Hm", (CALL,)) and first.finish_reason == "tool_calls"
    assert (first.prompt_tokens, first.completion_tokens, first.entry_ids) == (11, 7, ("x-1",))
    assert first.conversation == second.conversation and (first.number, second.number) == (0, 1), "it began alike"


def test_a_stream_is_passed_on_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[Call] = []
    with server(there.append, monkeypatch) as address, behind(address) as upstream:
        call = Call(request("Hi.", stream=True))
        upstream.submit(call)
        wait_until(lambda: bool(there), "it is passed on")
        for text in ("l", "le"):
            there[0].show(Answer(0, ParsedTurn(text), None, 1, 1))
            wait_until(lambda text=text: call.so_far is not None and call.so_far.parsed.content == text, text)
        there[0].answer(whole(ParsedTurn("left"), StopReason.length))
        answer = call.result.result(PATIENCE_SECONDS)
    assert (answer.parsed.content, answer.finish_reason) == ("left", "length")


def test_a_client_that_goes_frees_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[Call] = []
    with server(there.append, monkeypatch) as address, behind(address) as upstream:
        call = Call(request("Hi.", stream=True))
        upstream.submit(call)
        wait_until(lambda: bool(there), "it is passed on")
        call.gone = True
        there[0].show(Answer(0, ParsedTurn("l"), None, 1, 1))
        wait_until(lambda: there[0].gone, "the server is told")


def test_what_the_server_says_is_what_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = ApiError("maximum context length is 5 tokens", code="context_length_exceeded", param="messages")
    with server(lambda call: call.refuse(too_long), monkeypatch) as address, behind(address) as upstream:
        refused = answered(upstream, "Hi.")
        assert (refused.status, refused.code) == (400, "upstream") and "maximum context length" in str(refused)
        assert answered(upstream, "Hi.", model="gpt").code == "model_not_found"
    with server(lambda call: None, monkeypatch) as address:
        upstream = Upstream(address, Answering(FakeAgent()))
    assert answered(upstream, "Hi.").status == 502, "the server is gone"
    upstream.stop()


def test_a_stream_that_breaks_off_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[Call] = []
    with server(there.append, monkeypatch) as address, behind(address) as upstream:
        call = Call(request("Hi.", stream=True))
        upstream.submit(call)
        wait_until(lambda: bool(there), "it is passed on")
        there[0].show(Answer(0, ParsedTurn("le"), None, 1, 1))
        wait_until(lambda: call.so_far is not None, "it has begun")
        there[0].refuse(ApiError("The engine died.", code="internal", status=500))
        error = call.result.exception(PATIENCE_SECONDS)
    assert isinstance(error, ApiError) and error.status == 502 and "engine died" in str(error)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"nonsense\r\n\r\n"])
def test_an_address_without_such_a_server_is_refused_at_once(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reply() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(BadInput, match="no model is served at"):
            Upstream(f"http://127.0.0.1:{listening.getsockname()[1]}", Answering(FakeAgent()))
        thread.join()
    with pytest.raises(BadInput, match="no model is served at"):
        Upstream("http://127.0.0.1:1", Answering(FakeAgent()))
    with pytest.raises(BadInput, match="no model is served at"):
        Upstream("nonsense", Answering(FakeAgent()))
