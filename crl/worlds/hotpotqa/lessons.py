"""What an episode teaches, in sentences that are true of it: for demonstrations to an extractor.

They name kinds of steps and not the names of one question, which no other question asks about.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.protocols import Lesson
from crl.records import Episode, Turn

_ACTIONS = ("search[", "answer[")


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new note about an episode, a better one than the note that guided it, or nothing where that note was enough."""
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
