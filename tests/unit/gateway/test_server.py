"""The server on loopback: whom it answers, in which form, and what it refuses."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from crl.gateway import server
from crl.gateway.messages import Answer, ApiError
from crl.gateway.server import MOST_OPEN, Call, Client, Gateway
from crl.protocols import ParsedTurn, StopReason
from tests.processes import wait_until

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
CALLS = ParsedTurn("Well.", "Hm.", ('{"arguments": {"a": "ü"}, "name": "add"}',))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway() as made:
        yield made


def answered(turn: ParsedTurn) -> Any:
    """What answers every call at once."""
    return lambda call: call.answer(Answer(3, turn, StopReason.end_of_turn, 5, 7))


def ask(
    gateway: Gateway,
    client: Client,
    body: Any = ASKED,
    *,
    method: str = "POST",
    path: str | None = None,
    **headers: str,
) -> tuple[int, Any]:
    """Status and JSON; headers may replace those of a right request (`host`, `authorization`, `origin`)."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"authorization": f"Bearer {client.key}", "content-type": "application/json", **headers}
    connection.request(method, path or f"/{client.path}/v1/chat/completions", content, sent)
    response = connection.getresponse()
    read = response.read()
    connection.close()
    assert "server" not in response.headers
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return response.status, read.decode().split("\n\n")
    return response.status, json.loads(read)


def raw(gateway: Gateway, client: Client, header: str) -> socket.socket:
    """A connection that has sent its headers, and no body yet."""
    made = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    lines = (
        f"POST /{client.path}/v1/chat/completions HTTP/1.1", "Host: localhost", f"Authorization: Bearer {client.key}",
        header, "", "",
    )  # fmt: skip
    made.sendall("\r\n".join(lines).encode())
    return made


def test_an_answer_has_the_api_s_form_and_no_time(gateway: Gateway) -> None:
    client = gateway.open(answered(CALLS))
    status, found = ask(gateway, client)
    (choice,) = found["choices"]
    assert status == 200 and found["object"] == "chat.completion" and found["created"] == 0
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Well.", "Hm.")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": "ü"}
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    assert ask(gateway, client)[1] == found, "ids are the same whenever the same is answered"
    assert ask(gateway, client, method="GET", path=f"/{client.path}/v1/models")[1]["data"][0]["id"] == "actor"


def test_a_stream_holds_the_same_in_chunks(gateway: Gateway) -> None:
    client = gateway.open(answered(CALLS))
    status, events = ask(gateway, client, {**ASKED, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200 and events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."}
    assert deltas[1]["tool_calls"][0]["index"] == 0
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls" and chunks[-1]["usage"]["total_tokens"] == 12


def test_only_the_holder_of_the_key_on_this_machine_is_answered(gateway: Gateway) -> None:
    reached: list[Call] = []
    client, other = gateway.open(reached.append), gateway.open(reached.append)
    for status, wrong in [
        (401, {"authorization": f"Bearer {other.key}"}),
        (401, {"authorization": "Bearer "}),
        (401, {"authorization": f"Basic {client.key}"}),
        (401, {"authorization": f"Bearer {client.key}ü"}),
        (403, {"host": f"evil.example:{gateway.port}"}),
        (403, {"host": "127.0.0.1.evil.example"}),
        (403, {"origin": "http://localhost"}),
        (403, {"origin": "null"}),
    ]:
        found = ask(gateway, client, **wrong)
        assert found[0] == status and set(found[1]["error"]) == {"message", "type", "param", "code"}, wrong
    assert ask(gateway, client, path="/0000000000000000/v1/chat/completions")[0] == 401, "no path is told from another"
    assert ask(gateway, client, path=f"/{client.path}/v1/embeddings")[0] == 404
    assert ask(gateway, client, method="GET")[0] == 405
    gateway.close(client.path)
    assert ask(gateway, client)[0] == 401, "a path that is closed is gone"
    assert not reached and client.key not in repr(ask(gateway, other, {"model": "m"}))


def deep(levels: int) -> dict[str, Any]:
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[" * 100_000, b'"x"', b"[]", b"\xff\xfe", b"null", b'{"model": 1e999}',
        {"model": "m"}, {"model": "", "messages": ASKED["messages"]}, {"model": ["m"], "messages": ASKED["messages"]},
        {**ASKED, "messages": []}, {**ASKED, "messages": {"role": "user"}}, {**ASKED, "messages": [None]},
        {**ASKED, "messages": [{"role": ["user"], "content": "x"}]}, {**ASKED, "messages": [{"role": "robot"}]},
        {**ASKED, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {**ASKED, "messages": [{"role": "user", "content": 3}]},
        {**ASKED, "messages": [{"role": "tool", "content": "x", "tool_call_id": "call0"}]},
        {**ASKED, "messages": [{"role": "tool", "content": "x", "tool_call_id": {}}]},
        {**ASKED, "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f",
                                                                       "arguments": "{"}}]}, *ASKED["messages"]]},
        {**ASKED, "messages": [{"role": "assistant", "tool_calls": 7}, *ASKED["messages"]]},
        {**ASKED, "messages": [*ASKED["messages"], {"role": "assistant", "content": "prefilled"}]},
        {**ASKED, "messages": ASKED["messages"] * 5000},
        {**ASKED, "tools": 3}, {**ASKED, "tools": [{"type": "web_search"}]}, {**ASKED, "tools": [{}] * 300},
        {**ASKED, "tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
        {**ASKED, "tools": [{"type": "function", "function": {"name": "f", "parameters": deep(200)}}]},
        {**ASKED, "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {
            "name": "f", "arguments": json.dumps(deep(200))}}]}, *ASKED["messages"]]},
        {**ASKED, "n": 2}, {**ASKED, "stop": 3}, {**ASKED, "response_format": {"type": "json_object"}},
        {**ASKED, "audio": {"voice": "x"}},
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_the_api_s_form(gateway: Gateway, body: Any) -> None:
    reached: list[Call] = []
    client = gateway.open(reached.append)
    status, found = ask(gateway, client, body)
    assert status == 400 and found["error"]["type"] == "invalid_request_error" and found["error"]["message"]
    assert not reached


def test_sizes_are_bounded(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGEST_BODY", 1 << 16)
    client = gateway.open(answered(ParsedTurn("x")))
    with raw(gateway, client, f"Content-Length: {(1 << 16) + 1}") as sent:
        assert b" 413 " in sent.recv(4096), "before it is read"
    with raw(gateway, client, "Transfer-Encoding: chunked") as sent:
        piece = b" " * (1 << 14)
        with suppress(OSError):
            for _ in range(6):
                sent.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert b" 413 " in sent.recv(4096), "without a length, as it comes"
    with raw(gateway, client, "Content-Length: 50000") as waits:
        waits.sendall(b" " * 40_000)
        wait_until(lambda: client.size == 40_000, "it is being read")
        with raw(gateway, client, "Content-Length: 30000") as sent:
            assert b" 413 " in sent.recv(4096), "all that a client has open counts together"
    wait_until(lambda: (client.open, client.size) == (0, 0), "nothing of them is left")
    assert ask(gateway, client)[0] == 200


def test_connections_that_ask_nothing_lock_nobody_out(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_IDLE", 8)
    client = gateway.open(answered(ParsedTurn("x")))
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30)) for _ in range(30)
        ]
        for number, each in enumerate(opened):
            with suppress(OSError):
                each.sendall(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " if number % 2 else b"")
        assert ask(gateway, client)[0] == 200
        with suppress(ConnectionError):
            assert opened[0].recv(1) == b"", "the oldest is closed"
    long = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"x" * (1 << 17)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as endless:
        with suppress(OSError):
            endless.sendall(long)
        with suppress(ConnectionError):
            assert b" 400 " in endless.recv(4096), "headers have an end"
    assert ask(gateway, client)[0] == 200


def test_a_client_that_goes_while_it_is_answered_is_let_go(gateway: Gateway) -> None:
    client = gateway.open(answered(ParsedTurn("x" * 3_000_000)))
    body = json.dumps({**ASKED, "stream": True}).encode()
    for _ in range(4):
        with raw(gateway, client, f"Content-Length: {len(body)}") as sent:
            sent.sendall(body)
            assert sent.recv(10).startswith(b"HTTP/1.1")
    wait_until(lambda: client.open == 0, "nothing of them is left")
    assert ask(gateway, client)[0] == 200


def stream_of(gateway: Gateway, client: Client) -> socket.socket:
    """A connection that has asked for a stream."""
    body = json.dumps({**ASKED, "stream": True}).encode()
    made = raw(gateway, client, f"Content-Length: {len(body)}")
    made.sendall(body)
    return made


def read_until(sent: socket.socket, text: str) -> str:
    """What comes, up to a text."""
    found = ""
    while text not in found:
        piece = sent.recv(4096).decode()
        assert piece, found
        found += piece
    return found


def so_far(turn: ParsedTurn) -> Answer:
    return Answer(3, turn, None, 5, 1)


def test_a_stream_sends_what_is_known_at_once(gateway: Gateway) -> None:
    waiting: list[Call] = []
    client = gateway.open(waiting.append)
    with stream_of(gateway, client) as sent:
        wait_until(lambda: bool(waiting), "the call waits")
        waiting[0].show(so_far(ParsedTurn("", "Hm")))
        assert '"reasoning_content": "Hm"' in read_until(sent, "Hm")
        waiting[0].show(so_far(ParsedTurn("We", "Hm")))
        assert '"delta": {"content": "We"}' in read_until(sent, "We")
        waiting[0].answer(Answer(3, ParsedTurn("Well.", "Hm", CALLS.calls), StopReason.end_of_turn, 5, 7))
        rest = read_until(sent, "[DONE]")
        assert '"delta": {"content": "ll."}' in rest and '"tool_calls": [{"index": 0' in rest
        assert '"finish_reason": "tool_calls"' in rest
    wait_until(lambda: client.open == 0, "nothing of it is left")


def test_a_stream_that_fails_says_so_in_the_api_s_form(gateway: Gateway) -> None:
    waiting: list[Call] = []
    client = gateway.open(waiting.append)
    with stream_of(gateway, client) as sent:
        wait_until(lambda: bool(waiting), "the call waits")
        waiting[0].refuse(ApiError("no", code="no", status=409))
        assert " 409 " in read_until(sent, '"code":"no"'), "before it begins it has a status"
    with stream_of(gateway, client) as sent:
        wait_until(lambda: len(waiting) == 2, "the call waits")
        waiting[1].show(so_far(ParsedTurn("We")))
        read_until(sent, "We")
        waiting[1].refuse(ApiError("The server failed.", code="internal", status=500))
        assert '"error": {"message": "The server failed."' in read_until(sent, "internal")


def test_a_client_that_goes_in_the_middle_of_a_stream_is_known_to_have_gone(gateway: Gateway) -> None:
    waiting: list[Call] = []
    client = gateway.open(waiting.append)
    with stream_of(gateway, client) as sent:
        wait_until(lambda: bool(waiting), "the call waits")
        waiting[0].show(so_far(ParsedTurn("We")))
        read_until(sent, "We")
        assert (client.open, waiting[0].gone) == (1, False)
    wait_until(lambda: waiting[0].gone and (client.open, client.size) == (0, 0), "nothing of it is left")
    waiting[0].show(so_far(ParsedTurn("Well")))
    waiting[0].answer(Answer(3, ParsedTurn("Well."), StopReason.end_of_turn, 5, 7))
    assert ask(gateway, gateway.open(answered(CALLS)))[0] == 200


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    with Gateway(names=["box.example"]) as made:
        yield made


def served(gateway: Gateway, key: str = "", **more: Any) -> Client:
    return gateway.serve(Client("", key, answered(ParsedTurn("x")), ("actor/a", "actor/b"), served=True, **more))


def test_one_client_without_a_path_and_a_key_is_all_that_come(serving: Gateway) -> None:
    client = served(serving)
    assert serving.url(client) == f"http://127.0.0.1:{serving.port}/v1"
    path = "/v1/chat/completions"
    assert ask(serving, client, path=path, authorization="")[0] == 200
    listed = ask(serving, client, method="GET", path="/v1/models")[1]["data"]
    assert [each["id"] for each in listed] == ["actor/a", "actor/b"]
    assert ask(serving, client, method="GET", path="/v1/models/actor/b")[1]["id"] == "actor/b"
    status, found = ask(serving, client, method="GET", path="/v1/models/gpt")
    assert (status, found["error"]["code"]) == (404, "model_not_found")
    assert "actor/a, actor/b" in found["error"]["message"]
    for host in ("box.example", "box.example:80", "localhost", f"127.0.0.1:{serving.port}", "[::1]:1"):
        assert ask(serving, client, path=path, host=host)[0] == 200, host
    for host in ("evil.example", "box.example.evil", "10.0.0.1", "", "[::2]", "127.0.0.1.evil.example"):
        assert ask(serving, client, path=path, host=host)[0] == 403, host
    assert ask(serving, client, path=path, origin="http://localhost")[0] == 403
    assert ask(serving, client, {**ASKED, "temperature": "hot"}, path=path)[1]["error"]["param"] == "temperature"


def test_a_given_key_is_asked_for(serving: Gateway) -> None:
    client = served(serving, "secret")
    path = "/v1/chat/completions"
    assert ask(serving, client, path=path)[0] == 200
    for wrong in ("Bearer other", "", "secret", "Bearer"):
        assert ask(serving, client, path=path, authorization=wrong)[0] == 401
    assert ask(serving, client, method="GET", path="/v1/models", authorization="Bearer x")[0] == 401


def test_beyond_loopback_an_address_may_be_the_host_and_a_strange_name_may_not() -> None:
    with Gateway(host="0.0.0.0") as made:
        client = served(made, "secret")
        for host, status in (("10.1.2.3:80", 200), ("0.0.0.0", 200), ("[fd00::1]", 200), ("evil.example", 403)):
            assert ask(made, client, path="/v1/chat/completions", host=host)[0] == status, host
        assert ask(made, client, path="/v1/chat/completions", authorization="")[0] == 401
    with pytest.raises(OSError):
        Gateway(host="no-such-host.invalid")


def test_what_else_may_be_posted_is_checked_as_calls_are(serving: Gateway) -> None:
    def feedback(value: Any) -> dict[str, Any]:
        if "id" not in value:
            raise ApiError("There is no id.", code="invalid_request", param="id")
        return {"took": value["id"]}

    client = served(serving, posts={"feedback": feedback})
    assert ask(serving, client, {"id": 3}, path="/v1/feedback") == (200, {"took": 3})
    assert ask(serving, client, {}, path="/v1/feedback")[0] == 400
    for body in (b"{", b"[]", b""):
        assert ask(serving, client, body, path="/v1/feedback")[0] == 400
    assert ask(serving, client, {"id": 3}, path="/v1/feedback", origin="null")[0] == 403
    assert ask(serving, client, {"id": 3}, path="/v1/embeddings")[0] == 404
    assert (client.open, client.size) == (0, 0)


@pytest.mark.slow
def test_a_hundred_clients_wait_at_once(gateway: Gateway) -> None:
    waiting: list[Call] = []
    clients = [gateway.open(waiting.append) for _ in range(100)]
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(ask(gateway, each)[0]), daemon=True) for each in clients
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(waiting) == 100, "all calls wait")
    for call in waiting:
        call.answer(Answer(0, ParsedTurn("x"), StopReason.end_of_turn, 1, 1))
    for thread in threads:
        thread.join()
    assert found == [200] * 100


@pytest.mark.slow  # as many connections as a client may have open
def test_calls_that_wait_are_bounded_and_those_whose_client_went_are_known(gateway: Gateway) -> None:
    waiting: list[Call] = []
    client = gateway.open(waiting.append)
    threads = [threading.Thread(target=ask, args=(gateway, client), daemon=True) for _ in range(MOST_OPEN)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(waiting) == MOST_OPEN, "all calls wait")
    assert ask(gateway, client)[0] == 429
    for call in waiting:
        call.refuse(ApiError("no", code="no"))
    for thread in threads:
        thread.join()
    body = json.dumps(ASKED).encode()
    with raw(gateway, client, f"Content-Length: {len(body)}") as sent:
        sent.sendall(body)
        wait_until(lambda: len(waiting) == MOST_OPEN + 1, "one more waits")
        assert not waiting[-1].gone
    wait_until(lambda: waiting[-1].gone, "its client is known to have gone")
    waiting[-1].answer(Answer(0, ParsedTurn("late"), StopReason.end_of_turn, 1, 1))
    assert client.open == 0, "nothing of it is left"


def test_it_ends_with_calls_open_and_listens_on_loopback_only() -> None:
    waiting: list[Call] = []
    with Gateway() as made:
        client = made.open(waiting.append)
        found: list[tuple[int, Any]] = []
        thread = threading.Thread(target=lambda: found.append(ask(made, client)), daemon=True)
        thread.start()
        wait_until(lambda: bool(waiting), "a call waits")
        assert {each.getsockname()[0] for each in made._sockets} == {"127.0.0.1"}
        assert made.url(client) == f"http://127.0.0.1:{made.port}/{client.path}/v1"
    thread.join(30)
    assert found[0][0] == 400 and found[0][1]["error"]["code"] == "over"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", made.port), timeout=1)
