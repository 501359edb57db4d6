"""What answers to questions earn, and how they stand in the extractor's buffer."""

from __future__ import annotations

from typing import Any

from crl.config import ExtractorObjective
from crl.credit.buffer import Earned, Output, buffer_metrics, fill_buffer
from crl.credit.samples import select_batches
from crl.recipes.complementary.mechanisms.search_and_ask import answer_rewards
from crl.records import BufferItem, Episode, Question
from tests.unit.credit.test_credit_rows import episode


def question(of: Episode, index: int = 0, **changes: Any) -> Question:
    values: dict[str, Any] = {
        "question_id": f"q-{of.episode_id}-{index}", "round": 3, "family": "room", "episode_id": of.episode_id,
        "turn": index, "question": "where?", "reason_code": "ok", "entry_id": "e2", "content_digest": "d2",
        "similarity": 0.5, "generation_id": f"q-{of.episode_id}-{index}-collect", "answer": "there",
    }  # fmt: skip
    return Question(**{**values, **changes})


BROKEN = {"stop_reason": "error", "error": "environment_crashed"}
EPISODES = [
    episode(0, 0, guided=True, success=True),
    episode(0, 1, guided=True, success=False),
    episode(0, 2, guided=True, success=True, **BROKEN),
    episode(0, 3, guided=False, success=True),
    episode(1, 0, guided=True, success=False),
]
WON, LOST, CRASHED, FREE, ALONE = EPISODES
NOTHING = {"answer": None, "reason_code": "no_answer"}
REFUSED = {"answer": None, "reason_code": "uses_spent", "generation_id": None}
QUESTIONS = [
    question(WON),
    question(LOST),
    question(LOST, 1),
    question(LOST, 2, **REFUSED),
    question(CRASHED),
    question(FREE, **{**REFUSED, "reason_code": "free_episode"}),
    question(ALONE),
    question(ALONE, 1, **NOTHING),
]


def test_an_answer_earns_the_outcome_of_the_episode_that_asked() -> None:
    assert answer_rewards(QUESTIONS, EPISODES, ExtractorObjective(malformed_reward="none")) == [
        Earned("q-g0m0-0-collect", 1.0, "answer"),
        Earned("q-g0m1-0-collect", -1.0, "answer"),
        Earned("q-g0m1-1-collect", -1.0, "answer"),
        Earned("q-g1m0-0-collect", -1.0, "answer"),
    ]


def test_no_answer_is_a_malformed_output_and_free_twins_count_where_uses_are_compared_with_them() -> None:
    earned = answer_rewards(QUESTIONS, EPISODES, ExtractorObjective(credit="guided_minus_free", malformed_reward=-0.5))
    assert [each.reward for each in earned] == [0.0, -2.0, -2.0, -1.0, -0.5], "the last group has no free member"
    assert [each.kind for each in earned] == ["answer"] * 4 + ["malformed"]


def fill(previous: list[BufferItem], answers: list[Earned], round: int) -> list[BufferItem]:
    outputs = [Output(each.generation_id, (round, "collect")) for each in answers]
    return fill_buffer(previous, outputs, answers, set(), round=round)


def test_an_answer_waits_for_its_batch_is_trained_once_and_then_gone() -> None:
    config = ExtractorObjective(batch=2)
    rows = fill([], [Earned("a", 1.0, "answer")], 1)
    assert select_batches(rows, config, round=1) == ([], rows), "no use of it can come any more, yet it waits"
    rows = fill(rows, [Earned("b", -1.0, "answer"), Earned("c", 1.0, "answer")], 2)
    [batch], rows = select_batches(rows, config, round=2)
    assert [(row.generation_id, row.generation_round, row.generation_stage) for row in batch] == [
        ("a", 1, "collect"),
        ("b", 2, "collect"),
    ]
    waiting = {row.name: row.value for row in buffer_metrics(rows, round=2, config=config, trains=True)}
    assert waiting["buffer_waiting_answer"] == 1
    assert [row.generation_id for row in fill(rows, [], 3)] == ["c"]
