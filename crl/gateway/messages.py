"""Chat completions in OpenAI's form: requests read, answers and errors written.

In training, what would change how a model is sampled is not taken from a request: temperature, top_p, max_tokens and
seed are read over, for what is trained is what the experiment says. Where an agent is served they count, and settings
without effect are refused (`Settings`). What cannot be answered as asked is refused, in the API's form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crl.protocols import Message, ParsedTurn, StopReason, Tool
from crl.text.calls import JSON, call_of
from crl.text.unicode import valid_text

MOST_MESSAGES, MOST_TOOLS, DEEPEST = 4096, 256, 64
ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
}  # fmt: skip
_REFUSED = {"audio": "audio", "functions": "functions (use tools)", "prediction": "prediction"}
_WITHOUT_EFFECT = ("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs")
_LARGEST_SEED = 1 << 63


class ApiError(Exception):
    """A request that is not answered, as the API says so."""

    def __init__(self, message: str, *, code: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """What is sent."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a call is to be sampled; what is None is as the model was evaluated."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A call, as far as it is read."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the counts of tokens."""
    stop: tuple[str, ...] = ()
    settings: Settings = Settings()
    conversation: str = ""
    """The one that it says it goes on with."""


def read_request(body: bytes | bytearray, *, served: bool = False) -> ChatRequest:
    """`served`: its settings of sampling count, and which conversation it names. Raises ApiError for what is no chat
    completion, or one that cannot be answered."""
    value = read_object(body)
    messages, model = value.get("messages"), value.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 200:
        raise _bad("A model is a name of at most 200 characters.", "model")
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_MESSAGES:
        raise _bad(f"There are between 1 and {MOST_MESSAGES} messages.", "messages")
    if value.get("n") not in (None, 1):
        raise _bad("A call has one answer: n is 1.", "n")
    for name, told in _REFUSED.items():
        if value.get(name):
            raise _bad(f"There is no {told} here.", name)
    form = value.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        raise _bad("Answers are text: ask for JSON in the prompt, and read it yourself.", "response_format")
    stop = value.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise _bad("stop is a text or a list of texts.", "stop")
    options = value.get("stream_options")
    tools = () if value.get("tool_choice") == "none" else _tools(value.get("tools") or [])
    return ChatRequest(
        model, _messages(messages), tools, bool(value.get("stream")),
        isinstance(options, dict) and bool(options.get("include_usage")), tuple(stop),
        _settings(value) if served else Settings(), _named(value) if served else "",
    )  # fmt: skip


def read_object(body: bytes | bytearray) -> dict[str, Any]:
    """Raises ApiError for what is no JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _bad(f"The body is no JSON: {type(error).__name__}.", None) from None
    if not isinstance(value, dict):
        raise _bad("The body is no JSON object.", None)
    return value


def no_such_model(name: str, models: Sequence[str]) -> ApiError:
    """Of a name that is not among those that are served."""
    there = f"There is no model {name[:200]!r}; there are {', '.join(models)}."
    return ApiError(there, code="model_not_found", status=404, param="model")


def _settings(value: Mapping[str, Any]) -> Settings:
    for name in _WITHOUT_EFFECT:
        if value.get(name):
            raise _bad(f"{name} has no effect here: leave it out.", name)
    name = "max_tokens" if value.get("max_completion_tokens") is None else "max_completion_tokens"
    return Settings(
        _number(value, "temperature", 0, 5), _number(value, "top_p", 0, 1),
        _whole(value, name, 1, 1 << 20), _whole(value, "seed", -_LARGEST_SEED, _LARGEST_SEED),
    )  # fmt: skip


def _named(value: Mapping[str, Any]) -> str:
    name = value.get("conversation_id") or ""
    if name and not _is_text(name):
        raise _bad("conversation_id is that of an earlier answer.", "conversation_id")
    return str(name)


def _number(value: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    given = value.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise _bad(f"{name} is a number from {least} to {most}.", name)
    return float(given)


def _whole(value: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    given = value.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise _bad(f"{name} is a whole number from {least} to {most}.", name)
    return given


def _messages(values: Sequence[Any]) -> tuple[Message, ...]:
    found: list[Message] = []
    names: dict[str, str] = {}
    """Of the tool that each call so far names, by its id."""
    for at, value in enumerate(values):
        where = f"messages[{at}]"
        role = ROLES.get(value.get("role", "")) if isinstance(value, dict) and _is_text(value.get("role")) else None
        if role is None:
            raise _bad(f"{where} has no role of {', '.join(ROLES)}.", where)
        content = _content(value.get("content"), f"{where}.content")
        calls: list[str] = []
        name = ""
        if role == "assistant":
            for call_id, call in _calls(value.get("tool_calls") or [], f"{where}.tool_calls"):
                names[call_id] = json.loads(call)["name"]
                calls.append(call)
        elif role == "tool":
            called = value.get("tool_call_id")
            if not _is_text(called) or called not in names:
                raise _bad(f"{where} answers no call of an earlier message.", f"{where}.tool_call_id")
            name = names[called]
        found.append(Message(role, content, tuple(calls), name))
    if found[-1].role not in ("user", "tool", "system"):
        raise _bad("The last message is the user's or a tool's.", "messages")
    return tuple(found)


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return valid_text(value)
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _bad("A message holds text, and nothing else: no images, no audio.", where)
    return valid_text("".join(part["text"] for part in parts))


def _calls(values: Any, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(values, list) or len(values) > MOST_TOOLS:
        raise _bad("tool_calls is a list.", where)
    for value in values:
        call = value.get("function") if isinstance(value, dict) else None
        try:
            written = call_of(call) if isinstance(call, dict) else None
        except (ValueError, RecursionError):
            written = None
        if written is None or not _is_text(value.get("id")) or not _is_shallow(json.loads(written)):
            raise _bad("A call has an id, a name, and a JSON object as arguments, not too deep.", where)
        yield value["id"], written


def _tools(values: Any) -> tuple[Tool, ...]:
    if not isinstance(values, list) or len(values) > MOST_TOOLS:
        raise _bad(f"tools is a list of at most {MOST_TOOLS}.", "tools")
    found = []
    for at, value in enumerate(values):
        called = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
        if not isinstance(called, dict) or not _is_text(called.get("name")):
            raise _bad(f"tools[{at}] is no function with a name.", f"tools[{at}]")
        parameters, about = called.get("parameters") or {}, called.get("description") or ""
        if not isinstance(parameters, dict) or not isinstance(about, str) or not _is_shallow(parameters):
            raise _bad(f"tools[{at}] has a description and a JSON schema, not too deep.", f"tools[{at}]")
        found.append(Tool(called["name"], valid_text(about), parameters))
    return tuple(found)


def _is_shallow(value: Any, levels: int = DEEPEST) -> bool:
    """Whether whoever reads it can go through all of it."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _bad(message: str, param: str | None) -> ApiError:
    return ApiError(message, code="invalid_request", param=param)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call is answered."""

    number: int
    """Of the answer, which its ids are made from."""
    parsed: ParsedTurn
    stop_reason: StopReason | None
    """None: it goes on."""
    prompt_tokens: int
    completion_tokens: int
    conversation: str = ""
    """Which it belongs to, where conversations have names."""
    entry_ids: tuple[str, ...] = ()
    """The experiences that the model was shown, where a client may know."""
    created: int = 0
    """Seconds since 1970. In training no time is in an answer: programs may act on all they read."""

    @property
    def finish_reason(self) -> str | None:
        """As the API says why the answer ends."""
        if self.stop_reason is None:
            return None
        if self.stop_reason is StopReason.length:
            return "length"
        return "tool_calls" if self.parsed.calls else "stop"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """The whole answer."""
        choice = {"index": 0, "message": self._message(), "logprobs": None, "finish_reason": self.finish_reason}
        return {**self._head(request, "chat.completion"), "choices": [choice], "usage": self._usage()}

    def chunks(self, request: ChatRequest, sent: ParsedTurn | None = None) -> Iterator[dict[str, Any]]:
        """The same as the chunks of a stream, behind those that hold `sent` (None: before any)."""
        head, delta = self._head(request, "chat.completion.chunk"), self._message()
        calls = delta.pop("tool_calls", None)
        if sent is not None:
            delta = {
                name: new[len(old) :]
                for name, old, new in (
                    ("content", sent.content, self.parsed.content),
                    ("reasoning_content", sent.thought, self.parsed.thought),
                )
                if new.startswith(old) and new != old
            }
        deltas: list[tuple[dict[str, Any], str | None]] = [(delta, None)] if delta else []
        if calls:
            deltas.append(({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}, None))
        if self.stop_reason is not None:
            deltas.append(({}, self.finish_reason))
        for delta, reason in deltas:
            yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        if request.usage and self.stop_reason is not None:
            yield {**head, "choices": [], "usage": self._usage()}

    def _head(self, request: ChatRequest, kind: str) -> dict[str, Any]:
        name = f"{self.conversation}-{self.number}" if self.conversation else f"{self.number}"
        head = {"id": f"chatcmpl-{name}", "object": kind, "created": self.created, "model": request.model}
        if self.conversation:
            head |= {"conversation_id": self.conversation, "entry_ids": list(self.entry_ids)}
        return head

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.parsed.content}
        if self.parsed.thought:
            message["reasoning_content"] = self.parsed.thought
        if self.parsed.calls:
            message["content"] = self.parsed.content or None
            message["tool_calls"] = as_tool_calls(self.parsed.calls, self.number)
        return message

    def _usage(self) -> dict[str, int]:
        read, wrote = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def as_tool_calls(calls: Sequence[str], number: int) -> list[dict[str, Any]]:
    """Calls as the API writes them; their ids are the same whenever the same answer is given."""
    return [
        {
            "id": f"call{number % 10_000:04d}{at % 10}" if at < 10 else f"call{number}x{at}",
            "type": "function",
            "function": {
                "name": (call := JSON.decode(written))["name"],
                "arguments": json.dumps(call["arguments"], ensure_ascii=False),
            },
        }
        for at, written in enumerate(calls)
    ]


def as_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as plain data in the API's form."""
    found: list[dict[str, Any]] = []
    ids: list[tuple[str, str]] = []
    """Names and ids of calls that no message answers yet."""
    for at, message in enumerate(messages):
        value: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            value["tool_calls"] = as_tool_calls(message.calls, at)
            ids += [(call["function"]["name"], call["id"]) for call in value["tool_calls"]]
        if message.role == "tool":
            pending = next((pair for pair in ids if pair[0] == message.name), (message.name, "call00000"))
            ids = [pair for pair in ids if pair is not pending]
            value |= {"name": message.name, "tool_call_id": pending[1]}
        found.append(value)
    return found
