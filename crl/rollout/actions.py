"""From the actor's text to a legal action, a question, or neither: never an error, whatever the text holds.

Only what follows the end of a thought counts: an action or a question that the actor only thinks of is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from crl.text.answers import after_thoughts

ActionFormat = Literal["tag", "word"]

# The body may not open another tag, so that `<action><action>north</action>` still names north.
_TAG = re.compile(r"<action>((?:(?!<action>).)*?)</action>", re.IGNORECASE | re.DOTALL)

_ASK_TAG = re.compile(r"<ask>((?:(?!<ask>).)*?)</ask>", re.IGNORECASE | re.DOTALL)
# Tokenizers of whole words set the colon apart; a word that only ends in "ask" is none.
_ASK_LINE = re.compile(r"^[ \t]*ASK[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)


def _key(text: str) -> str:
    return " ".join(text.split()).casefold()


@lru_cache(maxsize=256)
def _words(actions: tuple[str, ...]) -> re.Pattern[str]:
    # Longest first: an alternation takes the first branch that fits, and "pick up" must win over "pick".
    ordered = sorted(actions, key=lambda action: (-len(action), action))
    branches = "|".join(r"\s+".join(re.escape(part) for part in action.split()) for action in ordered)
    # A hyphenated word is one word: "north-east" does not name north.
    return re.compile(rf"(?<!\w)(?<!\w-)(?:{branches})(?!\w)(?!-\w)", re.IGNORECASE)


def parse_action(
    text: str, actions: Sequence[str], action_format: ActionFormat, *, thinking: bool = False
) -> str | None:
    """The legal action that a text names behind its thoughts, as it is written in `actions`; None where it names none.

    `tag`: the last `<action>…</action>` counts and must equal a legal action, case and outer blanks aside. `word`: the
    first legal action that stands as whole words counts, the longest where several begin at one place. `thinking`: the
    prompt began a thought.
    """
    answer = after_thoughts(text, begun=thinking)
    return None if answer is None else _action_in(answer, actions, action_format)


def _action_in(answer: str, actions: Sequence[str], action_format: ActionFormat) -> str | None:
    legal = {_key(action): action for action in actions if action.strip()}
    if not legal:
        return None
    if action_format == "tag":
        bodies = _TAG.findall(answer)
        return legal.get(_key(bodies[-1])) if bodies else None
    for found in _words(tuple(legal.values())).finditer(answer):
        action = legal.get(_key(found.group()))
        if action is not None:
            return action
    return None


def parse_question(
    text: str, actions: Sequence[str], action_format: ActionFormat, *, thinking: bool = False
) -> str | None:
    """The question that a text asks behind its thoughts, blanks at its ends aside; None where it asks none. It may be
    empty.

    A turn acts or asks. `tag`: `<ask>…</ask>` asks unless an action tag stands behind it: the last tag counts.
    `word`: a line `ASK: …` asks unless a legal action is named before it: the first thing named counts.
    """
    answer = after_thoughts(text, begun=thinking)
    if answer is None:
        return None
    if action_format == "tag":
        asked = list(_ASK_TAG.finditer(answer))
        if not asked or any(found.start() > asked[-1].start() for found in _TAG.finditer(answer)):
            return None
        return asked[-1].group(1).strip()
    line = _ASK_LINE.search(answer)
    if line is None or _action_in(answer[: line.start()], actions, "word") is not None:
        return None
    return line.group(1).strip()
