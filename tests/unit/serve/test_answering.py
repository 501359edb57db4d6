"""Which names are answered, which conversation a call belongs to, what guides it, and how it is sampled."""

from __future__ import annotations

from typing import Any

import pytest

from crl.config import SamplingConfig
from crl.gateway.messages import ApiError, ChatRequest
from crl.protocols import ParsedTurn
from crl.serve import answering as module
from crl.serve.answering import Answering, Conversation
from tests.unit.serve.calls import MARKED, FakeAgent, assistant, request


def answer(made: Answering, asked: ChatRequest, text: str) -> Conversation:
    found = made.conversation(asked)
    made.answered(found, asked, ParsedTurn(text))
    return found


def test_a_family_is_named_where_there_are_several() -> None:
    assert Answering(FakeAgent()).models == ("actor", "actor/lake")
    several = Answering(FakeAgent(["lake", "maze"]))
    assert several.models == ("actor/lake", "actor/maze")
    assert several.conversation(request("Hi.", model="actor/maze")).family == "maze"
    for name in ("actor", "gpt-4", "actor/sea"):
        with pytest.raises(ApiError, match="there are actor/lake, actor/maze") as refused:
            several.conversation(request("Hi.", model=name))
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")


def test_a_conversation_is_retrieved_for_once_with_its_first_user_message() -> None:
    agent = FakeAgent()
    made = Answering(agent)
    first = answer(made, request(*MARKED), "left")
    assert agent.asked == [("lake", "Goal\nLook.")], "the mark is no part of the query"
    assert first.shown == "Advice: E1\n"
    goes_on = request(*MARKED, assistant("left"), "More.")
    assert answer(made, goes_on, "up") is first
    assert answer(made, request(*MARKED, assistant("left"), "More.", assistant("up"), "And?"), "up") is first
    assert made.conversation(goes_on) is first, "again from an earlier answer"
    assert made.conversation(request(*MARKED, assistant("other words"), "And?")) is first, "it began alike"
    assert made.conversation(request("So?", assistant("up"), "And?")) is not first
    assert made.conversation(request(*MARKED)) is not first, "without an answer it begins"
    assert len(agent.asked) == 3


def test_of_conversations_that_read_alike_a_call_can_name_its_own() -> None:
    made = Answering(FakeAgent())
    one, two = (answer(made, request("Hi."), "left") for _ in range(2))
    goes_on = ("Hi.", assistant("left"), "More.")
    assert made.conversation(request(*goes_on)) is two
    assert made.conversation(request(*goes_on, conversation_id=one.name)) is one
    assert made.conversation(request("Hi.", conversation_id="forgotten")) not in (one, two)


def test_an_agent_without_a_near_experience_or_without_its_bank_shows_none() -> None:
    agent = FakeAgent(knows=False)
    assert Answering(agent).conversation(request(*MARKED)).shown == ""
    assert Answering(agent, bank=False).conversation(request(*MARKED)).guidance is None
    assert len(agent.asked) == 1


def test_a_share_of_conversations_is_free_and_stays_so() -> None:
    agent = FakeAgent()
    made = Answering(agent, free_share=0.5)
    begun = [answer(made, request(f"Task {number}"), "left") for number in range(64)]
    free = [each for each in begun if each.guidance is None]
    assert 10 < len(free) < 54  # beyond that lies one case in 10^8
    assert len(agent.asked) == 64 - len(free)
    for number, each in enumerate(begun):
        assert made.conversation(request(f"Task {number}", assistant("left"), "More.")) is each


def test_settings_of_a_call_count_and_all_others_are_the_evaluation_s() -> None:
    made = Answering(FakeAgent())
    base = made.sampling(request("Hi."))
    assert base == SamplingConfig(temperature=0.5, top_k=7, max_new_tokens=20, stop_strings=["</a>"])
    given = {"temperature": 0, "top_p": 0.25, "max_tokens": 9, "stop": "\n"}
    found = made.sampling(request("Hi.", **given))
    assert (found.temperature, found.top_p, found.top_k, found.max_new_tokens) == (0.001, 0.25, 7, 9)
    assert found.stop_strings == ["</a>", "\n"]
    assert made.sampling(request("Hi.", max_tokens=3, max_completion_tokens=8)).max_new_tokens == 8


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"temperature": "hot"}, "temperature"), ({"temperature": True}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": -1}, "temperature"), ({"top_p": 2}, "top_p"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"), ({"max_completion_tokens": "1"}, "max_completion_tokens"),
        ({"seed": 1e30}, "seed"), ({"seed": 1 << 80}, "seed"), ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 5}}, "logit_bias"), ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"stop": [*"abcdefgh"]}, "stop"), ({"stop": ["x" * 65]}, "stop"), ({"stop": [""]}, "stop"),
        ({"conversation_id": {}}, None), ({"conversation_id": "x" * 300}, "conversation_id"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert request("Hi.", **settings).conversation == ""
        return
    with pytest.raises(ApiError) as refused:
        Answering(FakeAgent()).sampling(request("Hi.", **settings))
    assert (refused.value.status, refused.value.param) == (400, param)


def test_what_was_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONVERSATIONS", 3)
    made = Answering(FakeAgent())
    begun = [answer(made, request(f"{number}"), "left") for number in range(3)]

    def on(number: int) -> Conversation:
        return made.conversation(request(f"{number}", assistant("left"), "More."))

    assert on(0) is begun[0]
    answer(made, request("3"), "left")
    assert on(0) is begun[0] and on(2) is begun[2] and on(1) is not begun[1]
    monkeypatch.setattr(module, "MOST_SIZE", 2_000)
    answer(made, request("x" * 3_000), "left")
    assert (made._size, len(made._held), made._by_key) == (0, 0, {}), "one that is too large by itself is not held"
