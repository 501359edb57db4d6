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

from crl.gateway.messages import ApiError, ChatRequest
from crl.protocols import ConversationChat, Message, ParsedTurn, Sampled, StopReason, Tool
from crl.text.prefixes import shared_prefix

MARK = "{experience}"
"""Stands for an experience in a program's first system or user message."""
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
    summary: bool = False
    """Whether it is a summary of the conversation, which nobody but the model sees."""


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
    before: _Answered | None = None
    """The answer that it goes on from."""

    def free_prompt(self) -> list[int]:
        """Its ids without what `Conversations` shows besides."""
        return self.history.opening.freed(self.token_ids)


class Conversations:
    """All conversations of a client.

    Attributes:
        sequences: their ids, in the order in which they began.
    """

    def __init__(
        self, chat: ConversationChat, *, shown: str = "", side: frozenset[str] = frozenset(), strip: bool = False,
        window: int = 0, room: int = 0,
    ) -> None:  # fmt: skip
        """`shown`: a text that each begins with (:func:`with_text`). `side`: models with conversations apart. `strip`:
        later prompts have no thoughts. `window`: so many of the last turns are left of a conversation that is longer
        than `room` tokens; 0: all stay."""
        self._chat, self._shown, self._side, self._strip = chat, shown, side, strip
        self._window, self._room = window, room
        self.sequences: list[list[int]] = []
        self._answered: dict[str, list[_Answered]] = {}

    def prompt(self, request: ChatRequest) -> Prompt:
        """The ids that answer a call. Raises BadInput where the template refuses its messages, ApiError where there are
        several marks."""
        side, messages, tools = request.model in self._side, request.messages, request.tools
        shown = with_text(messages, self._shown)
        new, prompts = new_messages(messages), []
        before_them = messages[: len(messages) - len(new)]
        for before in self._answered.get(key_of(before_them, tools, side=side), ()):
            history, whole = self._stripped(before.history, new), self.sequences[before.sequence]
            piece = self._chat.follow(new, ended=before.by is not None, by=before.by, calls=before.calls)
            history, ids = self._fitting(history, piece)
            continues = before.sequence if ids[: len(whole)] == whole else None
            prompts.append(Prompt(request, side, ids, shown, new, continues, history, before))
        if prompts:  # of equal answers that of a sequence which ends there
            return next((each for each in prompts if each.continues is not None), prompts[-1])
        ids = self._chat.conversation(shown, tools)
        opening = _Opening(ids, lambda: self._chat.conversation(with_text(messages, ""), tools) if self._shown else ids)
        return Prompt(request, side, ids, shown, messages, None, _History(opening, [], ()))

    def asking(self, prompt: Prompt, text: str) -> Prompt | None:
        """A prompt that asks for a summary in place of what is new in another one; None where there is nothing to sum
        up: it begins, or goes on from a summary."""
        before = prompt.before
        if before is None or before.summary:
            return None
        new = (Message("user", text),)
        piece = self._chat.follow(new, ended=before.by is not None, by=before.by, calls=before.calls)
        return replace(prompt, token_ids=[*prompt.history.token_ids, *piece], new=new)

    def summarized(self, asked: Prompt, sampled: Sampled) -> None:
        """Take a summary: the call goes on from what the conversation began with, and from it."""
        assert asked.before is not None
        answered = self._take(asked, sampled)
        (opening, _), (_, wrote) = asked.history.turns[0], answered.history.turns[-1]
        history = _History(asked.history.opening, [], ((opening, wrote),))
        messages = asked.request.messages
        messages = messages[: len(messages) - len(new_messages(messages))]
        self._keep(asked, messages, replace(answered, history=history, summary=True))

    def _stripped(self, history: _History, new: Sequence[Message]) -> _History:
        """A history as a prompt has it that goes on with these messages."""
        called = self._chat.takes_tools and all(message.role == "tool" for message in new)
        if not self._strip or (called and self._chat.keeps_thoughts(new[-1].name)):
            return history
        turns = (self._chat.without_thoughts(*turn) for turn in history.turns)
        return _History(history.opening, replace(history, turns=tuple(turns)).token_ids, ())

    def _fitting(self, history: _History, piece: Sequence[int]) -> tuple[_History, list[int]]:
        """A history of which a prompt may go on with these ids, and the prompt: where it is too long, the opening and
        the last turns, as many as fit."""
        turns, last = history.turns, len(history.turns)
        firsts = range(max(last - self._window, 1), last) if self._window else ()
        shorter = (((turns[0][0], turns[first][1]), *turns[first + 1 :]) for first in firsts)
        for kept in (turns, *shorter):
            history = replace(history, turns=kept)
            ids = [*history.token_ids, *piece]
            if len(ids) <= self._room:
                break
        return history, ids

    def answered(self, prompt: Prompt, sampled: Sampled, turn: ParsedTurn) -> int:
        """Take an answer: the sequence that has it, which was continued, or is new."""
        answered = self._take(prompt, sampled, len(turn.calls))
        messages = (*prompt.request.messages, Message("assistant", turn.content, turn.calls))
        self._keep(prompt, messages, answered)
        return answered.sequence

    def _take(self, prompt: Prompt, sampled: Sampled, calls: int = 0) -> _Answered:
        """What was sampled, at the end of the sequence that it continues, or of a new one."""
        wrote, history = sampled.token_ids, prompt.history
        by = wrote[-1] if wrote and sampled.stop_reason is StopReason.end_of_turn else None
        index = len(self.sequences) if prompt.continues is None else prompt.continues
        self.sequences[index : index + 1] = [[*prompt.token_ids, *wrote]]
        asked = prompt.token_ids[len(history.token_ids) :]
        return _Answered(replace(history, turns=(*history.turns, (asked, wrote))), index, by, calls)

    def _keep(self, prompt: Prompt, messages: Sequence[Message], answered: _Answered) -> None:
        key = key_of(messages, prompt.request.tools, side=prompt.side)
        self._answered.setdefault(key, []).append(answered)


def new_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Those behind the answer that a call goes on from: the last assistant's message, for what follows it is not the
    model's."""
    last = max((at for at, message in enumerate(messages, 1) if message.role == "assistant"), default=0)
    return messages[last:]


def key_of(messages: Sequence[Message], tools: Sequence[Tool], *, side: bool = False) -> str:
    """What conversations have in common that are one."""
    written = json.dumps([side, [*map(asdict, tools)], [*map(asdict, messages)]], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def with_text(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """A conversation with a text at its mark, or else at the end of its first system message; where it has none, the
    text is one. Raises ApiError where there is more than one mark."""
    at = marked(messages)
    if at is not None:
        filled = replace(messages[at], content=messages[at].content.replace(MARK, text))
        return (*messages[:at], filled, *messages[at + 1 :])
    if not text:
        return tuple(messages)
    text = text.rstrip()
    at = first_of(messages, "system")
    if at is None:
        return (Message("system", text), *messages)
    system = Message("system", f"{messages[at].content}\n{text}".lstrip("\n"))
    return (*messages[:at], system, *messages[at + 1 :])


def marked(messages: Sequence[Message]) -> int | None:
    """Which message holds the mark: the first system or user message; None: none of them."""
    firsts = [at for role in ("system", "user") if (at := first_of(messages, role)) is not None]
    marks = {at: count for at in firsts if (count := messages[at].content.count(MARK))}
    if sum(marks.values()) > 1:
        raise ApiError(
            f"{MARK} stands in {sum(marks.values())} places: once, in the first system or user message.",
            code="invalid_request", param="messages",
        )  # fmt: skip
    return next(iter(marks), None)


def first_of(messages: Sequence[Message], role: str) -> int | None:
    """Which message is the first of a role."""
    return next((at for at, message in enumerate(messages) if message.role == role), None)
