"""What an answer is worth, and questions with their paragraphs, from records of every form that HotpotQA is given in.

| form | a record's `context` | its `supporting_facts` |
|---|---|---|
| official | pairs of title and sentences | pairs of title and sentence |
| columns, as `datasets` writes it | `title` and `sentences`, two lists | `title` and `sent_id`, two lists |
| plain | none: question, answer, perhaps a type | none |

The id is `_id` or `id`; a record without one has its place in the file. `type` and `level` may be missing.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated as A
from typing import Any, ClassVar

from crl.errors import BadInput
from crl.records import OutsideRows, Row, Rules, table_of
from crl.text.unicode import valid_text
from crl.worlds.json_files import check_spelling, shown


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph, found by its title and its text."""

    title: str
    text: str

    @property
    def document(self) -> str:
        """What a search reads."""
        return f"{self.title} {self.text}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer, and what may be read for it."""

    id: str
    text: str
    answer: str
    kind: str
    """bridge or comparison; empty where the file does not say."""
    paragraphs: tuple[Paragraph, ...]
    """Its own: those that the answer follows from, among others."""
    support: tuple[str, ...]
    """Titles of the paragraphs that the answer follows from, each once; none where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow(Row):
    """A question of a person's file, as Great Expectations looks at it before it is played."""

    table: ClassVar[str] = "questions"
    rules: ClassVar[Rules] = Rules(key=("question_id",), filled=("question", "answer"))
    question_id: A[str, "its id in the file, else its number"]
    question: A[str, "the question"]
    answer: A[str, "the answer"]
    paragraphs: A[int, "its own paragraphs"]


_FIELDS = ("question", "answer", "type", "context", "supporting_facts")
NEXT_STEP = "correct or remove the record, or get the file again (hotpotqa.github.io)"


def rows_from(questions: Sequence[Question], file: str) -> OutsideRows:
    """The questions of a file, before they are taken."""
    listed = [
        QuestionRow(question_id=each.id, question=each.text, answer=each.answer, paragraphs=len(each.paragraphs))
        for each in questions
    ]
    return OutsideRows(QuestionRow, table_of(QuestionRow, listed), file, NEXT_STEP)


def malformed(found: str, expected: str, where: str) -> BadInput:
    """A record that cannot be read."""
    return BadInput(
        f"a record of HotpotQA's data cannot be read: {found}",
        expected=expected,
        where=where,
        next_step=NEXT_STEP,
    )


def question_of(record: Any, number: int, where: str) -> Question:
    """The question of a record. Raises BadInput where it has no question, no answer, or fields of other kinds."""
    if not isinstance(record, dict):
        raise malformed(f"it is {shown(record)}", "an object per question", where)
    check_spelling(record, _FIELDS, malformed, where)
    text, answer = (_text(record, field, where) for field in ("question", "answer"))
    known = record.get("_id", record.get("id"))
    return Question(
        str(number) if known is None else str(known),
        text,
        answer,
        record["type"] if isinstance(record.get("type"), str) else "",
        _paragraphs(record.get("context"), where),
        tuple(dict.fromkeys(_titles(record.get("supporting_facts"), where))),
    )


def _text(record: Mapping[str, Any], field: str, where: str) -> str:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        told = "has none" if field not in record else f"is {shown(value)}"
        hint = "; the official test questions have no answers" if field == "answer" and field not in record else ""
        raise malformed(f"its {field} {told}{hint}", f"a text as {field}", where)
    return " ".join(valid_text(value).split())


def _paragraphs(context: Any, where: str) -> tuple[Paragraph, ...]:
    if context is None:
        return ()
    if isinstance(context, dict):
        titles, sentences = context.get("title"), context.get("sentences")
        if not (isinstance(titles, list) and isinstance(sentences, list) and len(titles) == len(sentences)):
            raise malformed("title and sentences of its context do not match", "two lists of one length", where)
        context = list(zip(titles, sentences, strict=True))
    if not isinstance(context, list):
        raise malformed(f"its context is {shown(context)}", "a list of [title, [sentence, …]]", where)
    found: dict[Paragraph, None] = {}
    for place, pair in enumerate(context):
        if not (_is_pair(pair) and isinstance(pair[0], str) and _are_texts(pair[1])):
            raise malformed(f"paragraph {place} is {shown(pair)}", "[title, [sentence, …]]", where)
        # Sentences begin with the blank that is in front of them.
        text = "".join(pair[1]) if all(each[:1].isspace() for each in pair[1][1:]) else " ".join(pair[1])
        found[Paragraph(_line(pair[0]), _line(text))] = None
    return tuple(found)


def _titles(facts: Any, where: str) -> Sequence[str]:
    if facts is None:
        return ()
    titles: Any = facts.get("title") if isinstance(facts, dict) else facts
    if isinstance(facts, list):
        titles = [each[0] if _is_pair(each) else None for each in facts]
    if not _are_texts(titles):
        raise malformed(f"its supporting_facts are {shown(facts)}", "a list of [title, sentence]", where)
    return [_line(title) for title in titles]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _line(text: str) -> str:
    return " ".join(valid_text(text).split())


LEAST_F1 = 0.3
"""F1 below this earns nothing."""
_WHOLE = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong, and share no words with others."""
_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Score:
    """What an answer scores, as HotpotQA's own scorer has it: `hotpot_evaluate_v1.py` of github.com/hotpotqa/hotpot
    (normalize_answer, exact_match_score, f1_score), written anew."""

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


def reward_of(score: Score, min_f1: float = LEAST_F1) -> float:
    """1 for an exact match, F1 from `min_f1` on, else 0: the reward of Experiential RL (arXiv 2602.13949)."""
    if score.exact:
        return 1.0
    return score.f1 if score.f1 >= min_f1 else 0.0
