"""Files of questions: where they are looked for, what to do where they are missing, how they are read; and our own.

Those of this project are `data/hotpotqa/train.yaml` and `held_out.yaml`: invented people, places and works. A file is a
list of little worlds, each with `paragraphs` (title and text) and `questions`:

    {ask: …, answer: …, type: bridge | comparison, from: [titles that the answer follows from]}

A question's own paragraphs are chosen as HotpotQA's distractors are: those that it follows from, and of all others of
its file those that a search for the question finds first, ten in all, in an order drawn by its id. Where a search finds
too few, others are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from crl.errors import BadInput
from crl.paths import quoted, shipped
from crl.worlds.hotpotqa.questions import Paragraph, Question, malformed, question_of
from crl.worlds.hotpotqa.search import WordSearch
from crl.worlds.json_files import data_folder, records

VARIABLE = "HOTPOTQA_DATA"
_DEFAULT = "~/.cache/hotpotqa"
TRAIN, DISTRACTOR, FULLWIKI = (
    "hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json",
)  # fmt: skip
_HOME = "http://curtis.ml.cmu.edu/datasets/hotpot"
"""Where the authors give the files out (hotpotqa.github.io)."""


def find(directory: str | None, names: Sequence[str]) -> list[Path]:
    """Paths of files. Raises BadInput that says what is missing and how to get it."""
    folder, source = data_folder(directory, VARIABLE, _DEFAULT, "HotpotQA's files")
    missing = [name for name in dict.fromkeys(names) if not (folder / name).is_file()]
    if not missing:
        return [folder / name for name in names]
    known = [name for name in missing if name in (TRAIN, DISTRACTOR, FULLWIKI)]
    get = " && ".join(f"curl -fLO {_HOME}/{name}" for name in known)
    own = "play the questions of this project, which need no files: environment.questions: own"
    raise BadInput(
        f"HotpotQA's files are missing: {', '.join(missing)}",
        expected="the authors' files, unchanged (hotpotqa.github.io; Yang et al., 2018). License: CC BY-SA 4.0"
        if known
        else "files of questions in one of the forms that docs/hotpotqa.md lists",
        where=f"{folder} (named by {source}; environment.directory comes first, then ${VARIABLE}, then {_DEFAULT})",
        next_step=f"mkdir -p {quoted(folder)} && cd {quoted(folder)} && {get}\nOr {own}"
        if known
        else f"correct the names, or {own}",
    )


def read(path: Path) -> list[Question]:
    """The questions of a file, in their order. Raises BadInput, with the record, where one cannot be read.

    Equal paragraphs of several questions are kept once: the training file has two thirds of a gigabyte.
    """
    kept: dict[Paragraph, Paragraph] = {}
    questions = []
    for number, where, record in records(path, malformed, of="questions"):
        question = question_of(record, number, where)
        own = tuple(kept.setdefault(paragraph, paragraph) for paragraph in question.paragraphs)
        questions.append(Question(question.id, question.text, question.answer, question.kind, own, question.support))
    if not questions:
        raise malformed("it holds no question", "at least one question", str(path))
    return questions


def paragraphs_of(questions: Sequence[Question]) -> list[Paragraph]:
    """All paragraphs of some questions, each once, in their order. Of one title several texts are several."""
    found: Mapping[Paragraph, None] = dict.fromkeys(each for question in questions for each in question.paragraphs)
    return list(found)


FOLDER = shipped() / "data" / "hotpotqa"
OWN_PARAGRAPHS = 10
"""Paragraphs of a question."""
Side = Literal["train", "held_out"]


@cache
def own_questions(side: Side) -> tuple[Question, ...]:
    """The questions of one side. Raises BadInput where the file is missing."""
    path = FOLDER / f"{side}.yaml"
    try:
        worlds = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"the questions of this project cannot be read: {error.strerror or error}",
            expected="the folder data/ that comes with the project",
            where=str(path),
            next_step="install the project again, or play HotpotQA's own files: questions: distractor",
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
