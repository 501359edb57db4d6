"""What an answer is worth: exact match and F1 as HotpotQA's own scorer has them, and the reward of Experiential RL.

Source: `hotpot_evaluate_v1.py` of github.com/hotpotqa/hotpot (normalize_answer, exact_match_score, f1_score), written
anew; the reward from arXiv 2602.13949: 1 for an exact match, F1 from 0.3 on, else 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass

LEAST_F1 = 0.3
"""F1 below this earns nothing."""
_WHOLE = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong, and share no words with others."""
_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Score:
    """What an answer scores."""

    exact: bool
    f1: float
    """0 to 1."""


def normalized(text: str) -> str:
    """A text without case, ASCII punctuation, the words a, an and the, and more than one blank between words."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def score_of(answer: str, gold: str) -> Score:
    """Exact match and F1 over words of an answer. Yes, no and noanswer have an F1 with their equals only."""
    given, wanted = normalized(answer), normalized(gold)
    exact = given == wanted
    if not exact and (given in _WHOLE or wanted in _WHOLE):
        return Score(False, 0.0)
    words, right = given.split(), wanted.split()
    common = sum((Counter(words) & Counter(right)).values())
    if not common:
        return Score(exact, 0.0)
    precision, recall = common / len(words), common / len(right)
    return Score(exact, 2 * precision * recall / (precision + recall))


def reward_of(score: Score, least_f1: float = LEAST_F1) -> float:
    """1 for an exact match, F1 from `least_f1` on, else 0."""
    if score.exact:
        return 1.0
    return score.f1 if score.f1 >= least_f1 else 0.0
