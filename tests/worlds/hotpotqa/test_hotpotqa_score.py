"""Exact match, F1 and reward of answers, against cases that were computed by hand from the official scorer's rules."""

from __future__ import annotations

import pytest

from crl.worlds.hotpotqa.questions import Score, normalized, reward_of, score_of


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The  Tuesday\tLoaf!", "tuesday loaf"),
        ("An apple a day", "apple day"),
        ("Theodora, a U.S. citizen", "theodora us citizen"),  # an article inside a word is none
        ("3,677", "3677"),
        ("rock-'n'-roll", "rocknroll"),
        ("1849–1921", "1849–1921"),  # ASCII punctuation only, as in the original
        ("the", ""),
    ],
)
def test_what_is_left_out_of_an_answer(text: str, bare: str) -> None:
    assert normalized(text) == bare


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        ("tuesday loaf.", "the Tuesday Loaf", True, 1.0),
        # 3 of 3 words are right, of 4: 2 · 1 · 3/4 / (1 + 3/4)
        ("Chief of Protocol", "U.S. Chief of Protocol", False, 6 / 7),
        # 2 of 2, of 5: 2 · 1 · 2/5 / (1 + 2/5)
        ("Greenwich Village", "Greenwich Village, New York City", False, 4 / 7),
        # a word counts as often as the other side has it: 2 of 3, of 2
        ("New New York", "New York", False, 0.8),
        # order does not count for F1: 2 of 2, of 2
        ("York New", "New York", False, 1.0),
        # 1 of 4, of 3: 2 · 1/4 · 1/3 / (1/4 + 1/3)
        ("somewhere in northern Farrow", "Farrow upon Stell", False, 2 / 7),
        ("Oslo", "Paris", False, 0.0),
        ("", "Paris", False, 0.0),
        ("Yes", "yes", True, 1.0),
        ("yes", "no", False, 0.0),
        ("yes it is", "yes", False, 0.0),  # shares a word, but yes is right or wrong
        ("no", "no man's land", False, 0.0),
        ("noanswer", "noanswer given", False, 0.0),
    ],
)
def test_scores_by_hand(answer: str, gold: str, exact: bool, f1: float) -> None:
    score = score_of(answer, gold)
    assert score.exact is exact and score.f1 == pytest.approx(f1)


@pytest.mark.parametrize(
    ("score", "reward"),
    [
        (Score(True, 1.0), 1.0),
        (Score(True, 0.0), 1.0),  # nothing but articles on both sides
        (Score(False, 1.0), 1.0),  # all words in another order
        (Score(False, 0.3), 0.3),
        (Score(False, 1 / 3), 1 / 3),
        (Score(False, 0.2999), 0.0),
        (Score(False, 0.0), 0.0),
    ],
)
def test_rewards(score: Score, reward: float) -> None:
    assert reward_of(score) == reward


def test_the_least_f1_is_a_setting() -> None:
    assert reward_of(Score(False, 0.2), min_f1=0.1) == 0.2
    assert reward_of(Score(False, 0.9), min_f1=1.0) == 0.0
