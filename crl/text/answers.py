"""What answers of language models have in common, whoever wrote them: thoughts before them, JSON inside them, and texts
that are allowed.

Used by the actor's actions, questions and verdicts and by the extractor's outputs. This file imports nothing of the
project.
"""

from __future__ import annotations

import re
import unicodedata

_THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
}
_BEGINS, _ENDS = ("|".join(map(re.escape, tags)) for tags in (_THOUGHTS, _THOUGHTS.values()))
THOUGHT_TAG = re.compile(f"(?:{_BEGINS}|(?P<end>{_ENDS}))", re.IGNORECASE)
"""What begins and ends a thought, in the families of models that write some."""
_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z]*)[ \t]*$")


def after_thoughts(text: str, *, begun: bool = False) -> str | None:
    """What follows the last thought (`<think>…</think>` or another family's tags, in any case); None inside one that
    never ends.

    Thoughts do not nest: the last tag decides. Behind `</think>` the answer begins, whatever is before it; behind
    `<think>` nothing is said yet. A text without a tag is an answer as a whole, unless its thought was `begun` before
    it: templates of thinking models end a prompt with `<think>`.
    """
    tags = list(THOUGHT_TAG.finditer(text))
    if not tags:
        return None if begun else text
    return text[tags[-1].end() :] if tags[-1].group("end") else None


def marks_thought(token: str) -> bool:
    """Whether a control token is a tag of thoughts, or the beginning of one."""
    return any(token.casefold() in tag.casefold() for tag in (*_THOUGHTS, *_THOUGHTS.values()))


def written_behind(prompt: str, chat: str) -> str | None:
    """What a model writes behind a prompt to go on as in a chat; None where the chat does not begin with the prompt.

    A thought that the prompt begins, and the chat does not show, is ended first.
    """
    if chat.startswith(prompt):
        return chat[len(prompt) :]
    tags = list(THOUGHT_TAG.finditer(prompt))
    if not tags or tags[-1].group("end") or not chat.startswith(before := prompt[: tags[-1].start()]):
        return None
    rest = after_thoughts(chat[len(before) :]) or ""
    end = next(end for begin, end in _THOUGHTS.items() if begin.casefold() == tags[-1].group().casefold())
    return f"\n{end}" + ("" if rest.startswith(("<|", "<｜")) else "\n\n") + rest.lstrip()


def thought_of(text: str) -> tuple[str, str]:
    """A text's thought, without its tags, and what follows it; the thought is empty where there is none that ends."""
    said = after_thoughts(text)
    if said is None or not THOUGHT_TAG.search(text):
        return "", text
    return THOUGHT_TAG.sub("", text.removesuffix(said)).strip(), said.lstrip()


def json_part(answer: str) -> str:
    """The part of an answer (without its thoughts) that should be JSON: of several ``` fences the last one.

    A fence that nobody closed holds the rest of the answer if that looks like JSON: models end where their JSON does.
    """
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
    rest = "\n".join(opened or ())
    if rest.lstrip().startswith(("{", "[")):
        fenced = rest
    return answer if fenced is None else fenced


def text_flaw(text: str, max_characters: int) -> str | None:
    """Why a text can be no experience (`empty_text`, `text_too_long`, `bad_text`); None where it can.

    It must have something to see, be at most `max_characters` long, and be valid Unicode without control characters but
    line feed and tab. Marks of direction are allowed: languages need them.
    """
    if is_blank(text):
        return "empty_text"
    if len(text) > max_characters:
        return "text_too_long"
    return None if odd_character(text) is None else "bad_text"


def is_blank(text: str) -> bool:
    """Whether there is nothing to see: blanks, line breaks and invisible characters alone."""
    return all(character.isspace() or unicodedata.category(character) == "Cf" for character in text)


def odd_character(text: str) -> str | None:
    """The first control character but line feed and tab, or half of a surrogate pair, which JSON can spell."""
    return next((each for each in text if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cs")), None)
