"""What an endpoint answers: its models by name, and conversations with what guides each.

A conversation is retrieved for once, when it begins; its first user message is the query. A call belongs to the
conversation that it names, or whose answer it goes on from, else (a client leaves messages out) to the last one that
began alike. What was used last is held, in bounded memory; a conversation that was forgotten begins anew.

This samples nothing: `own_model` and `upstream` do, and put together what the model reads.
"""

from __future__ import annotations

import random
import secrets
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from crl.config import PromptConfig, RoleConfig, SamplingConfig
from crl.config.base import COLDEST
from crl.errors import CrlError
from crl.gateway.conversations import MARK, Conversations, first_of, key_of, marked, new_messages, with_text
from crl.gateway.messages import Answer, ApiError, ChatRequest, as_messages, no_such_model
from crl.gateway.server import Call
from crl.protocols import Message, ParsedTurn, StopReason
from crl.serve.recording import Recording
from crl.serve.source import Guidance
from crl.text.outputs import fill

MOST_CONVERSATIONS = 4096
MOST_SIZE = 16 << 20
"""Characters and ids of all conversations that are held; each takes some ten bytes, an id up to fifty."""
_KEY_SIZE = 300
_LEAST_TOP_P = 1e-6


class Agent(Protocol):
    """What of a trained agent an endpoint needs (`crl.serve.source.TrainedAgent`)."""

    @property
    def families(self) -> list[str]: ...

    @property
    def config(self) -> RoleConfig: ...

    def sampling(self, family: str) -> SamplingConfig: ...

    def prompts(self, family: str) -> Mapping[str, PromptConfig]: ...

    def retrieve(self, family: str, query: str) -> Guidance | None: ...


@dataclass(eq=False)
class Conversation:
    """A conversation that is held."""

    name: str
    family: str
    guidance: Guidance | None
    shown: str
    """What the model reads of its experience; empty: nothing."""
    opening: str
    """Key of what it began with."""
    ids: Conversations | None = None
    """Its ids, where they are known here."""
    answers: int = 0
    keys: set[str] = field(default_factory=set)
    """By which it is found: of its answers, and of what it began with."""
    last: str = ""
    """That of the last answer."""
    size: int = 0

    def answer(
        self, turn: ParsedTurn, stop_reason: StopReason | None, prompt_tokens: int, completion_tokens: int
    ) -> Answer:
        """Its next answer, or what is known of it."""
        entries = () if self.guidance is None else tuple(entry.entry_id for entry in self.guidance.entries)
        return Answer(
            self.answers, turn, stop_reason, prompt_tokens, completion_tokens,
            conversation=self.name, entry_ids=entries, created=int(time.time()),
        )  # fmt: skip


class Answering:
    """The conversations of an endpoint. Used by one thread at a time.

    Attributes:
        models: the names that it answers to.
    """

    def __init__(
        self, agent: Agent, *, bank: bool = True, free_share: float = 0.0, recording: Recording | None = None
    ) -> None:
        """`bank`: whether experiences are shown. `free_share`: of how many conversations none is, by chance."""
        self._agent, self._bank, self._free_share, self._recording = agent, bank, free_share, recording
        names = [f"actor/{family}" for family in agent.families]
        self._families = dict(zip(names, agent.families, strict=True))
        if len(names) == 1:
            self._families = {"actor": agent.families[0], **self._families}
        self.models = tuple(self._families)
        self._held: OrderedDict[str, Conversation] = OrderedDict()
        self._by_key: dict[str, Conversation] = {}
        self._size = 0

    def sampling(self, request: ChatRequest) -> SamplingConfig:
        """How a call is sampled: as in the held-out evaluation, but for what it says. Raises ApiError."""
        base, asked = self._agent.sampling(self._family(request)), request.settings
        settings = {
            "temperature": None if asked.temperature is None else max(asked.temperature, COLDEST),
            "top_p": None if asked.top_p is None else max(asked.top_p, _LEAST_TOP_P),
            "max_new_tokens": None if asked.max_tokens is None else min(asked.max_tokens, 32_768),
            "stop_strings": list(dict.fromkeys([*base.stop_strings, *request.stop])),
            "constrain": "none",
        }
        changed = {name: value for name, value in settings.items() if value is not None}
        try:
            return SamplingConfig.model_validate(base.model_dump() | changed)
        except ValidationError as error:
            told = error.errors()[0]
            raise ApiError(f"stop: {told['msg']}", code="invalid_request", param="stop") from None

    def conversation(self, request: ChatRequest) -> Conversation:
        """The conversation of a call, which begins with it unless it goes on. Raises ApiError."""
        family, messages = self._family(request), request.messages
        marked(messages)  # refused where there are several
        first = first_of(messages, "assistant")
        opening = key_of(messages[:first], request.tools)
        known = self._held.get(request.conversation)
        if known is None and first is not None:
            known = self._by_key.get(_before(request)) or self._by_key.get(opening)
        if known is not None and known.family == family:
            self._held.move_to_end(known.name)
            return known
        return self._begun(family, messages, opening)

    def answered(self, conversation: Conversation, request: ChatRequest, turn: ParsedTurn, *, ids: int = 0) -> None:
        """Take an answer; with it the conversation has so many `ids`."""
        messages = (*with_text(request.messages, ""), Message("assistant", turn.content, turn.calls))
        goes_on = conversation.last == _before(request)
        conversation.last = key_of((*request.messages, messages[-1]), request.tools)
        conversation.answers += 1
        if self._held.get(conversation.name) is conversation:  # else it was forgotten while it was answered
            keys = {conversation.last, conversation.opening}
            self._by_key |= dict.fromkeys(keys, conversation)
            conversation.keys |= keys
            size = ids + sum(len(message.content) for message in messages) + _KEY_SIZE * len(conversation.keys)
            self._size += size - conversation.size
            conversation.size = size
            self._forget()
        if self._recording is not None:
            start = len(messages) - 1 - len(new_messages(request.messages)) if goes_on else 0
            guidance = conversation.guidance
            more: dict[str, Any] = {}
            if guidance is not None:
                more["entry_ids"] = [entry.entry_id for entry in guidance.entries]
            if guidance is not None and not start:
                more["experience"] = guidance.text
            new, guided = as_messages(messages)[start:], guidance is not None
            self._recording.answered(conversation.name, conversation.family, guided, start, new, **more)

    def summarize(self, conversation: Conversation, request: ChatRequest) -> str:
        """What asks for a summary of a conversation; its goal is the query."""
        text = self._agent.prompts(conversation.family)["actor"].summarize or ""
        return fill(text, {"goal": _query(request.messages)})

    def _family(self, request: ChatRequest) -> str:
        family = self._families.get(request.model)
        if family is None:
            raise no_such_model(request.model, self.models)
        return family

    def _begun(self, family: str, messages: tuple[Message, ...], opening: str) -> Conversation:
        guidance = None
        query = _query(messages)
        if self._bank and query and random.random() >= self._free_share:
            guidance = self._agent.retrieve(family, query)
        shown = ""
        if guidance is not None:
            shown = fill(self._agent.prompts(family)["actor"].experience, {"experience": guidance.text})
        made = Conversation(secrets.token_hex(8), family, guidance, shown, opening)
        self._held[made.name] = made
        self._forget()
        return made

    def _forget(self) -> None:
        """Make room: what was used longest ago goes."""
        while len(self._held) > MOST_CONVERSATIONS or self._size > MOST_SIZE:
            _, oldest = self._held.popitem(last=False)
            self._size -= oldest.size
            for key in oldest.keys:
                if self._by_key.get(key) is oldest:
                    del self._by_key[key]


def _query(messages: Sequence[Message]) -> str:
    at = first_of(messages, "user")
    return "" if at is None else messages[at].content.replace(MARK, "")


def _before(request: ChatRequest) -> str:
    """Key of the answer that a call goes on from."""
    messages = request.messages
    return key_of(messages[: len(messages) - len(new_messages(messages))], request.tools)


@contextmanager
def refusing(call: Call) -> Iterator[None]:
    """What goes wrong inside is a call's answer, in the API's form; what nobody foresaw also stands on standard
    error."""
    try:
        yield
    except ApiError as error:
        call.refuse(error)
    except CrlError as error:  # whatever a template makes of what a client wrote
        call.refuse(ApiError(error.found, code="invalid_request", param="messages"))
    except Exception:
        call.refuse(failed())


def failed() -> ApiError:
    """The answer to a call that something went wrong with, which the traceback on standard error is of."""
    traceback.print_exc()
    return ApiError("The server failed; its standard error says why.", code="internal", status=500)
