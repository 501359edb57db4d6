"""Rounds whose rewards a judge gives that is told what to say: by what it reads, an answer at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crl.config import Experiment
from tests.unit.recipes.played import Policy, Services, experiment
from tests.unit.rollout.fakes import END, CharacterChat

RUBRIC = "A good game reaches the goal."
WON = "The goal is reached."
"""What the lake says at the end of a game that was won."""
Scores = Callable[[Sequence[str], np.random.Generator], Sequence[float]]


def answers_in(read: str) -> list[str]:
    """The answers that a judge's prompt shows, in their order."""
    shown = read.split("Score of answer")[0]
    return re.split(r"\n\nAnswer(?: \d+)?:\n", shown)[1:]


def truth(answers: Sequence[str], random: np.random.Generator) -> list[float]:
    return [10.0 if WON in answer else 0.0 for answer in answers]


def says(scores: Scores, *, at_once: bool = False) -> Callable[[str, np.random.Generator], str]:
    """A judge of these scores: as an endpoint answers, or as one that is sampled here answers, a number a turn."""

    def answer(read: str, random: np.random.Generator) -> str:
        listed = [f"{score:g}" for score in scores(answers_in(read), random)]
        return ", ".join(listed) if at_once else listed[read.count("Score of answer")]

    return answer


def judged_experiment(mode: str = "absolute", **changes: Any) -> Experiment:
    reward = {"judge": RUBRIC, "mode": mode, **changes.pop("reward", {})}
    judge = {"model": "tiny", "context": 100_000, **changes.pop("judge", {})}
    return experiment(**{"method__families__0__reward": reward, "method__roles__judge": judge, **changes})


class JudgeChat(CharacterChat):
    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), END]


class Judge(Policy):
    def __init__(self, answer: Callable[[str, np.random.Generator], str]) -> None:
        super().__init__(answer)
        self.chat = JudgeChat()


class JudgedServices(Services):
    """With a judge."""

    def __init__(self, made: Experiment, answer: Callable[[str, np.random.Generator], str]) -> None:
        super().__init__(made)
        self._policies["judge"] = Judge(answer)
