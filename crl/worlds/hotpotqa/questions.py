"""Questions and their paragraphs, from records of every form in which HotpotQA is handed around.

| form | a record's `context` | its `supporting_facts` |
|---|---|---|
| official | pairs of title and sentences | pairs of title and sentence |
| columns, as `datasets` writes it | `title` and `sentences`, two lists | `title` and `sent_id`, two lists |
| plain | none: question, answer, perhaps a type | none |

The id is `_id` or `id`; a record without one has its place in the file. `type` and `level` may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crl.errors import BadInput
from crl.text.unicode import valid_text
from crl.worlds.json_files import shown


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


def malformed(found: str, expected: str, where: str) -> BadInput:
    """A record that cannot be read."""
    return BadInput(
        f"a record of HotpotQA's data cannot be read: {found}",
        expected=expected,
        where=where,
        next_step="correct or remove the record, or get the file again (hotpotqa.github.io)",
    )


def question_of(record: Any, number: int, where: str) -> Question:
    """The question of a record. Raises BadInput where it has no question, no answer, or fields of other kinds."""
    if not isinstance(record, dict):
        raise malformed(f"it is {shown(record)}", "an object per question", where)
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
