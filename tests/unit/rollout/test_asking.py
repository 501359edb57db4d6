"""Search-and-ask in a wave: who may ask, what a question costs, and whose tokens are whose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crl.config import ENVIRONMENTS, EnvironmentConfig, SamplingConfig, SearchAndAskConfig
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.realms import RealmsConfig
from crl.protocols import Advice, Inquiry, Start
from crl.records import Generation
from crl.rollout.actions import parse_question
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from tests.recipe_runs import requires
from tests.unit.rollout.fakes import OFFER, CharacterChat, Corridor, ScriptedPolicy, actor_prompt, method, task

ASKING = SearchAndAskConfig(uses=2, max_characters=12)
SAMPLING = SamplingConfig(max_new_tokens=40)
MOVES = ("north", "pick up")


class Answers:
    """Answers `<question>!`, and remembers what it was asked, batch by batch; another `reason` gives no answer."""

    def __init__(self, reason: str = "ok") -> None:
        self.batches: list[list[Inquiry]] = []
        self.reason = reason

    def advise(self, inquiries: Sequence[Inquiry]) -> list[Advice]:
        self.batches.append(list(inquiries))
        return [self._one(each) for each in inquiries]

    def _one(self, inquiry: Inquiry) -> Advice:
        if self.reason != "ok":
            return Advice(self.reason)
        record = Generation(
            generation_id=f"g-{inquiry.question_id}", round=1, stage="collect", role="extractor", kind="ask",
            weights_digest="w", temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -1.0], prompt="p",
            output=f"{inquiry.question}!", stop_reason="end_of_turn",
        )  # fmt: skip
        return Advice("ok", f"{inquiry.question}!", "e2", "d2", 0.5, record)


def play(
    scripts: Sequence[Sequence[str]],
    advisor: Answers | None,
    *,
    guided: Sequence[bool] | None = None,
    seeds: Sequence[int] | None = None,
    **options: object,
) -> list[PlayedEpisode]:
    policy = ScriptedPolicy(lambda row, turn: (scripts[row][turn], True), **options)  # type: ignore[arg-type]
    guided, seeds = guided or [True] * len(scripts), seeds or [2] * len(scripts)
    slots = [
        EpisodeSlot(task(m, seeds[m]), (Guide("e1", "d1", "go right"),))
        if guided[m]
        else EpisodeSlot(task(m, seeds[m]))
        for m in range(len(scripts))
    ]
    played = play_wave(
        policy, Corridor(), slots, method=method(search_and_ask=ASKING),
        seed_of=lambda name: np.random.SeedSequence(list(name.encode())), sampling=SAMPLING, weights_digest="w",
        stage="collect", advisor=advisor,
    )  # fmt: skip
    assert policy.session is not None
    for row, each in enumerate(played):
        assert each.generations[0].token_ids == policy.session.ids[row]
        sampled = [at for first, last in policy.session.sampled_at[row] for at in range(first, last)]
        assert [at for at, value in enumerate(each.generations[0].loss_mask) if value] == sampled
    return played


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("ASK: where is it?", "word", "where is it?"),
        ("I wonder.\n ask : where?\nnorth", "word", "where?"),
        ("ASK:", "word", ""),
        ("north\nASK: where?", "word", None),
        ("pick up, or ASK: where?", "word", None),
        ("TASK: where?", "word", None),
        ("<ask>where?</ask>", "word", None),
        ("north", "word", None),
        ("<ask> where? </ask>", "tag", "where?"),
        ("<action>north</action> no, <ASK>where\nis it?</ask>", "tag", "where\nis it?"),
        ("<ask>where?</ask><action>north</action>", "tag", None),
        ("<ask><ask>where?</ask>", "tag", "where?"),
        ("<ask>one</ask><ask>two</ask>", "tag", "two"),
        ("ASK: where?", "tag", None),
        ("<ask>where?", "tag", None),
    ],
)
def test_a_turn_acts_or_asks(text: str, form: str, expected: str | None) -> None:
    assert parse_question(text, MOVES, form) == expected  # type: ignore[arg-type]


def test_long_texts_are_read_in_time() -> None:
    assert parse_question("<ask>" * 20_000 + "where?</ask>", MOVES, "tag") == "where?"
    assert parse_question("ask " * 50_000 + "\nASK: where?", MOVES, "word") == "where?"


def test_only_a_guided_episode_reads_the_offer_and_an_answer() -> None:
    script = ["ASK: where?", "right", "right"]
    advisor = Answers()
    guided, free = play([script, script], advisor, guided=[True, False])
    assert f"Advice: go right\n{OFFER}2 to go" in guided.generations[0].prompt
    assert OFFER not in free.generations[0].prompt
    assert [[each.episode_id for each in batch] for batch in advisor.batches] == [[guided.episode.episode_id]]

    assert [(turn.action, turn.valid, turn.feedback) for turn in guided.turns] == [
        ("<ask>", True, "where?!"), ("right", True, None), ("right", True, None),
    ]  # fmt: skip
    assert [(turn.action, turn.valid, turn.feedback) for turn in free.turns] == [
        ("<ask>", False, "Questions cannot be asked here."), ("right", True, None), ("right", True, None),
    ]  # fmt: skip
    assert (guided.episode.invalid_actions, free.episode.invalid_actions) == (0, 1)
    assert [each.episode.success for each in (guided, free)] == [True, True]
    assert [(each.reason_code, each.answer, each.generation_id) for each in free.questions] == [
        ("free_episode", None, None)
    ]
    assert free.answers == []
    (question,) = guided.questions
    assert (question.question, question.turn, question.reason_code) == ("where?", 0, "ok")
    assert (question.entry_id, question.content_digest, question.similarity) == ("e2", "d2", 0.5)
    assert question.generation_id == guided.answers[0].generation_id == "g-q-r1-walk-g0-m0-0"


def test_the_actor_s_question_is_trained_and_its_answer_is_read_before_what_was_seen_already() -> None:
    (played,) = play([["right", "ASK: where?", "right"]], Answers())
    ids, mask = played.generations[0].token_ids, played.generations[0].loss_mask
    asking, acting = played.turns[1], played.turns[2]
    assert "".join(map(chr, ids[asking.first_token : asking.last_token - 1])) == "ASK: where?"
    assert set(mask[asking.first_token : asking.last_token]) == {1}
    reply = ids[asking.last_token : acting.first_token]
    text = actor_prompt().following.replace("{feedback}", "where?!\n").replace("{observation}", "1 to go {x}")
    assert reply == CharacterChat().reply(text, ended=True)
    assert set(mask[asking.last_token : acting.first_token]) == {0}
    assert asking.observation == acting.observation == "1 to go {x}"


@pytest.mark.parametrize(
    ("question", "reason", "feedback"),
    [
        ("ASK:", "empty", "That asks nothing."),
        ("ASK: where is it, please?", "too_long", "That question is too long."),
        ("ASK: 123456789012", "ok", "123456789012!"),
    ],
)
def test_what_is_refused_spends_the_turn_and_no_use(question: str, reason: str, feedback: str) -> None:
    (played,) = play([[question, "ASK: a", "ASK: b", "right", "right"]], advisor := Answers())
    assert played.questions[0].reason_code == reason
    assert played.turns[0].feedback == feedback
    handed_on = 2 if reason != "ok" else 1
    assert [each.reason_code for each in played.questions[1:]] == ["ok"] * handed_on + ["uses_spent"] * (2 - handed_on)
    assert [batch[0].question_id.rsplit("-", 1)[1] for batch in advisor.batches] == (
        ["1", "2"] if reason != "ok" else ["0", "1"]
    )
    assert played.episode.invalid_actions == 1
    assert (played.episode.turns, played.episode.success) == (5, True)


@pytest.mark.parametrize(
    ("reason", "feedback"),
    [("no_entry", "Nothing is known about that."), ("prompt_too_long", "There is no answer to that.")],
)
def test_a_question_without_an_answer_is_a_use(reason: str, feedback: str) -> None:
    (played,) = play([["ASK: a", "ASK: b", "ASK: c", "right", "right"]], Answers(reason))
    assert [each.reason_code for each in played.questions] == [reason, reason, "uses_spent"]
    assert played.turns[0].feedback == feedback
    assert not played.turns[0].valid and played.episode.invalid_actions == 3


def test_asking_makes_no_episode_longer() -> None:
    """Six turns are all that the corridor gives, whoever asks, and the last one's question goes to nobody."""
    advisor = Answers()
    always, last, free = play(
        [["ASK: a"] * 6, ["hm"] * 5 + ["ASK: a"], ["ASK: a"] * 6], advisor, guided=[True, True, False]
    )
    for each in (always, last, free):
        assert (each.episode.turns, each.episode.stop_reason) == (6, "turn_limit")
    assert [each.reason_code for each in always.questions] == ["ok"] * 2 + ["uses_spent"] * 4
    assert [each.reason_code for each in last.questions] == ["episode_over"]
    assert [len(batch) for batch in advisor.batches] == [1, 1]


def guided_slot(start: Start) -> EpisodeSlot:
    """The slot of an episode that begins so and may ask, since an experience guides it."""
    return EpisodeSlot(
        task=dataclasses.replace(task(0, 7), goal=start.goal, first_observation=start.observation),
        guides=(Guide("e1", "d1", "go"),),
    )


@pytest.mark.parametrize(
    "config",
    [
        FrozenLakeConfig(max_turns=4),
        RealmsConfig(max_turns=4, longest_path=4),
        pytest.param(
            {"kind": "minihack", "id": "MiniHack-Room-5x5-v0", "max_turns": 4},
            marks=requires("minihack"),
            id="minihack",
        ),
    ],
    ids=lambda config: config.kind,
)
def test_the_turn_limit_of_an_environment_holds_for_who_asks(config: EnvironmentConfig | dict[str, Any]) -> None:
    """And what it shows stays as it was, so the actor reads the same again."""
    config = ENVIRONMENTS.validate(config)
    environment = config.make()
    (start,) = environment.reset_many([7])
    slot = guided_slot(start)
    (played,) = play_wave(
        ScriptedPolicy(lambda row, turn: ("ASK: where?", True)), environment, [slot],
        method=method(search_and_ask=SearchAndAskConfig(uses=16)), seed_of=lambda name: np.random.SeedSequence(1),
        sampling=SAMPLING, weights_digest="w", stage="collect", advisor=Answers(),
    )  # fmt: skip
    assert (played.episode.turns, played.episode.stop_reason) == (4, "turn_limit")
    assert {turn.observation for turn in played.turns} == {start.observation}
    ended = played.episode.last_observation or ""
    assert ended != start.observation if config.kind != "realms" else ended, "the end as the environment tells it"
    again = config.make()
    again.reset_many([7])
    assert [again.step_many({0: None})[0].done for _ in range(4)] == [False] * 3 + [True]
    environment.close()
    again.close()


def test_questions_of_one_turn_are_one_batch() -> None:
    advisor = Answers()
    play([["ASK: a", "right"], ["right"], ["ASK: b", "right"]], advisor, seeds=[1, 1, 1])
    assert [[each.question for each in batch] for batch in advisor.batches] == [["a", "b"]]
    assert advisor.batches[0][0].observation == "1 to go {x}"


def test_without_anyone_to_answer_nothing_is_offered() -> None:
    (played,) = play([["ASK: a", "right", "right"]], None)
    assert OFFER not in played.generations[0].prompt
    assert [each.reason_code for each in played.questions] == ["free_episode"]


def test_without_search_and_ask_a_question_is_a_text_like_any_other() -> None:
    policy = ScriptedPolicy(lambda row, turn: ("ASK: right?", True))
    (played,) = play_wave(
        policy, Corridor(), [EpisodeSlot(task(0, 2), (Guide("e1", "d1", "go right"),))], method=method(),
        seed_of=lambda name: np.random.SeedSequence(1), sampling=SAMPLING, weights_digest="w", stage="collect",
    )  # fmt: skip
    assert [turn.action for turn in played.turns] == ["right", "right"]
    assert played.questions == []
