"""Messages as code points: the chat format of a model whose tokenizer is not known here.

A text is the numbers of its characters. Numbers beyond Unicode stand for the beginning of a message and the end of an
answer, so no text can be taken for one of them, and the messages can be read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crl.protocols import Tool

_FIRST = 0x110000
"""One beyond the last code point."""
_ROLES = {"system": _FIRST, "user": _FIRST + 1, "assistant": _FIRST + 2}
_NAMES = {number: role for role, number in _ROLES.items()}
END = _FIRST + 3
"""Ends an answer."""


class EndpointChat:
    """Implements `crl.protocols.Chat`."""

    opens_thought = False
    takes_tools = False

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """The messages, and the beginning of the assistant's."""
        written = [index for each in messages for index in (_ROLES[each["role"]], *map(ord, each["content"]))]
        return [*written, _ROLES["assistant"]]

    def reply(self, text: str, *, ended: bool) -> list[int]:
        """The end of an answer (unless `ended`), the user's text, and the beginning of the next answer."""
        return [*([] if ended else [END]), _ROLES["user"], *map(ord, text), _ROLES["assistant"]]

    def answer(self, text: str) -> list[int]:
        """What an answer of this text is."""
        return [*map(ord, text), END]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, without what stands between messages."""
        return "".join(chr(index) for index in token_ids if index < _FIRST)


def messages_of(token_ids: Sequence[int]) -> list[dict[str, str]]:
    """The messages of a row that waits for an answer: the inverse of what :class:`EndpointChat` writes."""
    messages: list[dict[str, str]] = []
    for index in token_ids:
        if index in _NAMES:
            messages.append({"role": _NAMES[index], "content": ""})
        elif index != END:
            messages[-1]["content"] += chr(index)
    return messages[:-1]
