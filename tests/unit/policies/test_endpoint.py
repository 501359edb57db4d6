"""A role behind an OpenAI-compatible endpoint: what is sent, what is kept, and where its key goes."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from crl.config import RoleConfig, SamplingConfig
from crl.config.engines import OpenAIEngine, ServerConfig
from crl.engine.vllm_server import check_server
from crl.errors import BadInput, EngineDied, PromptTooLong
from crl.policies import load_chat, load_policy, resolve_model
from crl.policies.endpoint import EndpointChat, EndpointPolicy, check_endpoint, messages_of
from crl.policies.serving import Client
from crl.protocols import StopReason
from tests.fake_vllm import FakeVllm, serving
from tests.processes import wait_until

PAUSE = Client._pause
CHAT = "/v1/chat/completions"
KEY = "sk-very-secret"
SAMPLING = SamplingConfig(temperature=0.5, top_p=0.9, max_new_tokens=9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllm]:
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.setattr("crl.policies.serving.Client._pause", lambda self, seconds: False)
    with serving() as found:
        yield found


def policy(fake: FakeVllm, limit: str = "max_tokens", leave_out: Sequence[str] = (), **role: Any) -> EndpointPolicy:
    engine = OpenAIEngine.model_validate({"limit": limit, "leave_out": list(leave_out)})
    config = RoleConfig(model="endpoint:some/model-1", engine=engine, **role)
    server = ServerConfig(address=f"{fake.address}/v1/", key_variable="A_KEY")
    source = resolve_model(config.model)
    loaded = load_policy(config, source.path, None, threads=1, server=server)
    assert isinstance(loaded, EndpointPolicy)
    return loaded


def opening(*texts: str) -> list[int]:
    roles = ("system", "user")[-len(texts) :]
    return EndpointChat().opening([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])


def test_messages_are_sent_as_they_were_written_and_the_answer_joins_the_row(fake: FakeVllm) -> None:
    asked = policy(fake)
    rows = asked.open([opening("Say ADD.", "Näh 🙂\n<|im_end|>"), opening("x")], [1, 2])
    found = rows.sample([0, 1], SAMPLING)
    said = "some/model-1 heard: Näh 🙂\n<|im_end|>"
    assert asked.chat.decode(found[0].token_ids) == said
    assert found[0].stop_reason is StopReason.end_of_turn and set(found[0].logprobs) == {0.0}
    body = next(each for each in fake.asked(CHAT) if len(each["messages"]) == 2)
    assert body["messages"] == [
        {"role": "system", "content": "Say ADD."},
        {"role": "user", "content": "Näh 🙂\n<|im_end|>"},
    ]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("some/model-1", 0.5, 0.9, 9)
    rows.extend({0: asked.chat.reply("And \udcff now?", ended=True)})
    rows.sample([0], SAMPLING)
    later = fake.asked(CHAT)[-1]
    assert [each["role"] for each in later["messages"]] == ["system", "user", "assistant", "user"]
    assert later["messages"][2]["content"] == said
    assert later["messages"][3]["content"] == "And \ufffd now?", "half a character is no text that can be sent"
    assert len({each["seed"] for each in fake.asked(CHAT)}) == 3, "a seed per row and turn"
    rows.drop([1])


def test_a_seed_follows_from_the_row(fake: FakeVllm) -> None:
    for _ in range(2):
        policy(fake).open([opening("x")], [5]).sample([0], SAMPLING)
    first, second = fake.asked(CHAT)
    assert first == second


def test_an_answer_that_was_cut_is_told_and_the_limit_has_the_name_that_is_set(fake: FakeVllm) -> None:
    choice = {"message": {"content": None}, "finish_reason": "length"}
    fake.faults[CHAT] = lambda body: (200, {"choices": [choice]})
    found = policy(fake, limit="max_completion_tokens").open([opening("x")], [1]).sample([0], SAMPLING)
    assert found[0].stop_reason is StopReason.length and found[0].token_ids == []
    assert fake.asked(CHAT)[0]["max_completion_tokens"] == 9 and "max_tokens" not in fake.asked(CHAT)[0]


def test_what_an_endpoint_refuses_can_be_left_out(fake: FakeVllm) -> None:
    policy(fake, leave_out=["seed", "top_p"]).open([opening("x")], [1]).sample([0], SAMPLING)
    policy(fake, leave_out=["seed"]).open([opening("x")], [1]).sample([0], SAMPLING)
    first, second = fake.asked(CHAT)
    assert first.keys() == {"model", "messages", "temperature", "max_tokens"} and second.keys() - first.keys() == {
        "top_p"
    }


def test_messages_can_be_read_back_whatever_they_hold() -> None:
    chat = EndpointChat()
    ids = [*opening("", "a\ud800"), *chat.answer("b"), *chat.reply("c", ended=True)]
    assert [each["content"] for each in messages_of(ids)] == ["", "a\ud800", "b", "c"]
    assert ids == [*opening("", "a\ud800"), ord("b"), *chat.reply("c", ended=False)]
    found = load_chat(resolve_model("endpoint:m"))
    assert isinstance(found, EndpointChat)


def test_the_key_is_sent_and_never_told(fake: FakeVllm, capfd: pytest.CaptureFixture[str]) -> None:
    fake.faults[CHAT] = lambda body: (401, {"error": f"the key {KEY} is wrong"})
    with pytest.raises(BadInput, match=r"with 401: .*the key \(the key\) is wrong") as raised:
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert fake.requests[0][2]["Authorization"] == f"Bearer {KEY}"
    assert len(fake.requests) == 1, "a refusal is not tried again"
    assert KEY not in str(raised.value) + "".join(capfd.readouterr())


def test_a_key_from_a_file_has_a_line_break_at_its_end_and_works(
    fake: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for around in ("{}\n", "{}\r\n", " {} "):
        monkeypatch.setenv("A_KEY", around.format(KEY))
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
        assert fake.requests[-1][2]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key", ["sk-very\nsecret", "sk-very\rsecret", "sk-very-sécret", "sk-very\tsecret"])
def test_a_key_that_no_header_can_hold_is_refused_by_the_name_of_its_variable(
    fake: FakeVllm, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("A_KEY", key)
    server = ServerConfig(address=fake.address, key_variable="A_KEY")
    for refused in (
        lambda: policy(fake).open([opening("x")], [1]).sample([0], SAMPLING),
        lambda: check_endpoint("judge", server),
        lambda: check_server("judge", server, 512),
    ):
        with pytest.raises(BadInput, match="the key in the variable A_KEY cannot be sent") as raised:
            refused()
        told = "".join(traceback.format_exception(raised.value)).lower()
        assert not any(part in told for part in ("sk-", "very", "cret"))
    assert not fake.requests


def test_an_error_on_the_way_tells_no_key(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> Any:
        raise httpx.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'")

    monkeypatch.setattr("httpx.Client.request", refuse)
    with pytest.raises(EngineDied, match=r"cannot be reached \(LocalProtocolError: .*Bearer \(the key\)") as raised:
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_a_busy_endpoint_is_waited_for_as_long_as_it_asks(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, slept = iter(["30", "0", "3600", "Wed, 21 Oct 2026 07:28:00 GMT"]), []
    plain = httpx.Client.request

    def busy(client: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        if (seconds := next(asked, None)) is None:
            return plain(client, *arguments, **options)
        return httpx.Response(429, headers={"Retry-After": seconds}, request=httpx.Request("POST", fake.address))

    monkeypatch.setattr("httpx.Client.request", busy)
    monkeypatch.setattr("crl.policies.serving.Client._pause", slept.append)
    policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert slept == [30.0, 2.0, 60.0, 8.0]


def test_what_was_given_up_is_not_sent_again(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C does not wait for tries that are still to come, and nobody pays for them."""
    monkeypatch.setattr("crl.policies.serving.Client._pause", PAUSE)
    plain = httpx.Client.request

    def busy(client: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        plain(client, *arguments, **options)
        return httpx.Response(429, headers={"Retry-After": "60"}, request=httpx.Request("POST", fake.address))

    monkeypatch.setattr("httpx.Client.request", busy)
    session = policy(fake).open([opening("x"), opening("y")], [1, 2])
    session.begin([0, 1], SAMPLING)
    wait_until(lambda: len(fake.requests) == 2, "both were asked")
    session.close()
    assert len(fake.requests) == 2


def test_a_busy_endpoint_is_tried_again_and_a_dead_one_named(fake: FakeVllm) -> None:
    codes = iter([429, 503])
    fake.faults[CHAT] = lambda body: (code, {}) if (code := next(codes, None)) else None
    policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert len(fake.requests) == 3
    fake.faults[CHAT] = lambda body: (503, {"error": "overloaded"})
    with pytest.raises(EngineDied, match=r"endpoint:some/model-1 answered .* with 503: .*overloaded"):
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert len(fake.requests) == 8


@pytest.mark.parametrize(
    ("code", "tries"),
    [(408, 5), (429, 5), (500, 5), (504, 5), (520, 5), (524, 5), (529, 5), (501, 1), (505, 1), (400, 1), (422, 1)],
)
def test_what_may_pass_is_tried_again_and_a_refusal_is_not(fake: FakeVllm, code: int, tries: int) -> None:
    fake.faults[CHAT] = lambda body: (code, {"error": "no such parameter: seed"})
    with pytest.raises(EngineDied if tries > 1 else BadInput, match=f"with {code}: .*no such parameter: seed"):
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert len(fake.requests) == tries


@pytest.mark.parametrize(
    ("code", "address"), [(401, 1), (403, 1), (404, 1), (307, 1), (400, 0), (413, 0), (422, 0), (501, 0)]
)
def test_a_refusal_is_blamed_on_the_address_only_where_it_says_so(fake: FakeVllm, code: int, address: int) -> None:
    fake.faults[CHAT] = lambda body: (code, {})
    with pytest.raises(BadInput) as raised:
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)
    assert ("the model's name and the key" in str(raised.value)) == bool(address)
    assert ("its answer above" in str(raised.value)) == (not address)


def test_a_redirect_is_not_followed_with_the_key(fake: FakeVllm) -> None:
    fake.faults[CHAT] = lambda body: (307, {})
    with pytest.raises(BadInput, match="with 307"):
        policy(fake).open([opening("x")], [1]).sample([0], SAMPLING)


def test_a_row_as_long_as_the_context_is_named(fake: FakeVllm) -> None:
    rows = policy(fake, context=40).open([opening("x" * 50)], [1])
    with pytest.raises(PromptTooLong, match="row 0 has 52 characters"):
        rows.sample([0], SAMPLING)


def test_what_is_missing_is_said_before_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="role judge has the engine openai and no address"):
        check_endpoint("judge", ServerConfig())
    monkeypatch.delenv("A_KEY", raising=False)
    server = ServerConfig(address="https://host/v1", key_variable="A_KEY")
    with pytest.raises(BadInput, match="the variable A_KEY is not set") as raised:
        check_endpoint("judge", server)
    assert raised.value.where == "runtime.servers.judge.key_variable"
    monkeypatch.setenv("A_KEY", "\n")
    with pytest.raises(BadInput, match="the variable A_KEY is not set, or empty"):
        check_endpoint("judge", server)


def test_an_endpoint_that_nobody_is_behind_is_refused_before_work_starts(fake: FakeVllm) -> None:
    server = ServerConfig(address=f"{fake.address}/v1", key_variable="A_KEY", answer_seconds=0.2)
    for code in (200, 401, 404):
        fake.faults["/v1/models"] = lambda body, code=code: (code, {})
        check_endpoint("judge", server)
    assert not any(KEY in str(headers) for _, _, headers in fake.requests), "the key is not sent"
    ended = threading.Event()
    fake.faults["/v1/models"] = lambda body: (200, {}) if ended.wait(60) else None
    with pytest.raises(BadInput, match=r"of role judge cannot be reached: did not answer in 0\.2 seconds") as raised:
        check_endpoint("judge", server)
    ended.set()
    assert raised.value.where == "runtime.servers.judge.address"
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        gone = ServerConfig(address=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(BadInput, match=r"of role judge cannot be reached: .*refused"):
            check_endpoint("judge", gone)


def test_a_policy_without_an_address_names_its_model_and_no_key_of_the_config_that_is_none() -> None:
    role = RoleConfig(model="endpoint:some/model-1", engine=OpenAIEngine())
    with pytest.raises(BadInput, match=r"the role with the model endpoint:some/model-1 has .* no address") as raised:
        load_policy(role, resolve_model(role.model).path, None, threads=1, server=None)
    assert raised.value.where == "runtime.servers.<role>.address"
