"""From the actor's text to what its environment is given, a question, or neither: never an error, whatever it holds.

An environment takes one of some actions by name, free text, or a tool call (`crl.protocols.Actions`). Of a tool call
only the JSON counts, whatever is around it (`crl/text/calls.py`). The last call counts, as the last tag does,
unless the environment takes several per turn.

Only what follows the end of a thought counts: an action or a question that the actor only thinks of is none. With
`sampling.constrain: actions` an actor cannot write anything else: its answers are then a tree (:class:`AnswerTrees`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from crl.errors import BadInput
from crl.protocols import Actions, Answers, Chat, FreeText, ToolCalls
from crl.text.answers import after_thoughts
from crl.text.calls import json_calls
from crl.text.unicode import valid_text

ActionFormat = Literal["tag", "word"]

# The body may not open another tag, so that `<action><action>north</action>` still names north.
_TAG = re.compile(r"<action>((?:(?!<action>).)*?)</action>", re.IGNORECASE | re.DOTALL)

_ASK_TAG = re.compile(r"<ask>((?:(?!<ask>).)*?)</ask>", re.IGNORECASE | re.DOTALL)
# Tokenizers of whole words set the colon apart; a word that only ends in "ask" is none.
_ASK_LINE = re.compile(r"^[ \t]*ASK[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
NO_ACTION, LONG_ACTION = "environment_no_action", "environment_action_too_long"
"""Reason codes of an episode in which nothing can be done, or said in time, though it is not over."""
_ADVICE = {
    NO_ACTION: "mend the environment: in every state that is not final it names an action",
    LONG_ACTION: "raise max_new_tokens, or shorten the names of the actions",
}


def _key(text: str) -> str:
    return " ".join(text.split()).casefold()


@lru_cache(maxsize=256)
def _words(actions: tuple[str, ...]) -> re.Pattern[str]:
    # Longest first: an alternation takes the first branch that fits, and "pick up" must win over "pick".
    ordered = sorted(actions, key=lambda action: (-len(action), action))
    branches = "|".join(r"\s+".join(re.escape(part) for part in action.split()) for action in ordered)
    # A hyphenated word is one word: "north-east" does not name north.
    return re.compile(rf"(?<!\w)(?<!\w-)(?:{branches})(?!\w)(?!-\w)", re.IGNORECASE)


def parse_action(text: str, actions: Actions, action_format: ActionFormat, *, thinking: bool = False) -> str | None:
    """What a text gives to its environment behind its thoughts; None where that is nothing.

    Of some actions: the one it names, as it is written in `actions`. `tag`: the last `<action>…</action>` counts and
    must equal a legal action, case and outer blanks aside. `word`: the first legal action that stands as whole words
    counts, the longest where several begin at one place. Free text: the body of the last tag, or with `word` all of it,
    outer blanks aside; the text as it is where the environment wants all of it (`whole`). A tool call: its JSON, with
    sorted keys, whatever the format; where a turn may hold several, a list of them. `thinking`: the prompt began a
    thought.
    """
    if isinstance(actions, FreeText) and actions.whole:
        return text
    answer = after_thoughts(text, begun=thinking)
    if answer is None:
        return None
    if isinstance(actions, ToolCalls):
        return from_calls(json_calls(answer, {tool.name for tool in actions.tools}), actions)
    if isinstance(actions, FreeText):
        bodies = _TAG.findall(answer) if action_format == "tag" else [answer]
        return valid_text(bodies[-1].strip()) or None if bodies else None
    return _action_in(answer, actions, action_format)


def named_actions(actions: Actions) -> tuple[str, ...]:
    """The actions that can be listed; none where the environment parses text or takes tool calls."""
    return actions if isinstance(actions, tuple) else ()


def from_calls(calls: Sequence[str], actions: ToolCalls) -> str | None:
    """What an environment is given of some calls: the last, or all as a JSON list where it takes several."""
    if not calls:
        return None
    return f"[{', '.join(calls)}]" if actions.several else calls[-1]


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


def parse_question(text: str, actions: Actions, action_format: ActionFormat, *, thinking: bool = False) -> str | None:
    """The question that a text asks behind its thoughts, blanks at its ends aside; None where it asks none. It may be
    empty.

    A turn acts or asks. `tag`: `<ask>…</ask>` asks unless an action tag is behind it: the last tag counts.
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
    if line is None or _action_in(answer[: line.start()], named_actions(actions), "word") is not None:
        return None
    return line.group(1).strip()


class Flaw(NamedTuple):
    """Why an actor cannot answer: the reason code of its episode, and the same in words."""

    code: str
    details: str


class AnswerTrees:
    """Trees of token ids of the answers that an actor may give, in one policy's chat format.

    Each legal action is written as the chat format writes an answer, with the end of its turn, so what is sampled is
    what a demonstration of the action would be, id for id. A set of actions is encoded once.
    """

    def __init__(self, chat: Chat, longest: int) -> None:
        """`longest` is the most ids that an answer may have (`max_new_tokens`)."""
        self._chat, self._longest = chat, longest
        self._trees: dict[tuple[str, ...], Answers] = {}

    def of(self, actions: Actions) -> Answers:
        """The tree of some actions. Raises BadInput where there is none, or one is longer than a turn may be."""
        if (flaw := self.flaw(actions)) is not None:
            raise BadInput(flaw.details, where="method.roles.actor.sampling", next_step=_ADVICE[flaw.code])
        return self._trees[named_actions(actions)]

    def flaw(self, actions: Actions) -> Flaw | None:
        """Why there is no tree of some actions; None where there is one."""
        key = named_actions(actions)
        if not key:
            return Flaw(NO_ACTION, "the environment names no legal action, so there is nothing to answer with")
        if key in self._trees:
            return None
        answers = {action: self._chat.answer(action) for action in key}
        action, ids = max(answers.items(), key=lambda each: len(each[1]))
        if len(ids) > self._longest:
            told = f"the action {action!r:.200} takes {len(ids)} tokens with the end of its turn"
            return Flaw(LONG_ACTION, f"{told}; a turn has at most {self._longest} (sampling.max_new_tokens)")
        self._trees[key] = self._grown(answers.values())
        return None

    @staticmethod
    def _grown(answers: Iterable[Sequence[int]]) -> Answers:
        root: dict[int, Any] = {}
        for ids in answers:
            node = root
            for index in ids:
                node = node.setdefault(index, {})
        return root
