"""The conversations of one client as sequences of token ids: which one a call continues, and the ids of its prompt.

A call continues the sequence whose messages, with what was answered, it begins with, if only messages that the model
does not write follow. An assistant's message is the same if its content and its tool calls are: clients leave thoughts
out and write JSON anew. Where it goes on from an earlier answer, the ids up to there are copied into a sequence of its
own. What was sampled is never encoded again, unless the program has changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crl.gateway.messages import ChatRequest
from crl.protocols import ConversationChat, Message, ParsedTurn, Sampled, StopReason, Tool


@dataclass(frozen=True, slots=True)
class _End:
    """Where an answer of a sequence ends."""

    messages: int
    tokens: int
    by: int | None
    """The id that ended it; None: it was cut off."""
    calls: int


@dataclass
class Sequence_:
    """One sequence: its messages and its ids."""

    index: int
    tools: tuple[Tool, ...]
    side: bool
    token_ids: list[int]
    free_prompt: Callable[[], list[int]]
    """Ids of its first prompt without what `Conversations` shows besides."""
    prompt_tokens: int
    messages: list[Message] = field(default_factory=list)
    ends: list[_End] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call asks to be answered."""

    request: ChatRequest
    side: bool
    token_ids: list[int]
    shown: tuple[Message, ...]
    """All messages, as the model reads them."""
    new: tuple[Message, ...]
    """The messages that its sequence did not have."""
    continues: Sequence_ | None
    free_prompt: Callable[[], list[int]]


class Conversations:
    """All conversations of a client.

    Attributes:
        sequences: in the order in which they began.
    """

    def __init__(self, chat: ConversationChat, *, shown: str = "", side: frozenset[str] = frozenset()) -> None:
        """`shown`: a text at the end of the first system message of each. `side`: models with sequences apart."""
        self._chat, self._shown, self._side = chat, shown, side
        self.sequences: list[Sequence_] = []

    def prompt(self, request: ChatRequest) -> Prompt:
        """The ids that answer a call. Raises BadInput where the template refuses its messages."""
        side, messages = request.model in self._side, request.messages
        shown, matched = with_text(messages, self._shown), self._matched(request, side)
        if matched is None:
            ids = self._chat.conversation(shown, request.tools)

            def free() -> list[int]:
                return self._chat.conversation(messages, request.tools) if self._shown else list(ids)

            return Prompt(request, side, ids, shown, messages, None, free)
        sequence, end = matched
        new = messages[end.messages :]
        piece = self._chat.follow(new, ended=end.by is not None, by=end.by, calls=end.calls)
        copied = [*sequence.token_ids[: end.tokens], *piece]
        since, free_before = sequence.prompt_tokens, sequence.free_prompt
        continues = sequence if end is sequence.ends[-1] else None
        return Prompt(request, side, copied, shown, new, continues, lambda: [*free_before(), *copied[since:]])

    def _matched(self, request: ChatRequest, side: bool) -> tuple[Sequence_, _End] | None:
        """The answer that a call goes on from; of equal ones the last of a sequence, for that is continued in place."""
        answers = [at for at, message in enumerate(request.messages) if message.role == "assistant"]
        if not answers:
            return None
        # What follows it is not the model's, so it is the last assistant's message.
        before = request.messages[: answers[-1] + 1]
        ends = [
            (sequence, end)
            for sequence in self.sequences
            if (sequence.tools, sequence.side) == (request.tools, side)
            for end in sequence.ends
            if end.messages == len(before) and tuple(sequence.messages[: len(before)]) == before
        ]
        return max(ends, key=lambda pair: (pair[1] is pair[0].ends[-1], pair[0].index), default=None)

    def answered(self, prompt: Prompt, sampled: Sampled, turn: ParsedTurn) -> Sequence_:
        """The sequence with an answer: the one that was continued, or a new one, whose `token_ids` are its prompt.

        The sampled ids are not appended: the record of the sequence does that (`token_ids` may be shared with it).
        """
        sequence = prompt.continues
        if sequence is None:
            sequence = Sequence_(
                len(self.sequences), prompt.request.tools, prompt.side, list(prompt.token_ids), prompt.free_prompt,
                len(prompt.token_ids),
            )  # fmt: skip
            self.sequences.append(sequence)
        sequence.messages = [*prompt.request.messages, Message("assistant", turn.content, turn.calls)]
        ended = sampled.stop_reason is StopReason.end_of_turn and bool(sampled.token_ids)
        tokens = len(prompt.token_ids) + len(sampled.token_ids)
        by = sampled.token_ids[-1] if ended else None
        sequence.ends.append(_End(len(sequence.messages), tokens, by, len(turn.calls)))
        return sequence


def with_text(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """A conversation with a text at the end of its first system message; where it has none, the text is one."""
    if not text:
        return tuple(messages)
    at = next((at for at, message in enumerate(messages) if message.role == "system"), None)
    if at is None:
        return (Message("system", text), *messages)
    system = Message("system", f"{messages[at].content}\n{text}".lstrip("\n"))
    return (*messages[:at], system, *messages[at + 1 :])
