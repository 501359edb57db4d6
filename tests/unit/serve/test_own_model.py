"""The loop that samples: what the model reads, calls side by side, streams, and what goes wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from crl.config.roles import SummaryAt, SummaryHistory, WindowHistory
from crl.gateway.messages import ApiError
from crl.gateway.server import Call
from crl.protocols import ParsedTurn
from crl.serve import own_model
from crl.serve.answering import Answering
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.serve.calls import MARKED, FakeAgent, LetterPolicy, answered, assistant, request, running

OPENING = "[system:S.][user:Goal\nAdvice: E1\nLook.]"


def test_the_model_reads_the_experience_at_the_mark_and_a_conversation_goes_on_in_ids() -> None:
    policy = LetterPolicy(lambda prompt: "{Hm}left")
    with running(policy, Answering(FakeAgent())) as model:
        first = answered(model, *MARKED, seed=5)
        answered(model, *MARKED, assistant("left"), "More.")
        answered(model, "Other.")
    assert first.parsed == ParsedTurn("left", "Hm") and first.entry_ids == ("x-1",)
    (row, shown, seed), (again, second, _), (other, third, _) = policy.prompts
    assert (shown, seed) == (OPENING, 5)
    assert second == OPENING + "{Hm}left\x00[user:More.]" and again == row, "thoughts stay, where the row holds them"
    assert third == "[system:Advice: E2][user:Other.]"
    assert len(policy.sessions) == 1 and other in range(4)


def test_the_history_rule_is_that_of_training() -> None:
    texts = iter(["{Hm}left", "up", "down", "right", "left"])
    policy = LetterPolicy(lambda prompt: next(texts))
    with running(policy, Answering(FakeAgent(), bank=False), history="strip_thoughts") as model:
        answered(model, "A")
        answered(model, "A", assistant("left"), "B")
    assert policy.prompts[-1][1] == "[user:A]left\x00[user:B]"
    texts = iter(["one", "two", "three", "four"])
    policy = LetterPolicy(lambda prompt: next(texts))
    policy.context = 62  # with 20 for the answer, 42 are left
    asked: list[Any] = ["Opening"]
    with running(policy, Answering(FakeAgent(), bank=False), history=WindowHistory(window=1)) as model:
        for number in range(4):
            asked += [assistant(answered(model, *asked).parsed.content), f"B{number}"]
    prompts = [prompt for _, prompt, _ in policy.prompts]
    assert prompts[2] == "[user:Opening]one\x00[user:B0]two\x00[user:B1]"
    assert prompts[3] == "[user:Opening]three\x00[user:B2]", "the opening and the last turn"


def test_a_summary_stands_for_what_was_before_it_and_no_client_sees_it() -> None:
    policy = LetterPolicy(lambda prompt: "Sum." if "Sum up" in prompt[-20:] else "left")
    history = SummaryHistory(summarize=SummaryAt(at=80))
    asked: list[Any] = ["Opening"]
    with running(policy, Answering(FakeAgent(), bank=False), history=history) as model:
        for number in range(3):
            answer = answered(model, *asked)
            assert answer.parsed.content == "left" and answer.number == number
            asked += [assistant("left"), f"B{number} " + "x" * 10]
        again = answered(model, *asked[:-2])
    prompts = [prompt for _, prompt, _ in policy.prompts]
    whole = f"[user:Opening]left\x00[user:B0 {'x' * 10}]left\x00"
    assert prompts[2] == f"{whole}[user:Sum up Opening.]"
    assert prompts[3] == f"[user:Opening]Sum.\x00[user:B1 {'x' * 10}]"
    assert prompts[4:] == prompts[3:4] and again.parsed.content == "left", "asked again, it sums up no more"


def test_calls_are_sampled_side_by_side_with_settings_of_their_own() -> None:
    started = threading.Event()
    policy = LetterPolicy(lambda prompt: "x" * 200)
    policy.before_step = lambda: started.wait(PATIENCE_SECONDS)
    calls = [Call(request(f"{number}", max_tokens=5 + number)) for number in range(9)]
    with running(policy, Answering(FakeAgent())) as model:
        model.submit(calls[0])
        wait_until(lambda: bool(policy.sampled), "the first is begun")
        for call in calls[1:]:
            model.submit(call)
        started.set()
        found = [call.result.result(PATIENCE_SECONDS) for call in calls]
    assert policy.widest == 4, "as many as there are rows"
    assert [(each.completion_tokens, each.finish_reason) for each in found] == [(5 + n, "length") for n in range(9)]


def test_a_stream_shows_what_stays_and_no_beginning_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_model, "SHOWN_SECONDS", 0.0)
    shown: list[ParsedTurn] = []
    policy = LetterPolicy(lambda prompt: "{I think of a long thought}one two ENDED three")
    call = Call(request("Hi.", stream=True, stop="END", max_tokens=60))
    call.wake = lambda: shown.append(call.so_far.parsed) if call.so_far is not None else None
    with running(policy, Answering(FakeAgent())) as model:
        model.submit(call)
        answer = call.result.result(PATIENCE_SECONDS)
    assert answer.parsed == ParsedTurn("one two ", "I think of a long thought")
    contents = [each.content for each in shown]
    assert contents == sorted(contents, key=len) and len(set(contents)) > 4, "more and more"
    assert all("one two ".startswith(each) for each in contents)
    assert {each.thought for each in shown} >= {"I think", "I think of a long thought"}


def test_a_stream_that_may_call_tools_holds_its_text_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_model, "SHOWN_SECONDS", 0.0)
    tool = {"type": "function", "function": {"name": "go"}}
    call = Call(request("Hi.", stream=True, tools=[tool]))
    with running(LetterPolicy(), Answering(FakeAgent())) as model:
        model.submit(call)
        assert call.result.result(PATIENCE_SECONDS).parsed.content == "left"
    assert call.so_far is None


def test_a_call_whose_client_went_ends() -> None:
    policy = LetterPolicy(lambda prompt: "left" if "stays" in prompt else "x" * 10_000)
    policy.context = 20_000
    gone = Call(request("goes", max_tokens=10_000))
    steps = threading.Event()
    policy.before_step = lambda: steps.wait(PATIENCE_SECONDS)
    with running(policy, Answering(FakeAgent()), rows=1) as model:
        model.submit(gone)
        wait_until(lambda: bool(policy.sampled), "it is begun")
        gone.gone = True
        steps.set()
        assert answered(model, "stays").parsed.content == "left"
    assert policy.sessions[0].given_up == [0] and not gone.result.done()


def test_what_goes_wrong_is_the_answer_of_its_own_call(capsys: pytest.CaptureFixture[str]) -> None:
    policy = LetterPolicy()
    with running(policy, Answering(FakeAgent())) as model:
        long = answered(model, "x" * 500)
        assert isinstance(long, ApiError) and long.code == "context_length_exceeded" and "400 tokens" in str(long)
        assert answered(model, "Hi.", model="gpt").code == "model_not_found"
        twice = answered(model, {"role": "system", "content": "{experience}"}, "{experience}")
        assert twice.status == 400 and "once" in str(twice)
        policy.say = lambda prompt: 1 / 0  # type: ignore[return-value]
        assert answered(model, "Hi.").code == "internal"
        policy.say = lambda prompt: "left"

        def broken() -> None:
            policy.before_step = lambda: None
            raise RuntimeError("out of memory")

        policy.before_step = broken
        assert answered(model, "Hi.").status == 500
        assert answered(model, "Hi.").parsed.content == "left"
    assert len(policy.sessions) == 2, "a new session took its place"
    assert "ZeroDivisionError" in (said := capsys.readouterr().err) and "out of memory" in said
