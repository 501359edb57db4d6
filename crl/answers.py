"""What answers of language models have in common, whoever wrote them: JSON inside them, and texts that may stand.

Used by the extractor's outputs and the actor's verdicts. This file imports nothing of the project.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z]*)[ \t]*$")


def json_part(text: str) -> str:
    """The part of an answer that should be JSON: what follows reasoning (`</think>`), of that the last ``` fence."""
    answer = text.rpartition("</think>")[2]
    fenced: str | None = None
    opened: list[str] | None = None
    for line in answer.split("\n"):
        if _FENCE.match(line.rstrip("\r")):
            if opened is None:
                opened = []
            else:
                fenced, opened = "\n".join(opened), None
        elif opened is not None:
            opened.append(line)
    return answer if fenced is None else fenced


def text_flaw(text: str, max_characters: int) -> str | None:
    """Why a text can be no experience (`empty_text`, `text_too_long`, `bad_text`); None where it can.

    It must not be empty, be at most `max_characters` long, and be valid Unicode without control characters but line
    feed and tab.
    """
    if not text.strip():
        return "empty_text"
    if len(text) > max_characters:
        return "text_too_long"
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return "bad_text"
    if any((character < " " and character not in "\n\t") or character == "\x7f" for character in text):
        return "bad_text"
    return None
