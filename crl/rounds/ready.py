"""The chat formats of a method's roles, as they are checked before anything is computed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from crl.config import Method
from crl.errors import BadInput
from crl.policies import load_chat, resolve_model
from crl.protocols import Chat
from crl.rollout.actions import parse_action
from crl.text.unicode import valid_text

_SHOWN = 5
"""Characters that a message lists."""
_AROUND = 20
"""Characters of each reading that a message shows where they part."""


def chat_of(method: Method, role: str) -> Chat:
    """A role's chat format. Raises BadInput where its model, or the template, is none for it or for its context."""
    config = method.role(role)
    multi_turn = method.recipe.roles()[role].multi_turn
    return load_chat(resolve_model(config.model), multi_turn=multi_turn, context=config.context, role=role)


def check_reads(chat: Chat, method: Method, role: str, family: str, texts: Iterable[str]) -> None:
    """Raise BadInput where the tokenizer of a role does not read what it is shown of a task family: where it has no
    token for a character, drops it or turns it into another one (capitals into small letters, say).

    How it reads white space, and forms of one character that Unicode calls compatible, are the tokenizer's own affair.
    """
    for text in texts:
        expected = _compared(text)
        found = _compared(chat.decode(chat.answer(text)))
        if not found.endswith(expected):
            missing = [character for character in dict.fromkeys(expected) if character not in found]
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            told = ", ".join(map(repr, missing[:_SHOWN])) + more if missing else _parting(expected, found)
            raise BadInput(
                f"the tokenizer of the {role} does not read what family {family} shows: it loses {told}",
                expected="a tokenizer that keeps every character, white space aside",
                where=f"method.roles.{method.owner(role)}.model",
                next_step="use another model, or have the environment and the prompts write otherwise",
            )


def check_writes(chat: Chat, method: Method, role: str, family: str, answers: Mapping[str, str]) -> None:
    """Raise BadInput where the tokenizer of a role cannot write an action of a task family.

    `answers`: what is written to take each action.
    """
    actions, form = tuple(answers), method.rollout.action_format
    for action, answer in answers.items():
        text = chat.decode(chat.answer(answer))
        if parse_action(text, actions, form, thinking=chat.opens_thought) != parse_action(answer, actions, form):
            raise BadInput(
                f"the tokenizer of the {role} cannot write the action {action!r} of family {family}: {answer!r} "
                f"becomes {text!r}",
                expected="a tokenizer that gives the action back",
                where=f"method.roles.{method.owner(role)}.model",
                next_step="use another model, or name the action otherwise",
            )


def _compared(text: str) -> str:
    """A text without white space, its characters in one form each."""
    return "".join(unicodedata.normalize("NFKC", valid_text(text)).split())


def _parting(expected: str, found: str) -> str:
    """Where two readings part, counted from their ends: before the text may be the end of a thought."""
    found = found[-len(expected) :] if len(found) > len(expected) else found
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(found))
    one, other = (text[same : same + _AROUND] for text in (expected, found))
    return f"{one!r}, which becomes {other!r}"
