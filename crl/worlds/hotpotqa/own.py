"""The questions of this project, `data/hotpotqa/train.yaml` and `held_out.yaml`: invented people, places and works.

A file is a list of little worlds, each with `paragraphs` (title and text) and `questions`:

    {ask: …, answer: …, type: bridge | comparison, from: [titles that the answer follows from]}

A question's own paragraphs are chosen as HotpotQA's distractors are: those that it follows from, and of all others of
its file those that a search for the question finds first, ten in all, in an order drawn by its id. Where a search finds
too few, others are drawn.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from crl.errors import BadInput
from crl.worlds.hotpotqa.questions import Paragraph, Question
from crl.worlds.hotpotqa.search import WordSearch

FOLDER = Path(__file__).resolve().parents[3] / "data" / "hotpotqa"
OWN_PARAGRAPHS = 10
"""Paragraphs of a question."""
Side = Literal["train", "held_out"]


@cache
def own_questions(side: Side) -> tuple[Question, ...]:
    """The questions of one side. Raises BadInput where the file is missing: a wheel has the package alone."""
    path = FOLDER / f"{side}.yaml"
    try:
        worlds = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"the questions of this project cannot be read: {error.strerror or error}",
            expected="the folder data/ of the checkout beside the package crl",
            where=str(path),
            next_step="install from a checkout (pip install -e .), or play HotpotQA's own files: questions: distractor",
        ) from None
    paragraphs = {title: Paragraph(title, " ".join(text.split()))
                  for world in worlds for title, text in world["paragraphs"].items()}  # fmt: skip
    search = WordSearch(list(paragraphs.values()))
    asked = [(f"{world['world']}-{number}", each) for world in worlds for number, each in enumerate(world["questions"])]
    return tuple(_question(name, each, paragraphs, search) for name, each in asked)


def _question(name: str, asked: dict[str, Any], paragraphs: dict[str, Paragraph], search: WordSearch) -> Question:
    support = tuple(asked["from"])
    generator = random.Random(f"hotpotqa {name}")
    near = search.find(asked["ask"], OWN_PARAGRAPHS)
    others = generator.sample(list(search.paragraphs), len(search.paragraphs))
    chosen = list(dict.fromkeys([*(paragraphs[title] for title in support), *near, *others]))[:OWN_PARAGRAPHS]
    generator.shuffle(chosen)
    return Question(name, asked["ask"], str(asked["answer"]), asked["type"], tuple(chosen), support)
