"""Rows sampled by a server: what is sent, what is kept, and what is said where an answer cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from crl.config import SamplingConfig
from crl.config.engines import ServerConfig
from crl.errors import BadInput, EngineDied, PromptTooLong
from crl.policies.served import GENERATE, ServedSession
from crl.policies.serving import Client
from crl.policies.turn import StopStrings
from crl.protocols import Sampled, StopReason
from tests.fake_vllm import FakeVllm, serving
from tests.processes import PATIENCE_SECONDS, wait_until

END = frozenset({4})
WEIGHTS = "w1"
SAMPLING = SamplingConfig(temperature=0.7, max_new_tokens=6)


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with serving() as found:
        found.version = WEIGHTS
        yield found


def client(fake: FakeVllm, **settings: Any) -> Client:
    return Client("the server", ServerConfig(**settings), fake.address)


def session(fake: FakeVllm, prompts: Any = ((7, 8), (9,)), seeds: Any = (1, 2), **settings: Any) -> ServedSession:
    return ServedSession(client(fake, **settings), WEIGHTS, END, 40, prompts, seeds)


def test_a_row_is_its_prompt_what_was_sampled_and_what_was_appended(fake: FakeVllm) -> None:
    rows = session(fake)
    first = rows.sample([0, 1], SAMPLING)
    rows.extend({0: [11, 12]})
    again = rows.sample([0], SAMPLING)
    sent = [body["token_ids"] for body in fake.asked(GENERATE)]
    assert sorted(sent[:2]) == [[7, 8], [9]]
    assert sent[2] == [7, 8, *first[0].token_ids, 11, 12]
    assert rows.length(0) == len(sent[2]) + len(again[0].token_ids)
    assert rows.length(1) == 1 + len(first[1].token_ids)
    for turn in (*first.values(), *again.values()):
        assert turn.logprobs == [-index / 10 for index in turn.token_ids] and turn.drawn is None
        ended = turn.token_ids[-1] == 4
        assert turn.stop_reason is (StopReason.end_of_turn if ended else StopReason.length)
        assert ended or len(turn.token_ids) == 6
    rows.drop([1])
    with pytest.raises(KeyError):
        rows.length(1)


def test_a_replaced_row_is_sent_as_it_is_and_draws_on(fake: FakeVllm) -> None:
    rows, others = session(fake), session(fake)
    for each in (rows, others):
        each.sample([0], SAMPLING)
    kept = [7, 9]
    rows.replace(0, kept)
    kept.append(10)
    assert rows.length(0) == 2
    rows.sample([0], SAMPLING)
    others.sample([0], SAMPLING)
    asked = fake.asked(GENERATE)
    assert asked[2]["token_ids"] == [7, 9]
    assert (
        asked[2]["sampling_params"]["seed"]
        == asked[3]["sampling_params"]["seed"]
        != asked[0]["sampling_params"]["seed"]
    )
    rows.replace(0, kept, seed=5)
    rows.sample([0], SAMPLING)
    session(fake, seeds=[5, 6]).sample([0], SAMPLING)
    again, fresh = (each["sampling_params"]["seed"] for each in fake.asked(GENERATE)[4:])
    assert again == fresh, "with a seed its stream begins anew"


def test_a_request_says_how_to_sample_and_which_weights_may_have_read_the_prefix(fake: FakeVllm) -> None:
    session(fake, prompts=[[7] * 37], seeds=[2**200]).sample([0], SAMPLING)
    [body] = fake.asked(GENERATE)
    asked = body["sampling_params"]
    assert body["cache_salt"] == WEIGHTS
    assert (asked["temperature"], asked["max_tokens"], asked["stop_token_ids"]) == (0.7, 3, [4]), "the context has 40"
    assert asked["ignore_eos"] and 0 <= asked["seed"] < 2**63


def test_a_stop_string_ends_a_turn_with_the_id_that_completes_it(fake: FakeVllm) -> None:
    def stops(strings: Any) -> StopStrings:
        return StopStrings(strings, lambda ids: "".join(chr(60 + index) for index in ids))

    def sample(**settings: Any) -> Any:
        rows = ServedSession(client(fake), WEIGHTS, END, 40, [[7], [8]], [1, 2], stops=stops)
        found = rows.sample([0, 1], SAMPLING.model_copy(update=settings))
        return found, [rows.length(row) for row in (0, 1)]

    free, _ = sample()
    string = "".join(chr(60 + index) for index in free[0].token_ids[1:3])
    stopped, lengths = sample(stop_strings=["never", string])
    assert stopped[0].token_ids == free[0].token_ids[:3] and stopped[0].logprobs == free[0].logprobs[:3]
    assert stopped[0].stop_reason is StopReason.stop_string and stopped[1] == free[1]
    assert lengths == [1 + 3, 1 + len(free[1].token_ids)], "what came behind it is no part of the row"


def test_what_a_row_draws_follows_from_its_seed_and_turn_and_not_from_the_rows_beside_it(fake: FakeVllm) -> None:
    prompts = [[5 + row] for row in range(9)]
    together = session(fake, prompts, range(9)).sample(range(9), SAMPLING)
    for row in range(9):
        assert session(fake, [prompts[row]], [row], requests=1).sample([0], SAMPLING)[0] == together[row]
    seeds = {body["sampling_params"]["seed"] for body in fake.asked(GENERATE)}
    assert len(seeds) == 9
    rows = session(fake, [[5]], [0])
    rows.sample([0], SAMPLING)
    rows.sample([0], SAMPLING)
    assert fake.asked(GENERATE)[-1]["sampling_params"]["seed"] not in seeds, "the second turn has a seed of its own"


def test_answers_of_its_own_take_a_request_for_each_id_that_leaves_a_choice(fake: FakeVllm) -> None:
    tree = {10: {4: {}}, 20: {21: {4: {}}, 22: {4: {}}}}
    rows = session(fake, [[7]] * 8, range(8))
    found = rows.sample(range(8), SAMPLING, dict.fromkeys(range(8), tree))
    assert {tuple(turn.token_ids) for turn in found.values()} == {(10, 4), (20, 21, 4), (20, 22, 4)}
    for turn in found.values():
        two = turn.token_ids[0] == 20
        assert turn.drawn == ([1, 1, 0] if two else [1, 0]) and turn.stop_reason is StopReason.end_of_turn
        assert turn.choices == ([[10, 20], [21, 22]] if two else [[10, 20]])
        assert turn.logprobs[-1] == 0.0 and turn.logprobs[0] == -turn.token_ids[0] / 10
    allowed = [body["sampling_params"]["allowed_token_ids"] for body in fake.asked(GENERATE)]
    assert set(map(tuple, allowed)) == {(10, 20), (21, 22)}
    assert all(body["sampling_params"]["max_tokens"] == 1 for body in fake.asked(GENERATE))


def test_a_row_that_is_answered_late_holds_up_no_other(fake: FakeVllm) -> None:
    """Row 0's answer comes after row 1 has had three turns; what is drawn is that of rows in step."""
    in_step = session(fake)
    expected = {0: in_step.sample([0], SAMPLING)[0], 1: [in_step.sample([1], SAMPLING)[1] for _ in range(3)]}
    other_played = threading.Event()

    def late(body: Any) -> None:
        assert body["token_ids"] != [7, 8] or other_played.wait(PATIENCE_SECONDS)

    fake.faults[GENERATE] = late
    rows = session(fake)
    turns: list[Sampled] = []
    rows.begin([0, 1], SAMPLING)
    while len(turns) < 3:
        found = rows.advance()
        assert list(found) == [1], "row 0 is still waiting"
        turns.append(found[1])
        if len(turns) < 3:
            rows.begin([1], SAMPLING)
    other_played.set()
    assert {0: rows.advance()[0], 1: turns} == expected and rows.advance() == {}


def test_where_one_answer_fails_none_is_under_way_any_more(fake: FakeVllm) -> None:
    fake.faults[GENERATE] = lambda body: (500, {"error": "out of memory"}) if body["token_ids"] == [9] else None
    rows = session(fake, requests=1)
    rows.begin([1, 0], SAMPLING)
    with pytest.raises(EngineDied, match="out of memory"):
        rows.advance()
    assert rows.advance() == {} and rows.length(0) == 2


def test_a_session_that_is_left_asks_for_nothing_any_more(fake: FakeVllm) -> None:
    answered = threading.Event()

    def late(body: Any) -> None:
        assert answered.wait(PATIENCE_SECONDS)

    fake.faults[GENERATE] = late
    shared = client(fake, requests=1)
    rows = ServedSession(shared, WEIGHTS, END, 40, [[7], [8], [9]], [1, 2, 3])
    rows.begin([0, 1, 2], SAMPLING)
    begun = list(rows._begun)
    closing = threading.Thread(target=rows.close)
    closing.start()
    wait_until(lambda: sum(turn.cancelled() for turn in begun) >= 2, "what waits is given up")
    answered.set()
    closing.join()
    assert rows.advance() == {} and len(fake.asked(GENERATE)) <= 1, "what waited was not sent"
    other = ServedSession(shared, WEIGHTS, END, 40, [[11]], [4])
    assert set(other.sample([0], SAMPLING)) == {0}


def test_a_row_without_room_is_named(fake: FakeVllm) -> None:
    with pytest.raises(PromptTooLong, match="Row 1 has 40 tokens"):
        session(fake, [[7], [8] * 40])
    rows = session(fake, [[7] * 39], [1])
    rows.extend({0: [1]})
    with pytest.raises(PromptTooLong, match="Row 0 has 40 tokens"):
        rows.sample([0], SAMPLING)
    assert not fake.requests


GOOD = {"token_ids": [7], "logprobs": {"content": [{"token_id": 7, "logprob": -1.0}]}}
SPANS = [{"version": WEIGHTS, "start": 0, "end": 1}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, {"error": "engine is dead"}), "answered /inference/v1/generate with 500.*engine is dead"),
        ((200, b"<html>"), "answered with no JSON: <html>"),
        ((200, {"choices": []}), "gave an answer that is none"),
        ((200, {"choices": [{**GOOD, "weight_versions": None}]}), "the weights of no version"),
        ((200, {"choices": [{**GOOD, "weight_versions": [*SPANS, {"version": "w0"}]}]}), "the weights w0, w1"),
        ((200, {"choices": [{**GOOD, "token_ids": [8], "weight_versions": SPANS}]}), "log-probabilities of others"),
        ((200, {"choices": [{**GOOD, "weight_versions": SPANS}]}), "ended a turn after 1 of 6 tokens for no reason"),
    ],
)
def test_an_answer_that_cannot_be_is_an_engine_that_died(fake: FakeVllm, answer: Any, said: str) -> None:
    fake.faults[GENERATE] = lambda body: answer
    with pytest.raises(EngineDied, match=said) as raised:
        session(fake).sample([0, 1], SAMPLING)
    assert raised.value.transient and raised.value.where


def test_a_refused_request_is_not_tried_again(fake: FakeVllm) -> None:
    fake.faults[GENERATE] = lambda body: (400, {"error": "prompt is too long"})
    with pytest.raises(BadInput, match=r"with 400: .*too long"):
        session(fake, [[7]], [1]).sample([0], SAMPLING)
    assert len(fake.requests) == 1


def test_a_server_that_hangs_and_one_that_is_gone_are_named(fake: FakeVllm) -> None:
    import threading

    let_go = threading.Event()
    fake.faults[GENERATE] = lambda body: (let_go.wait(PATIENCE_SECONDS), None)[1]
    with pytest.raises(EngineDied, match=r"did not answer /inference/v1/generate in time"):
        session(fake, answer_seconds=0.2).sample([0], SAMPLING)
    let_go.set()
    gone = Client("the server", ServerConfig(), "http://127.0.0.1:9")
    with pytest.raises(EngineDied, match="cannot be reached"):
        ServedSession(gone, WEIGHTS, END, 40, [[7]], [1]).sample([0], SAMPLING)


def test_a_failed_answer_is_told_to_whoever_owns_the_server(fake: FakeVllm) -> None:
    fake.faults[GENERATE] = lambda body: (503, {})
    rows = ServedSession(client(fake), WEIGHTS, END, 40, [[7]], [1], lambda error: EngineDied(f"told: {error.found}"))
    with pytest.raises(EngineDied, match=r"told: the server answered .* 503"):
        rows.sample([0], SAMPLING)


def test_ids_that_are_no_tokens_are_biased_away_and_break_a_turn_that_has_one_in_spite_of_it(fake: FakeVllm) -> None:
    absent = [*range(30, 40), 51]

    def rows() -> ServedSession:
        return ServedSession(client(fake), WEIGHTS, END, 400, [[7], [8]], [1, 2], absent=absent)

    tree = {10: {4: {}}, 20: {4: {}}}
    rows().sample([0, 1], SAMPLING, dict.fromkeys((0, 1), tree))
    assert all("logit_bias" not in body["sampling_params"] for body in fake.asked(GENERATE)), "among few ids none is"
    found = rows().sample([0, 1], SAMPLING.model_copy(update={"max_new_tokens": 100}))
    bias = fake.asked(GENERATE)[-1]["sampling_params"]["logit_bias"]
    assert {int(index) for index in bias} == set(absent) and max(bias.values()) <= -1e4
    plain = ServedSession(client(fake), WEIGHTS, END, 400, [[7], [8]], [1, 2])
    whole = plain.sample([0, 1], SAMPLING.model_copy(update={"max_new_tokens": 100}))
    assert "logit_bias" not in fake.asked(GENERATE)[-1]["sampling_params"], "a server that need not know is not told"
    for row, turn in found.items():
        length = next((i for i, index in enumerate(whole[row].token_ids) if index in absent), None)
        assert turn.token_ids == whole[row].token_ids[:length] and turn.logprobs == whole[row].logprobs[:length]
        assert turn.error == (None if length is None else "no_token")
    assert any(turn.error for turn in found.values())


def test_an_id_that_was_not_allowed_is_an_engine_that_died(fake: FakeVllm) -> None:
    answer = {**GOOD, "weight_versions": SPANS}
    fake.faults[GENERATE] = lambda body: (200, {"choices": [answer]})
    with pytest.raises(EngineDied, match="drew the id 7, which it was not allowed"):
        session(fake).sample([0], SAMPLING, {0: {10: {4: {}}, 20: {4: {}}}})


def test_a_cut_is_asked_for_where_it_is_set(fake: FakeVllm) -> None:
    whole = session(fake).sample([0], SAMPLING)
    left = session(fake).sample([0], SAMPLING.model_copy(update={"top_p": 0.8, "top_k": 20, "min_p": 0.05}))
    plain, cut = (body["sampling_params"] for body in fake.asked(GENERATE))
    assert not {"top_p", "top_k", "min_p"} & plain.keys()
    assert (cut["top_p"], cut["top_k"], cut["min_p"]) == (0.8, 20, 0.05)
    assert left[0].renormalized and not whole[0].renormalized, "the server's log-probabilities are of what is left"
