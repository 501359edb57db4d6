"""Recorded episodes as messages, which the model's own chat writes as exactly the recorded token ids.

A first prompt is read from the text that the record keeps of it, and what came between two answers from its ids. Then
both are written again. A text of an environment or a model may look like a message: what is written then differs, and
the episode is left out, with a reason. Which tools a prompt showed is not recorded: the environment is asked, and the
ids say whether it is right.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from crl.config import Method
from crl.errors import BadInput
from crl.policies import ModelSource, load_chat
from crl.policies.sources import described
from crl.protocols import ConversationChat, Message, ReadableChat, StopReason, Tool, ToolCalls
from crl.records import QUESTION, SUMMARY, Episode, Generation, Turn
from crl.text.answers import after_thoughts

_MARK = re.compile(r"(?:\A|\n\n)\[(system|user|assistant|tool [^\n\]]+)\]\n")
_MOST_KEPT = 1000
"""First prompts whose ids are kept: those of a group follow each other."""


class LeftOut(Exception):
    """An episode, or a sequence of one, that is no row; the message is the reason code."""


@dataclass(frozen=True)
class Conversation:
    """A sequence as messages."""

    sequence: Generation
    messages: list[dict[str, Any]]
    """The last one is the actor's."""
    prompt_messages: int
    """Messages that it begins with: the answers behind them were sampled in it."""
    stops: list[str]
    """Why each of these answers ended."""
    tools: tuple[Tool, ...] = ()


@dataclass
class _Exchange:
    """A turn that is over, as later prompts have it."""

    asked: list[int]
    question: dict[str, Any]
    wrote: list[int]
    answer: dict[str, Any]


class Reader:
    """Reads episodes with the chat of the model that played them."""

    def __init__(self, method: Method) -> None:
        self._method, self._strips = method, method.role("actor").history == "strip_thoughts"
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._ids: dict[tuple[str, str], list[int] | None] = {}

    @cached_property
    def chat(self) -> ReadableChat:
        """That of the actor. Raises BadInput where the model's tokenizer cannot be had on this machine."""
        role = self._method.role("actor")
        return cast(ReadableChat, load_chat(ModelSource(described(role.model), role.model, ""), role))

    def read(
        self, episode: Episode, turns: Sequence[Turn], sequences: Mapping[str, Generation], left_out: Counter[str]
    ) -> list[Conversation]:
        """The sequences of an episode. Raises LeftOut."""
        family = self._method.family(episode.family)
        if family is None or not family.environment.runs_programs:
            return self._stepped(episode, turns, sequences)
        found = []
        for name in episode.generation_ids:
            try:
                found.append(self._of_program([turn for turn in turns if turn.generation_id == name], sequences[name]))
            except LeftOut as reason:
                left_out[f"a program's conversation: {reason}"] += 1
        return found

    def _stepped(
        self, episode: Episode, turns: Sequence[Turn], sequences: Mapping[str, Generation]
    ) -> list[Conversation]:
        """Of an episode whose prompts `crl/rollout/play.py` put together, and `history.py` cut."""
        if not turns:
            raise LeftOut("no_answer")
        opening, tools = self._opening(episode, sequences[episode.generation_ids[0]], turns[0].first_token)
        exchanges: list[_Exchange] = []
        found: list[Conversation] = []
        stripped = 0
        for turn, before in zip(turns, [None, *turns], strict=False):
            sequence = sequences[turn.generation_id]
            if before is None:
                messages, asked, question = opening, sequence.token_ids[: turn.first_token], opening[-1]
            elif before.generation_id == turn.generation_id:
                asked = sequence.token_ids[before.last_token : turn.first_token]
                question = self._question(before, sequence, asked, tools)
                messages = [*found[-1].messages, question]
            else:
                shown = exchanges[turn.dropped_turns :]
                known = [*exchanges[0].asked, *shown[0].wrote]
                known += [index for each in shown[1:] for index in (*each.asked, *each.wrote)]
                if sequence.token_ids[: len(known)] != known:
                    raise LeftOut("prompt_not_reproduced")
                asked = sequence.token_ids[len(known) : turn.first_token]
                question = self._question(before, sequences[before.generation_id], asked, tools)
                told = [each for exchange in shown[1:] for each in (exchange.question, exchange.answer)]
                messages = [*opening, shown[0].answer, *told, question]
            wrote = sequence.token_ids[turn.first_token : turn.last_token]
            answer = self._answer(wrote, tools)
            goes_on = before is not None and before.generation_id == turn.generation_id
            last = found.pop() if goes_on else Conversation(sequence, messages, len(messages), [], tools)
            found.append(replace(last, messages=[*messages, answer], stops=[*last.stops, turn.stop_reason]))
            exchanges.append(_Exchange(list(asked), question, list(wrote), answer))
            call = _called(turn, tools)
            if self._strips and not (call is not None and self.chat.keeps_thoughts(call)):
                for exchange in exchanges[stripped:]:
                    exchange.asked, exchange.wrote = self.chat.without_thoughts(exchange.asked, exchange.wrote)
                    exchange.answer = self._without_thought(exchange)
                stripped = len(exchanges)
        return found

    def _opening(
        self, episode: Episode, sequence: Generation, length: int
    ) -> tuple[list[dict[str, Any]], tuple[Tool, ...]]:
        """The messages of a first prompt, and the tools that its template showed."""
        ids, messages = sequence.token_ids[:length], _messages_in(sequence.prompt)
        if self._written(sequence.prompt, messages, "", ()) == ids:
            return messages, ()
        if self.chat.takes_tools:
            tools = self._tools_of(episode)
            if tools and self._written(sequence.prompt, messages, episode.family, tools) == ids:
                return messages, tools
        raise LeftOut("prompt_not_reproduced")

    def _written(
        self, text: str, messages: Sequence[Mapping[str, str]], family: str, tools: Sequence[Tool]
    ) -> list[int] | None:
        """What the chat writes for a first prompt: members of a group share one."""
        if (text, family) not in self._ids:
            if len(self._ids) == _MOST_KEPT:
                self._ids.clear()
            try:
                self._ids[text, family] = self.chat.opening(messages, *([tools] if tools else []))
            except BadInput:
                self._ids[text, family] = None
        return self._ids[text, family]

    def _tools_of(self, episode: Episode) -> tuple[Tool, ...]:
        """The tools of a task family: its environment says them, and the record does not."""
        if episode.family not in self._tools:
            from crl.envs import make_environment

            self._tools[episode.family] = ()
            family = self._method.family(episode.family)
            assert family is not None
            # Whatever it lacks here: its prompts are then not reproduced.
            with suppress(Exception), closing(make_environment(family)) as environment:
                actions = environment.reset_many([episode.environment_seed])[0].actions
                self._tools[episode.family] = actions.tools if isinstance(actions, ToolCalls) else ()
        return self._tools[episode.family]

    def _question(
        self, before: Turn, sequence: Generation, asked: Sequence[int], tools: Sequence[Tool]
    ) -> dict[str, Any]:
        """What came behind a turn, from its ids."""
        ended = before.stop_reason == StopReason.end_of_turn
        how: dict[str, Any] = {"ended": ended, "by": sequence.token_ids[before.last_token - 1] if ended else None}
        call = _called(before, tools)
        text = self.chat.replied(asked, **how, call=call)
        if text is None:
            raise LeftOut("reply_not_reproduced")
        # Where the template has no turn for results, they are the user's.
        if call is None or self.chat.reply(text, **how) == list(asked):
            return {"role": "user", "content": text}
        return {"role": "tool", "name": call, "content": text}

    def _answer(self, wrote: Sequence[int], tools: Sequence[Tool]) -> dict[str, Any]:
        text = self.chat.turn_text(wrote)
        calls = self.chat.calls(wrote, tools) if tools else []
        if not calls:
            return {"role": "assistant", "content": text}
        parsed = cast(ConversationChat, self.chat).parsed(wrote, tools)
        thought = text.removesuffix(after_thoughts(text) or "") if parsed.thought else ""
        called = [{"type": "function", "function": json.loads(call)} for call in calls]
        return {"role": "assistant", "content": thought + parsed.content, "tool_calls": called}

    def _without_thought(self, exchange: _Exchange) -> dict[str, Any]:
        if "tool_calls" not in exchange.answer:
            return {**exchange.answer, "content": self.chat.decode(exchange.wrote)}
        return {**exchange.answer, "content": (after_thoughts(exchange.answer["content"]) or "").lstrip()}

    def _of_program(self, turns: Sequence[Turn], sequence: Generation) -> Conversation:
        """A conversation that a program put together. Tools that it offered are not in the record."""
        if not turns:
            raise LeftOut("no_answer")
        if not sum(sequence.loss_mask):  # of a model beside the actor
            raise LeftOut("not_trained")
        chat = cast(ConversationChat, self.chat)
        messages = _messages_in(sequence.prompt)
        held, ids = len(messages), sequence.token_ids
        if _or_none(partial(chat.conversation, _as_messages(messages))) != ids[: turns[0].first_token]:
            raise LeftOut("prompt_not_reproduced")
        for turn, before in zip(turns, [None, *turns], strict=False):
            if before is not None:
                new, ended = _messages_in(turn.observation), before.stop_reason == StopReason.end_of_turn
                by = ids[before.last_token - 1] if ended else None
                written = _or_none(partial(chat.follow, _as_messages(new), ended=ended, by=by))
                if written != ids[before.last_token : turn.first_token]:
                    raise LeftOut("reply_not_reproduced")
                messages += new
            messages.append(self._answer(ids[turn.first_token : turn.last_token], ()))
        return Conversation(sequence, messages, held, [turn.stop_reason for turn in turns])


def _messages_in(text: str) -> list[dict[str, Any]]:
    """The messages of a text that `prompt_text` made. A text in one of them can look like another message: whoever
    asks compares what they are written as."""
    _, *parts = _MARK.split(text)
    found: list[dict[str, Any]] = []
    for role, content in zip(parts[::2], parts[1::2], strict=True):
        kind, _, name = role.partition(" ")
        found.append({"role": kind, **({"name": name} if name else {}), "content": content})
    if not found:
        raise LeftOut("prompt_not_reproduced")
    return found


def _as_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [Message(each["role"], each["content"], name=each.get("name", "")) for each in messages]


def _or_none(write: Callable[[], list[int]]) -> list[int] | None:
    try:
        return write()
    except BadInput:
        return None


def _called(turn: Turn, tools: Sequence[Tool]) -> str | None:
    """The tool that a turn called, the last of several."""
    if not tools or turn.action in (None, QUESTION, SUMMARY):
        return None
    calls = json.loads(turn.action)
    return str((calls[-1] if isinstance(calls, list) else calls)["name"])
