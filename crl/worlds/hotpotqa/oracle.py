"""A reader who knows the answer and where it is from: for demonstrations, and as proof that it can be found.

It looks for each paragraph that the answer follows from by a title that it could know: first one that the question
names, then one that a found paragraph names. It answers when all are found, or when the last turn has come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from crl.worlds.hotpotqa.questions import Paragraph, Question
from crl.worlds.hotpotqa.score import normalized


def next_action(question: Question, found: Mapping[str, Paragraph], tried: Collection[str], turns_left: int) -> str:
    """What to do next: `found` are the paragraphs that were shown, by title, `tried` the queries so far."""
    query = None if turns_left <= 1 else _query(question, found, tried)
    return f"answer[{question.answer}]" if query is None else f"search[{query}]"


def _query(question: Question, found: Mapping[str, Paragraph], tried: Collection[str]) -> str | None:
    missing = [title for title in question.support if title not in found]
    if not missing:
        return None if question.support or question.text in tried else question.text
    read = " ".join([question.text, *(paragraph.text for paragraph in found.values())])
    ordered = sorted(missing, key=lambda title: 0 if _names(question.text, title) else 1 if _names(read, title) else 2)
    # The bare name first; words of the question beside it tell namesakes apart.
    queries = [query for title in ordered for query in (title, f"{title} {question.text}")]
    return next((query for query in queries if query not in tried), None)


def _names(text: str, title: str) -> bool:
    bare = title.partition(" (")[0]
    return f" {normalized(bare)} " in f" {normalized(text)} "
