"""Tool calls as a model writes them, and the turn in which its template shows what came of one.

All of it is read off the template: it renders a chat with one call and its result, with slots instead of texts. Where
it cannot (it knows no calls), calls are JSON in the text, and their results are the user's turn.

Calls are found by the tokenizer's `response_template`, or TRL's of the family; else by what the template writes before
the name and between the name and JSON arguments (Mistral, DeepSeek).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput
from crl.policies.chat_ids import SLOT, SLOTS, ChatIds
from crl.protocols import Message, Tool, ToolCalls
from crl.text.answers import written_behind
from crl.text.calls import JSON, actions_text, call_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ARGUMENT = "crlArgument"
PROBE = Tool("crlProbeTool", "A probe.", {"type": "object", "properties": {_ARGUMENT: {"type": "string"}}})
PROBE_CALL: dict[str, Any] = {"name": PROBE.name, "arguments": {_ARGUMENT: "A text."}}
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Where chat templates look for the thought of a message."""
_USER, _NAME, _VALUE, _RESULT = map(SLOT.format, range(4))
_ID = "call00000"  # of the first call; Mistral's templates want nine letters and digits
_TOOL_NAME = re.compile(r"[\w.:/-]{1,64}")


def schema_of(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates and `parse_response` take it."""
    return {"type": "function", "function": asdict(tool)}


class ToolTurns:
    """How one template writes calls and their results.

    Attributes:
        end_id: the id that ends a turn with a call; None: nothing is known of it.
        shows_calls: whether it can; else they are in words.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        template: str,
        render: Callable[..., str],
        ids: ChatIds,
        end: int,
    ) -> None:
        """
        Args:
            tokenizer: whose `parse_response` reads calls.
            template: the chat template's text.
            render: renders messages with it; raises BadInput where it refuses them.
            ids: what its control tokens are.
            end: the id that ends a turn without a call.
        """
        self._tokenizer, self._template, self._render, self._ids = tokenizer, template, render, ids
        self.end_id: int | None = None
        self._before_name: re.Pattern[str] | None = None
        self._content: str | None = ""
        self._as_text = False
        self._result: str | None = None
        self._result_is_json = False
        self._closing = ""
        called = self._called()
        self.shows_calls = called is not None
        if called is not None:
            self._learn(called, frozenset([end, tokenizer.eos_token_id]))

    @cached_property
    def response_template(self) -> Any:
        """By which transformers parses this model's answers: the tokenizer's, or TRL's of the family that has exactly
        this chat template; None: nobody has one."""
        from trl.chat_template_utils import add_response_schema  # seconds, and most models never need it

        own = getattr(self._tokenizer, "response_template", None)
        try:
            return own or add_response_schema(SimpleNamespace(chat_template=self._template)).response_template
        except ValueError:
            return None

    def _called(self) -> str | None:
        """A chat that ends with a call, rendered in the way that the template shows calls; None: it shows none."""
        for self._content, self._as_text in product(("", None), (False, True)):
            try:
                called = self._render(self._chat(_NAME, {_ARGUMENT: _VALUE})[:2], ready=False)
            except BadInput:
                continue
            if -1 < called.find(_NAME, called.find(_USER)) < called.find(_VALUE):
                return called
        return None

    def _chat(self, name: str, arguments: dict[str, Any], result: str = _RESULT) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": self._content, "tool_calls": [self._call(0, name, arguments)]},
            {"role": "tool", "name": name, "tool_call_id": _ID, "content": result},
        ]

    def _learn(self, called: str, ends: frozenset[int | None]) -> None:
        """Read the form of calls and results off a chat that ends with a call."""
        self._before_name = _pattern(called, self._ids.control)
        over = called.rindex(_VALUE) + len(_VALUE)
        found = list(self._ids.control.finditer(called, over))
        known = [mark for mark in found if self._ids.control_ids[mark.group()] in ends]
        marks = [mark for mark in found if self._is_special(mark.group())]
        end = next(iter(known or marks[-1:]), None)
        self.end_id = None if end is None else self._ids.control_ids[end.group()]
        try:
            answered = self._render(self._chat(_NAME, {_ARGUMENT: _VALUE}), ready=True)
            quoted = self._render(self._chat(_NAME, {_ARGUMENT: _VALUE}, f'{_RESULT}"'), ready=True)
        except BadInput:
            return
        if _VALUE not in answered:
            return
        # What closes the call, the same in both; before it, a template may leave out a thought that is not the last.
        closing = called[over : None if end is None else end.start()]
        at = answered.rindex(_VALUE) + len(_VALUE)
        while end is None and not answered.startswith(closing, at):
            closing = closing[:-1]
        at, self._closing = at + len(closing), closing
        if not answered.startswith(closing, at - len(closing)) or answered.count(_RESULT, at) != 1:
            return
        self._result, self._result_is_json = answered[at:], f'{_RESULT}\\"' in quoted
        opening = self._ids.control.match(answered, at)
        if self.end_id is None and opening is not None and self._is_special(opening.group()):
            self.end_id = self._ids.control_ids[opening.group()]  # GLM: the model begins the tool's turn

    def _is_special(self, control: str) -> bool:
        return bool(self._tokenizer.added_tokens_decoder[self._ids.control_ids[control]].special)

    @cached_property
    def keeps_thoughts(self) -> bool:
        """Whether the template shows a thought before a call with its result, and no longer once a user speaks."""
        user, call, result = self._chat(_NAME, {_ARGUMENT: _VALUE})
        thought, more = SLOT.format(4), [{"role": "assistant", "content": _RESULT}, {"role": "user", "content": _USER}]
        for form in (dict.fromkeys(THOUGHTS, thought), {"content": f"<think>\n{thought}\n</think>\n\n"}):
            with suppress(BadInput):
                shown = self._render([user, call | form, result], ready=True)
                later = self._render([user, call | form, result, *more], ready=True)
                if thought in shown and thought not in later:
                    return self._result is not None
        return False

    def result(self, name: str, text: str) -> tuple[str, list[str]] | None:
        """The result of a call, from the end of its turn to the next opening, with the texts of its slots; None where
        the template has no such turn."""
        if self._result is None or not _TOOL_NAME.fullmatch(name):
            return None
        shown = json.dumps(text, ensure_ascii=False)[1:-1] if self._result_is_json else text
        return self._result, ["", name, "", shown]

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the template takes them. Raises BadInput for a call that holds a control token."""
        found: list[dict[str, Any]] = []
        open_calls: list[tuple[str, str]] = []
        """Names and ids of calls without a result so far."""
        for message in messages:
            value: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.calls:
                if any(self._ids.control.search(call) or SLOTS.search(call) for call in message.calls):
                    raise _refused("a tool call holds one of its control tokens")
                calls = [json.loads(call) for call in message.calls]
                value["content"] = message.content or self._content
                value["tool_calls"] = [self._call(at, **call) for at, call in enumerate(calls)]
                open_calls = [(call["name"], _id_of(at)) for at, call in enumerate(calls)]
            elif message.role == "tool":
                pair = next((pair for pair in open_calls if pair[0] == message.name), (message.name, _ID))
                open_calls = [other for other in open_calls if other is not pair]
                value |= {"name": message.name, "tool_call_id": pair[1]}
            found.append(value)
        return found

    def called(self, calls: int) -> list[dict[str, Any]]:
        """A chat that ends with so many calls."""
        user, answer, _ = self._chat("crlTool", {_ARGUMENT: _VALUE})
        many = [self._call(at, "crlTool", {_ARGUMENT: _VALUE}) for at in range(calls)]
        return [user, {**answer, "tool_calls": many}]

    def answered(self, before: list[dict[str, Any]], following: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """That chat with what follows: the calls have the names of the tools whose results come."""
        results = [message for message in following if message["role"] == "tool"]
        for message, call in zip(results, before[-1].get("tool_calls", []), strict=False):
            if not _TOOL_NAME.fullmatch(message["name"]):
                raise _refused(f"{message['name']!r:.80} is no name of a tool")
            call["function"]["name"] = message["name"]
            message["tool_call_id"] = call["id"]
        return [*before, *following]

    def behind(self, rendered: str, calls: int) -> str:
        """What such a chat shows behind its last call."""
        closing = self._closing.replace(_ID, _id_of(calls - 1))
        at = rendered.rindex(_VALUE) + len(_VALUE) if rendered.count(_VALUE) == calls else -1
        if at < 0 or not rendered.startswith(closing, at):
            raise _refused(f"it does not show {calls} calls of one turn")
        return rendered[at + len(closing) :]

    @cached_property
    def shows_several(self) -> bool:
        """Probe: whether a turn may hold several calls."""
        results = [{"role": "tool", "name": PROBE.name, "content": ""} for _ in range(2)]
        try:
            return bool(self.behind(self._render(self.answered(self.called(2), results), ready=True), 2))
        except BadInput:
            return False

    def quoted(self, texts: Sequence[str], roles: Sequence[str]) -> list[str]:
        """The texts of messages as they stand in the template: some write results as JSON."""
        return [
            json.dumps(text, ensure_ascii=False)[1:-1] if role == "tool" and self._result_is_json else text
            for text, role in zip(texts, roles, strict=True)
        ]

    def _call(self, at: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        written = json.dumps(arguments, ensure_ascii=False) if self._as_text else arguments
        return {"id": _id_of(at), "type": "function", "function": {"name": name, "arguments": written}}

    def written(self, name: str, arguments: dict[str, Any], thought: str = "") -> str | None:
        """A call as the model would write it behind its opening, with a thought before it and the end of its turn; None
        where its template does not say how, or a text in it holds a control token."""
        given = json.dumps([name, arguments, thought], ensure_ascii=False)
        if self.end_id is None or self._ids.control.search(given):
            return None
        user, answer, _ = self._chat(name, arguments)
        try:
            opened = self._render([user], ready=True)
            called = self._render([user, answer | dict.fromkeys(THOUGHTS if thought else (), thought)], ready=False)
        except BadInput:
            return None
        behind = written_behind(opened, called)
        if behind is None:
            return None
        end = next(text for text, index in self._ids.control_ids.items() if index == self.end_id)
        call, found, _ = behind.rpartition(end)
        return (call if found else behind.rstrip()) + end

    def read(self, answer: str, tools: Sequence[Tool]) -> list[str]:
        """The calls in an answer, its control tokens in the text and its thoughts not; none where there is none in the
        model's own form, or where the last is not whole."""
        try:
            if self.response_template is not None:
                message = self._tokenizer.parse_response(
                    answer, self.response_template, prefix="", tools=[schema_of(tool) for tool in tools]
                )
                if calls := message.get("tool_calls"):
                    whole = _is_whole(answer, self.response_template)
                    return _readable(lambda each: each["function"], calls) if whole else []
            matches = [] if self._before_name is None else list(self._before_name.finditer(answer))
            return _readable(
                lambda match: {"name": match.group(1), "arguments": JSON.raw_decode(answer, match.end())[0]}, matches
            )
        except Exception:  # whatever a model writes is no error here, and what reads it is not ours
            return []


def in_words(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Message]:
    """A conversation for a template that shows no tools: described in the system text, calls as JSON, results as the
    user's. Neighbors of one role are one message: most such templates want the roles to take turns."""
    if tools:
        words = actions_text(ToolCalls(tuple(tools), several=True))
        first = messages[0].content if messages[0].role == "system" else ""
        rest = messages[1:] if messages[0].role == "system" else messages
        messages = [Message("system", f"{first}\n\nTo call a tool, {words}".lstrip("\n")), *rest]
    found: list[Message] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        content = "\n".join([*([message.content] if message.content else []), *message.calls])
        if found and found[-1].role == role:
            content = f"{found.pop().content}\n\n{content}"
        found.append(Message(role, content))
    return found


def _id_of(at: int) -> str:
    return f"call{at:05d}"


def _refused(problem: str) -> BadInput:
    return BadInput(
        f"The model's chat template refuses a conversation: {problem}.",
        expected="messages, tools and calls that it can show",
        where="a conversation of a program",
    )


def _readable(value: Callable[[Any], Mapping[str, Any]], found: Sequence[Any]) -> list[str]:
    """Those calls that can be read; none where the last cannot."""
    calls: list[str | None] = []
    for each in found:
        try:
            calls.append(call_of(value(each)))
        except ValueError:
            calls.append(None)
    return [call for call in calls if call is not None] if calls and calls[-1] is not None else []


def _pattern(called: str, control: re.Pattern[str]) -> re.Pattern[str] | None:
    """What finds calls whose arguments are a JSON object behind the name; None where the template writes another form,
    or JSON with the name in it."""
    shown = re.search(rf'{_NAME}(.*?)(?=\{{\s*"{_ARGUMENT}":\s*"{_VALUE}"\s*\}})', called, re.DOTALL)
    if shown is None:
        return None
    before = called[called.index(_USER) + len(_USER) : shown.start()]
    marks = list(control.finditer(before))
    before, between = before[marks[-1].start() :] if marks else before.lstrip(), shown.group(1)
    if not before.strip() or before.rstrip().endswith('"'):
        return None
    return re.compile(rf"{re.escape(before.strip())}\s*({_TOOL_NAME.pattern}?)\s*{re.escape(between.strip())}\s*")


def _is_whole(answer: str, template: Mapping[str, Any]) -> bool:
    """Whether the last call of an answer is closed; what is in JSON closes itself, and is no JSON before."""
    field = template["fields"]["tool_calls"]
    if "json" in field["content"]:
        return True
    begin, end = (field.get(f"{key}_pattern") or re.escape(field[key]) for key in ("open", "close"))
    begun = list(re.finditer(begin, answer))
    return not begun or re.search(end, answer[begun[-1].end() :]) is not None
