"""The conversations of one client as sequences of token ids: which one a call continues, and the ids of its prompt.

A call goes on from the answer whose conversation it begins with, if only messages that the model does not write follow.
An assistant's message is the same if its content and its tool calls are: clients leave thoughts out and write JSON
anew. Ids are copied and, where thoughts are stripped, left out (between tool calls when a user speaks, where the
template keeps them so long); what was sampled is never encoded again, unless the program has changed it. A prompt that
begins with a whole sequence continues it; any other begins one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain

from crl.gateway.messages import ChatRequest
from crl.protocols import ConversationChat, Message, ParsedTurn, Sampled, StopReason
from crl.text.prefixes import shared_prefix

_Turn = tuple[list[int], list[int]]
"""Ids that asked for an answer, behind the answer before, and its own."""


@dataclass(frozen=True)
class _Opening:
    """What a conversation begins with."""

    token_ids: list[int]
    _free: Callable[[], list[int]]

    @cached_property
    def free(self) -> list[int]:
        """Its ids without the text that is shown besides."""
        return self._free()

    def freed(self, token_ids: list[int]) -> list[int]:
        """Ids that begin with it, without that text. They may lack the end of it, where a thought was begun."""
        same = shared_prefix(self.token_ids, token_ids)
        return [*self.free[: len(self.free) - len(self.token_ids) + same], *token_ids[same:]]


@dataclass(frozen=True, slots=True)
class _History:
    """A conversation up to a call."""

    opening: _Opening
    settled: list[int]
    """Ids that all later prompts begin with."""
    turns: tuple[_Turn, ...]
    """Behind these, whose thoughts may still go."""

    @property
    def token_ids(self) -> list[int]:
        """Its ids."""
        return [*self.settled, *chain.from_iterable((*asked, *wrote) for asked, wrote in self.turns)]


@dataclass(frozen=True, slots=True)
class _Answered:
    """A conversation up to an answer."""

    history: _History
    sequence: int
    """Which has the answer."""
    by: int | None
    """The id that ended the answer; None: it was cut off."""
    calls: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call asks to be answered."""

    request: ChatRequest
    side: bool
    token_ids: list[int]
    shown: tuple[Message, ...]
    """All messages, as the model reads them."""
    new: tuple[Message, ...]
    """The messages behind the answer that it goes on from."""
    continues: int | None
    """The sequence that it begins with."""
    history: _History
    """Before `new`."""

    def free_prompt(self) -> list[int]:
        """Its ids without what `Conversations` shows besides."""
        return self.history.opening.freed(self.token_ids)


class Conversations:
    """All conversations of a client.

    Attributes:
        sequences: their ids, in the order in which they began.
    """

    def __init__(
        self, chat: ConversationChat, *, shown: str = "", side: frozenset[str] = frozenset(), strip: bool = False
    ) -> None:
        """`shown`: a text at the end of the first system message of each. `side`: models with conversations apart.
        `strip`: later prompts have no thoughts."""
        self._chat, self._shown, self._side, self._strip = chat, shown, side, strip
        self.sequences: list[list[int]] = []
        self._answered: dict[str, list[_Answered]] = {}

    def prompt(self, request: ChatRequest) -> Prompt:
        """The ids that answer a call. Raises BadInput where the template refuses its messages."""
        side, messages, tools = request.model in self._side, request.messages, request.tools
        shown = with_text(messages, self._shown)
        # What follows it is not the model's, so it is the last assistant's message.
        last = max((at for at, message in enumerate(messages, 1) if message.role == "assistant"), default=0)
        new, prompts = messages[last:], []
        for before in self._answered.get(_key(request, messages[:last], side), ()):
            history, whole = self._stripped(before.history, new), self.sequences[before.sequence]
            piece = self._chat.follow(new, ended=before.by is not None, by=before.by, calls=before.calls)
            ids = [*history.token_ids, *piece]
            continues = before.sequence if ids[: len(whole)] == whole else None
            prompts.append(Prompt(request, side, ids, shown, new, continues, history))
        if prompts:  # of equal answers that of a sequence which ends there
            return next((each for each in prompts if each.continues is not None), prompts[-1])
        ids = self._chat.conversation(shown, tools)
        opening = _Opening(ids, lambda: self._chat.conversation(messages, tools) if self._shown else ids)
        return Prompt(request, side, ids, shown, messages, None, _History(opening, [], ()))

    def _stripped(self, history: _History, new: Sequence[Message]) -> _History:
        """A history as a prompt has it that goes on with these messages."""
        called = self._chat.takes_tools and all(message.role == "tool" for message in new)
        if not self._strip or (called and self._chat.keeps_thoughts(new[-1].name)):
            return history
        turns = (self._chat.without_thoughts(*turn) for turn in history.turns)
        return _History(history.opening, replace(history, turns=tuple(turns)).token_ids, ())

    def answered(self, prompt: Prompt, sampled: Sampled, turn: ParsedTurn) -> int:
        """Take an answer: the sequence that has it, which was continued, or is new."""
        wrote, history = sampled.token_ids, prompt.history
        by = wrote[-1] if wrote and sampled.stop_reason is StopReason.end_of_turn else None
        index = len(self.sequences) if prompt.continues is None else prompt.continues
        self.sequences[index : index + 1] = [[*prompt.token_ids, *wrote]]
        asked = prompt.token_ids[len(history.token_ids) :]
        history = replace(history, turns=(*history.turns, (asked, wrote)))
        messages = (*prompt.request.messages, Message("assistant", turn.content, turn.calls))
        found = _Answered(history, index, by, len(turn.calls))
        self._answered.setdefault(_key(prompt.request, messages, prompt.side), []).append(found)
        return index


def _key(request: ChatRequest, messages: Sequence[Message], side: bool) -> str:
    """What conversations have in common that are one."""
    written = json.dumps([side, [*map(asdict, request.tools)], [*map(asdict, messages)]], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def with_text(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """A conversation with a text at the end of its first system message; where it has none, the text is one."""
    if not text:
        return tuple(messages)
    at = next((at for at, message in enumerate(messages) if message.role == "system"), None)
    if at is None:
        return (Message("system", text), *messages)
    system = Message("system", f"{messages[at].content}\n{text}".lstrip("\n"))
    return (*messages[:at], system, *messages[at + 1 :])
