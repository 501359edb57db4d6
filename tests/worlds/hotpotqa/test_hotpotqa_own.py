"""The questions that ship: two paragraphs are needed and enough, all can be answered, nobody is on both sides."""

from __future__ import annotations

from collections import Counter

import pytest

from crl.errors import BadInput
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.hotpotqa.files import FOLDER, OWN_PARAGRAPHS, own_questions, paragraphs_of
from crl.worlds.hotpotqa.questions import Question, normalized

SIDES = ("train", "held_out")
EVERY = [(side, question) for side in SIDES for question in own_questions(side)]


def has(text: str, part: str) -> bool:
    return f" {normalized(part)} " in f" {normalized(text)} "


def texts_of(question: Question) -> list[str]:
    return [each.document for title in question.support for each in question.paragraphs if each.title == title]


def test_how_many_there_are() -> None:
    train, held_out = (own_questions(side) for side in SIDES)
    assert len(train) >= 80 and len(held_out) >= 25
    assert len(paragraphs_of(train)) + len(paragraphs_of(held_out)) >= 150
    asked = [normalized(question.text) for _, question in EVERY]
    assert len(set(asked)) == len(asked)
    for side in SIDES:
        kinds = Counter(question.kind for question in own_questions(side))
        assert kinds.keys() == {"bridge", "comparison"} and min(kinds.values()) >= 6


@pytest.mark.parametrize(("side", "question"), EVERY, ids=lambda each: getattr(each, "id", each))
def test_two_paragraphs_are_needed_and_enough(side: str, question: Question) -> None:
    assert len(question.paragraphs) == OWN_PARAGRAPHS == len(set(question.paragraphs))
    first, second = texts_of(question)
    if question.kind == "comparison":
        answer = question.answer
        assert answer in ("yes", "no") or answer in question.support
        return
    assert has(second, question.answer) and not has(first, question.answer)
    assert not has(question.text, question.answer) and not has(question.text, question.support[1])
    assert has(first, question.support[1]), "the first paragraph leads to the second"


def test_nobody_is_on_both_sides() -> None:
    for side, other in (SIDES, SIDES[::-1]):
        titles = {paragraph.title for paragraph in paragraphs_of(own_questions(side))}  # type: ignore[arg-type]
        questions = own_questions(other)  # type: ignore[arg-type]
        text = " ".join([*(each.document for each in paragraphs_of(questions)), *(each.text for each in questions)])
        assert not [title for title in titles if has(text, title)]


@pytest.mark.parametrize("settings", [{}, {"scope": "file"}, {"search": "embeddings", "embedder": "lexical"}])
def test_the_oracle_answers_all_in_the_turns_there_are(settings: dict[str, str]) -> None:
    config = HotpotQAConfig.model_validate(settings)
    assert config.held_out_levels == len(own_questions("held_out"))
    environment = config.make()
    seeds = [*range(len(own_questions("train"))), *range(10**6, 10**6 + len(own_questions("held_out")))]
    starts = environment.reset_many(seeds)
    assert len({start.goal for start in starts}) == len(seeds) == len(EVERY)
    for slot in range(len(seeds)):
        while (action := environment.oracle(slot)) is not None:
            step = environment.step_many({slot: action})[slot]
        assert step.success and step.reward == 1, starts[slot].goal
        # A bag of hashed words does not always have the very name first.
        assert "search" in settings or "2 were found" in step.feedback, starts[slot].goal


def test_a_missing_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own_questions.cache_clear()
    monkeypatch.setattr("crl.worlds.hotpotqa.files.FOLDER", FOLDER.with_name("no such"))
    with pytest.raises(BadInput, match="questions of this project cannot be read") as caught:
        own_questions("train")
    assert "install the project again" in str(caught.value)
