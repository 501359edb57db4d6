"""A reader who knows the answer and where it is from: for demonstrations, and as proof that it can be found; and what
an episode teaches an extractor, in sentences that are true of it.

It looks for each paragraph that the answer follows from by a title that it could know: first one that the question
names, then one that a found paragraph names. It answers when all are found, or when the last turn has come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.hotpotqa.questions import Paragraph, Question, normalized


def next_action(
    question: Question, paragraphs: Mapping[str, Paragraph], tried: Collection[str], turns_left: int
) -> str:
    """What to do next: `paragraphs` are the paragraphs that were shown, by title, `tried` the queries so far."""
    query = None if turns_left <= 1 else _query(question, paragraphs, tried)
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


_ACTIONS = ("search[", "answer[")


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new note about an episode, a better one than the note that guided it, or nothing where that note was enough.

    It names kinds of steps and not the names of one question, which no other question asks about.
    """
    if episode.success and episode.guided:
        return Lesson("return")
    done = [turn.action.lower() for turn in turns if turn.valid and turn.action is not None]
    searches = sum(action.startswith(_ACTIONS[0]) for action in done)
    answered = any(action.startswith(_ACTIONS[1]) for action in done)
    if not done:
        text = "Write search[name] or answer[text], and nothing else."
    elif episode.success and searches > 1:
        text = (
            f"Search for a name in the question, then for the name that its paragraph leads to: {searches} searches "
            "showed all. Then give the few words that are asked for in answer[ ]."
        )
    elif episode.success:
        text = "One search can show all that is needed: read what it found, then give the few words in answer[ ]."
    elif not answered:
        text = f"Answer before the turns run out: {searches} searches and no answer[ ] earn nothing."
    elif not searches:
        text = "Do not answer by heart: begin with search[ ] and a name that the question has."
    elif episode.reward > 0:
        text = "Answer with the exact words of the paragraph and no others: the last answer was near and not exact."
    else:
        text = "Before answer[ ] search for the second name too: the first paragraph only leads to it."
    return Lesson("update" if episode.guided else "add", text)
