"""What an episode teaches, in sentences that are true of it: for demonstrations to an extractor."""

from __future__ import annotations

from collections.abc import Sequence

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.swe.calls import BASH, EDITOR, SUBMIT, BadCall, Call, call_of

_CHANGING = ("create", "str_replace", "insert")


def lesson_of(episode: Episode, turns: Sequence[Turn], *, as_text: bool) -> Lesson:
    """A new note about an episode, a better one than the note that guided it, or nothing where that was enough."""
    if episode.success and episode.guided:
        return Lesson("return")
    calls = [call for turn in turns if turn.valid and (call := _call(turn.action, as_text)) is not None]
    edits = [call for call in calls if call.name == EDITOR and call.arguments["command"] in _CHANGING]
    viewed = any(call.name == EDITOR and call.arguments["command"] == "view" for call in calls)
    submitted = any(call.name == SUBMIT for call in calls)
    if not calls:
        text = "Call one tool per turn, in the form that is asked for: nothing else is done."
    elif episode.success:
        path = str(edits[-1].arguments["path"]).rsplit("/", 1)[-1] if edits else ""
        first = "View the code that the report is about" + (f" ({path})" if path else "")
        text = f"{first}, change only what is wrong, then submit."
    elif not edits and not any(call.name == BASH for call in calls):
        text = "Nothing was changed: repair the code with str_replace before you submit."
    elif not submitted:
        text = "Call submit as soon as the repair is made: without it nothing is judged."
    elif not viewed:
        text = "View the whole function that the report names before you change it: hidden tests try all it promises."
    else:
        text = "Try the example of the report and its edge cases before you submit: hidden tests go beyond it."
    return Lesson("update" if episode.guided else "add", text)


def _call(action: str | None, as_text: bool) -> Call | None:
    try:
        return call_of(action, as_text=as_text)
    except BadCall:
        return None
