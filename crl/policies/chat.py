"""Chat messages to token ids that are only ever appended to.

A chat template is rendered once with placeholders instead of texts, so its control text (`<|im_start|>user\n`, …) and
the texts of messages never mix: control text becomes special ids, texts never do, whatever they contain
(`crl/policies/chat_ids.py`). Ordinary texts get exactly the ids that the template's own rendering would get; a probe
says so of each model, with a short chat and with one of many thousand tokens.

Whoever saved a tokenizer after a call with truncation or padding has it in its `tokenizer.json`, and some have merges
left out at random (dropout). All of that is switched off: a chat is encoded whole, and in one way.

Where a template shows no system text, that is the beginning of the first user message, as the makers of such models
(Gemma) advise.

Leading and trailing white space that a template would strip from a message is kept: ids must not depend on a rewrite.

A chat of several turns is only ever appended to: between two turns stands what the model's own template writes there in
a short chat. Some templates render earlier turns anew once a chat goes on (they drop thoughts). Here nothing is
rendered again: what was sampled stays in the history, and is what is trained. A checkpoint then gets TRL's training
template of the family, where that keeps thoughts too. Where a role's history is to be without thoughts, their ids are
cut out (:meth:`ChatFormat.without_thoughts`), and a checkpoint gets the template that does so.

Tool calls are read in the model's own format, and answered in it: see `crl/policies/tool_turns.py`.
"""

from __future__ import annotations

import inspect
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property, partial
from itertools import groupby, pairwise, product
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput
from crl.policies.bounded import SECONDS, TookTooLong, bounded
from crl.policies.chat_ids import SLOT, SLOTS, ChatIds, ForgeableToken
from crl.policies.tool_turns import PROBE, PROBE_CALL, THOUGHTS, ToolTurns, in_words, schema_of
from crl.policies.turn import StopStrings
from crl.protocols import Message, ParsedTurn, Tool
from crl.text.answers import THOUGHT_TAG, after_thoughts, marks_thought, thought_of, written_behind
from crl.text.calls import call_of, json_calls
from crl.text.channels import CHANNEL_TOKENS, MESSAGE, START, one_text
from crl.text.prefixes import shared_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from crl.config import RoleConfig

_SCREEN = (
    "╔═══════════╗   Dlvl:1  $:0  HP:14(14)\n"
    "║...........+###   @ stands south-east of the fountain {\n"
    "║..<....d...║  #\t\t\x1b[1mYou see here:\x1b[0m a +0 dagger (weapon in hand)\n"
    "╚═══|-|═════╝  ##########      ^^^\n\n\n"
)
_PAGE = (
    "Search results (page 3 of 17) [Back to Search]: www.example.org/a?b=1&c=%20 <b>Rückgabe</b> … 12,345.67 € – "
    "“São Paulo”, Ελλάδα, Москва, 北京市の天気, العربية, हिन्दी, 🙂👩‍🚀, x² ≠ ½, naïve café, A\u00a0B, zero\u200bwidth\n"
)
_CODE = (
    "```python\r\ndef f(x):\r\n        return {'a': [x, *range(10)], \"b\": None}  # TODO\r\n```\n"
    "$ ls -l | grep '*.py'\n"
    '{"name": "search", "arguments": {"query": "a\\nb", "k": 5}}\n'
)
OWN, TRAINING, FILE = "the model's own", "TRL's training template of its family", "roles.<name>.chat_template"
"""Templates, in words."""
_THREE = ["user", "assistant", "user"]
_STAY = "earlier turns stay as they were sampled, thoughts too"
_GO, _BETWEEN = "earlier turns stay without their thoughts", " (but between tool calls)"
# Some templates write today's date into the prompt; rows must not depend on the clock. A macro hides the function.
_FIRST_SLOT = 4
"""Of what follows a turn: those before are of the chats that `tool_turns` renders."""
_CALL_BEGINS = re.compile(r"[{<]|\[\s*\{|\S*[:.(\[]$|\n[^\n]*$")
"""What of an answer, before the name of its first call, belongs to the call."""
_NO_CLOCK = "{% macro strftime_now(format) %}26 July 2024{% endmacro %}"


class ChatFormat:
    """A model's chat format, built from its tokenizer's template (protocol `Chat`).

    Attributes:
        template: which template writes prompts, and what becomes of earlier turns, in words.
        rewrites: whether that template would render earlier turns anew.
        written: the template that a checkpoint gets. It renders a chat as it was trained with, if there is such a one.
        end_ids: ids that end a turn in this template, a tool call's last (generation adds the model's own).
        opens_thought: whether the template ends a prompt with the beginning of a thought, as thinking models' do.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        name: str,
        *,
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        rows: int | None = None,
        strips: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: a fast tokenizer; its truncation, padding and dropout are switched off.
            name: the model, for messages.
            template: a chat template in place of the tokenizer's own.
            template_kwargs: what the template is given beside the messages (`enable_thinking`).
            strips: whether later prompts are :meth:`without_thoughts`.
            rows: of the model's embeddings; None: any id may be used.

        Raises:
            BadInput: no template, no fast tokenizer, a template that moves the texts of turns about, that does not read
                one of `template_kwargs`, or that does not end an assistant's turn with a special token; ids that the
                embeddings have no row for.
        """
        self._tokenizer, self._name = tokenizer, name
        if template is None and not getattr(tokenizer, "chat_template", None):
            raise self._refuse("it has no chat template", f"Use an instruction-tuned model, or name a file: {FILE}.")
        if not getattr(tokenizer, "is_fast", False):
            raise self._refuse("its tokenizer has no tokenizer.json", "Convert the tokenizer to the fast format.")
        _settle(tokenizer)
        try:
            text = tokenizer.get_chat_template() if template is None else template
        except ValueError as error:
            raise self._refuse(f"it has several chat templates: {error}", f"Name a file with one: {FILE}.") from error
        self._template, self._template_kwargs = _NO_CLOCK + text, dict(template_kwargs or {})
        self._check_kwargs(text)
        try:
            self._ids = ChatIds(tokenizer, text)
        except ForgeableToken as error:
            raise self._refuse(
                f"its tokenizer turns the written text {str(error)!r} into the control token", "Use another model."
            ) from error
        # A thought's tags may be control tokens; what follows the end of a thought is found by them, so they are read.
        self._hidden_ids = {index for text, index in self._ids.control_ids.items() if not marks_thought(text)}
        channels = self._ids.control_ids.keys() & CHANNEL_TOKENS
        self._channel_ids = {self._ids.control_ids[each] for each in channels} if MESSAGE in channels else set()
        self._special_ids = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._in_parts = self._takes_parts()
        end = self._read_turns()
        self._tools = ToolTurns(tokenizer, text, self._render, self._ids, end)
        call_end = self._tools.end_id
        self.end_ids = (end,) if call_end in (None, end) else (end, call_end)
        self._folds_system = not self._shows_system()
        self._check_ids(rows)
        self.rewrites = not self._keeps_history(text)
        training = self._training_template() if self.rewrites and template is None and not strips else None
        self.written = training or text
        if "strftime_now" in self.written:
            self.written = _NO_CLOCK + self.written
        self.template = OWN if template is None else FILE
        if strips:
            self.template += f"; {_GO}" + (_BETWEEN if self._tools.keeps_thoughts else "")
        elif self.rewrites:
            told = "which it would change" if training is None else f"a checkpoint gets {TRAINING}"
            self.template += f"; {_STAY} ({told})"

    @classmethod
    def of(cls, role: RoleConfig | None, tokenizer: PreTrainedTokenizerFast, name: str, *, rows: int) -> ChatFormat:
        """With the settings of a role; None: without any."""
        if role is None:
            return cls(tokenizer, name, rows=rows)
        template, given, strips = role.chat_template, role.chat_template_kwargs, role.history == "strip_thoughts"
        return cls(tokenizer, name, template=template, template_kwargs=given, rows=rows, strips=strips)

    @property
    def response_template(self) -> Any:
        """By which transformers parses its answers with tool calls; None: it takes no tools, or nobody has one."""
        return self._tools.response_template if self.takes_tools else None

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools (many leave them out without a word) and its calls can be read."""
        try:
            rendered = self._render_slots(["user"], ready=True, tools=[PROBE])
        except BadInput:
            return False
        return PROBE.name in rendered and self._reads_calls()

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole first prompt, ready for the assistant to answer.

        Args:
            messages: `{"role": "system" | "user" | "assistant", "content": text}`, the last one the user's.
            tools: what the template is to offer; only where it `takes_tools`.

        Raises:
            BadInput: the template refuses these messages, or a tool's text holds a control token.
        """
        self._check_tools(tools)
        messages = self._as_shown(messages)
        rendered = self._render_slots([message["role"] for message in messages], ready=True, tools=tools)
        return self._ids.encode(rendered, [message["content"] for message in messages])

    def reply(self, text: str, *, ended: bool, by: int | None = None, call: str | None = None) -> list[int]:
        """Ids after an assistant turn: its end (unless `ended`: it was sampled), the user's text, the next opening.

        Args:
            text: what is replied.
            ended: whether the turn ended; else it was cut off.
            by: the id that ended it; None: the one that these ids would begin with.
            call: the name of the tool that it called, whose result the text is.
        """
        result = None if call is None else self._tools.result(call, text)
        ids = self._ids.encode(*(result or (self._after + SLOT.format(0) + self._before, [text])))
        # Where a template does not close a turn, its first id opens the next one (GLM): it stays behind another end.
        there = ended and (by is None or by == ids[0] or ids[0] in self._closing)
        return ids[1:] if there else ids

    def replied(
        self, token_ids: Sequence[int], *, ended: bool, by: int | None = None, call: str | None = None
    ) -> str | None:
        """The text of a reply: the inverse of :meth:`reply`; None where it writes these ids for no text."""
        slot = SLOT.format(0)
        form, texts = (call is not None and self._tools.result(call, slot)) or (
            self._after + slot + self._before,
            [slot],
        )
        before, _, after = SLOTS.sub(lambda found: texts[int(found[1])], form).partition(slot)
        control = set(self._ids.control_ids.values())
        places = [place for place, index in enumerate(token_ids) if index in control]
        later = len(self._ids.control.findall(after))
        there = len(places) - later
        if there < 0:
            return None
        begin, end = places[there - 1] + 1 if there else 0, places[there] if later else len(token_ids)
        between = self._visible(token_ids[begin:end])
        head, tail = self._ids.control.split(before)[-1], self._ids.control.split(after)[0]
        for shown, first, last in product((between, f" {between}"), (head, head.lstrip()), (tail, tail.rstrip())):
            text = shown.removeprefix(first).removesuffix(last)
            for said in (text, _unescaped(text)):
                if said is not None and self.reply(said, ended=ended, by=by, call=call) == list(token_ids):
                    return said
        return None

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """Text of a sampled turn, with the beginning of its thought where that stands in the prompt."""
        begun = list(THOUGHT_TAG.finditer(self._before))[-1].start() if self.opens_thought else len(self._before)
        return self._before[begun:] + self.decode(token_ids)

    def _check_tools(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            said = json.dumps([tool.name, tool.description, tool.parameters], ensure_ascii=False)
            if self._ids.control.search(said) or SLOTS.search(said):
                raise self._refuse(f"the tool {tool.name!r} holds one of its control tokens", "Describe it otherwise.")

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole conversation that a program wrote, ready for the assistant to answer.

        Where the template shows no tools, they are described at the end of the system text, a call is JSON, and its
        result the user's. Raises BadInput where the template refuses it, or a call holds a control token.
        """
        if not self.takes_tools:
            messages, tools = in_words(messages, tools), ()
        elif not self._tools.shows_calls:
            messages = in_words(messages)
        self._check_tools(tools)
        shown = self._as_shown(self._tools.messages(messages))
        texts = [str(message["content"] or "") for message in shown]
        called = ["tool_calls" in message for message in shown]  # beside calls, not every template shows a text
        slots = [
            message if called[at] and not texts[at] else {**message, "content": SLOT.format(at)}
            for at, message in enumerate(shown)
        ]
        rendered = self._render(slots, ready=True, tools=tools)
        self._require_slots(rendered, [at for at, calls in enumerate(called) if not calls])
        return self._ids.encode(rendered, self._tools.quoted(texts, [message["role"] for message in shown]))

    def follow(self, messages: Sequence[Message], *, ended: bool, by: int | None = None, calls: int = 0) -> list[int]:
        """Ids after a sampled turn: its end (unless `ended`, by the id `by`), the messages, the next opening.

        `calls`: of the sampled turn. Raises BadInput where the template refuses the messages.
        """
        if not (self.takes_tools and self._tools.shows_calls):
            messages = in_words(messages)
        answers = bool(calls) and messages[0].role == "tool"
        before = self._tools.called(calls) if answers else [_as_data("user", 0), _as_data("assistant", 1)]
        roles, first = [message.role for message in messages], _FIRST_SLOT
        following = [
            {**_as_data(message.role, first + at), **({"name": message.name} if message.role == "tool" else {})}
            for at, message in enumerate(messages)
        ]
        rendered = self._render(self._tools.answered(before, following), ready=True)
        behind = self._tools.behind(rendered, calls) if answers else rendered.partition(SLOT.format(1))[2].lstrip()
        self._require_slots(behind, range(first, first + len(messages)))
        ids = self._ids.encode(behind, [""] * first + self._tools.quoted([each.content for each in messages], roles))
        there = ended and (by is None or by == ids[0] or ids[0] in self._closing)
        return ids[1:] if there else ids

    def _require_slots(self, rendered: str, numbers: Sequence[int]) -> None:
        found = [int(number) for number in SLOTS.findall(rendered)]
        if any(found.count(number) != 1 for number in numbers):
            raise self._refuse("its chat template does not show each message of this conversation once", "")

    def parsed(self, token_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ParsedTurn:
        """A sampled turn: content, thought, and the calls of `tools` in it. Inside a thought nothing is said."""
        text = self.decode(token_ids)
        answer = after_thoughts(text, begun=self.opens_thought)
        if answer is None:
            return ParsedTurn("", THOUGHT_TAG.sub("", text).strip())
        thought = THOUGHT_TAG.sub("", text.removesuffix(answer)).strip()
        names = {tool.name for tool in tools}
        calls = (self.calls(token_ids, tools) if self.takes_tools else json_calls(answer, names)) if names else []
        if not calls:
            return ParsedTurn(answer.strip(), thought)
        if self.takes_tools and self._tools.shows_calls and not self._tools.shows_several:
            calls = calls[:1]
        before = answer[: max(answer.find(json.loads(calls[0])["name"]), 0)]
        return ParsedTurn(_CALL_BEGINS.split(before)[0].strip(), thought, tuple(calls))

    def keeps_thoughts(self, call: str) -> bool:
        """Whether the template leaves thoughts in a history that goes on with the result of this tool."""
        return self._tools.keeps_thoughts and self._tools.result(call, "") is not None

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        """The end of a prompt and what was sampled behind it, as both stand in later prompts that leave thoughts out.

        Ids are left out and none is made: the thought, what the prompt began it with, and line breaks behind it unless
        the template keeps them. Where it writes an empty thought there (GLM), the ids of its tags stay.
        """
        if self._channel_ids:
            return list(asked), self._without_analysis(wrote)
        begin = self._answer_begins(wrote)
        same = shared_prefix(self._ready, self._later)
        begun, rest = self._ready[same:], self._later[same:]
        first = 0 if begun else shared_prefix(rest, wrote[:begin])
        last = max(first, begin - len(rest) + first)
        if list(wrote[last:begin]) != rest[first:]:  # the model writes otherwise than its template
            begun, first, last = self._ready[self._bare :], 0, begin
        gone = len(begun) if list(asked[len(asked) - len(begun) :]) == begun else 0
        return list(asked[: len(asked) - gone]), [*wrote[:first], *wrote[last:]]

    def _answer_begins(self, wrote: Sequence[int]) -> int:
        """How many ids of a turn are its thoughts, and line breaks behind them that go with them; all but its end where
        they do not end."""
        said = wrote[: len(wrote) - self._is_ended(wrote)]
        text = self._visible(said)
        answer = after_thoughts(text, begun=self.opens_thought)
        if answer is None:
            return len(said)
        thought = len(text) - len(answer)
        first = bisect_left(range(len(said) + 1), thought, key=lambda count: len(self._visible(said[:count])))
        if self._visible(said[:first])[thought:].strip():
            first -= 1  # an id that ends the thought and begins the answer
        goes = thought and not self._breaks_stay
        while goes and first < len(said) and said[first] not in self._hidden_ids:
            if self._visible(said[first : first + 1]).strip("\n"):
                break
            first += 1
        return first

    def _without_analysis(self, wrote: Sequence[int]) -> list[int]:
        """The messages of a turn (harmony) that are no thoughts; the first one's header stands in the prompt."""
        start = self._ids.control_ids[START]
        begins = [0, *(place for place, index in enumerate(wrote) if place and index == start), len(wrote)]
        messages = [list(wrote[first:last]) for first, last in pairwise(begins)]
        kept = [ids for ids in messages if not marks_thought(self.decode(ids)[: len("<think>")])]
        header = self._ready[len(self._ready) - self._ready[::-1].index(start) - 1 :]
        if kept and kept[0][: len(header)] == header:
            kept[0] = kept[0][len(header) :]
        return [index for ids in kept for index in ids] or list(wrote[len(wrote) - self._is_ended(wrote) :])

    def _is_ended(self, wrote: Sequence[int]) -> bool:
        """Whether the last id of a turn is a control token, and no tag of a thought."""
        return bool(wrote) and wrote[-1] in self._special_ids & self._hidden_ids

    def answer(self, text: str, *, call: bool = False) -> list[int]:
        """Ids a model would have sampled to say `text` and end its turn (demonstrations only).

        Before it stands what the template writes there: a header, the end of the thought that the prompt began, an
        empty thought; a thought of the text's own as the template writes thoughts. `call`: the text may be a tool call
        in JSON, which is then written in the model's own form.
        """
        thought, said = thought_of(text)
        calls = json_calls(said, frozenset()) if call else []
        written = self._tools.written(**json.loads(calls[-1]), thought=thought) if calls else None
        if written is not None:
            return self._ids.encode(written, [], continues=True)
        form, texts = self._begin + SLOT.format(1), ["", text]
        if thought and self._thinking is not None:
            form, texts = self._thinking, ["", said, thought]
        elif thought:  # in the text; the prompt may have begun it
            form = (after_thoughts(self._begin, begun=self.opens_thought) or "").lstrip() + SLOT.format(1)
            tag = THOUGHT_TAG.search(text)
            begun = self.opens_thought and tag is not None and not tag.group("end")
            texts = ["", text[tag.end() :].lstrip() if begun and tag else text]
        return [*self._ids.encode(form, texts, continues=True), self.end_ids[0]]

    @cached_property
    def _thinking(self) -> str | None:
        """What a model writes to think (slot 2) and answer (slot 1); None where its template shows no thoughts."""
        thinks = {**dict.fromkeys(THOUGHTS, SLOT.format(2)), "role": "assistant", "content": SLOT.format(1)}
        user = {"role": "user", "content": SLOT.format(0)}
        try:
            opened, whole = self._render([user], ready=True), self._render([user, thinks], ready=False)
        except BadInput:
            return None
        if sorted(map(int, SLOTS.findall(whole))) != [0, 1, 2] or (behind := written_behind(opened, whole)) is None:
            return None
        return behind[: behind.rindex(SLOT.format(1))] + SLOT.format(1)

    def calls(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> list[str]:
        """The tool calls of a sampled turn that can be read, in their order, as JSON with sorted keys."""
        if self._channel_ids:
            return self._calls_in(self.decode(token_ids), tools)
        ended = bool(token_ids) and token_ids[-1] in self._special_ids
        return self._calls_in(self._visible(token_ids[: len(token_ids) - ended], self._hidden_ids), tools)

    def _calls_in(self, written: str, tools: Sequence[Tool]) -> list[str]:
        answer = after_thoughts(written, begun=self.opens_thought)
        if answer is None:
            return []
        return self._tools.read(answer, tools) or json_calls(answer, {tool.name for tool in tools})

    def stops(self, strings: Sequence[str]) -> StopStrings:
        """What finds the ids that complete one of some strings; a control token completes what is part of its name."""
        hidden = {text: index for text, index in self._ids.control_ids.items() if index in self._hidden_ids}
        return StopStrings(strings, self._visible, hidden)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids. Control tokens between two texts are a blank: words on both sides must not run together
        (`north<|im_start|>north`); elsewhere they are nothing. The tags of thoughts stay; an answer of several messages
        (harmony) is one text, its thoughts in tags."""
        text = self._visible(token_ids, self._channel_ids)
        return one_text(text) if self._channel_ids else text

    def _visible(self, token_ids: Sequence[int], control: Collection[int] = ()) -> str:
        """Text of ids, in which `control` and the tags of thoughts are the only control tokens."""
        hidden = self._hidden_ids.difference(control)
        pieces = [list(ids) for gone, ids in groupby(token_ids, hidden.__contains__) if not gone]
        return " ".join(str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)) for ids in pieces)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        ready: bool,
        tools: Sequence[Tool] = (),
        template: str | None = None,
    ) -> str:
        import jinja2

        try:
            with bounded():
                rendered = self._tokenizer.apply_chat_template(
                    [self._as_written(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=ready,
                    chat_template=template or self._template,
                    tools=[schema_of(tool) for tool in tools] or None,
                    **self._template_kwargs,
                )
        except (TookTooLong, MemoryError) as error:
            raise self._refuse(
                f"its chat template has not ended after {SECONDS:.0f} s, or takes more memory than there is",
                f"Use another model, or name a file with another template: {FILE}.",
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise self._refuse(
                f"its chat template is no jinja, line {error.lineno}: {error.message}",
                f"Correct the template, or name a file with another one: {FILE}.",
            ) from error
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            roles = [message["role"] for message in messages]
            raise self._refuse(
                f"its chat template refuses the roles {roles}: {error}",
                "Change the prompt, or use another model.",
            ) from error
        return str(rendered)

    def _as_written(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template takes it: some of models that see take parts only."""
        if not (self._in_parts and isinstance(message["content"], str)):
            return dict(message)
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def _render_slots(self, roles: Sequence[str], *, ready: bool, tools: Sequence[Tool] = ()) -> str:
        messages = [{"role": role, "content": SLOT.format(index)} for index, role in enumerate(roles)]
        rendered = self._render(messages, ready=ready, tools=tools)
        if sorted(map(int, SLOTS.findall(rendered))) != list(range(len(roles))):
            raise self._refuse(f"its chat template does not show each of {list(roles)} once", "")
        return rendered

    def _takes_parts(self) -> bool:
        """Probe: whether a message is a list of parts, as templates of models that also see take it, and no text."""
        self._in_parts = False
        for in_parts in (False, True):
            with suppress(BadInput):
                self._in_parts = in_parts
                self._render_slots(_THREE, ready=True)
                return in_parts
        return False

    def _read_turns(self) -> int:
        """Read off the template what stands between turns: `_after` an assistant's text, `_before` its next one, and
        `_begin`, which it writes itself before its text; what closes a turn, if anything. Returns the id that ends one.
        """
        rendered = self._render_slots(_THREE, ready=True)
        if [int(index) for index in SLOTS.findall(rendered)] != [0, 1, 2]:
            raise self._refuse(f"its chat template does not show {_THREE} in order", f"Write one that does: {FILE}.")
        _, first, after, before = SLOTS.split(rendered)[::2]  # without the numbers of the slots
        # White space before the end is the template's; the model does not write it.
        self._after, self._before = after.lstrip(), before
        self.opens_thought = after_thoughts(before) is None
        self._begin = first.removeprefix(before) if first.startswith(before) else ""
        bare = before[: list(THOUGHT_TAG.finditer(before))[-1].start()] if self.opens_thought else before
        later = self._before_later("")
        self._breaks_stay = later is not None and self._before_later("\n\n") == later + "\n\n"
        self._ready, self._later, without = (
            self._ids.encode(each, [], continues=True) for each in (before, first if later is None else later, bare)
        )
        self._bare = len(without)
        last = self._after
        with suppress(BadInput):  # some templates want the last message to be the user's
            opened, whole = self._render_slots(_THREE[:1], ready=True), self._render_slots(_THREE[:2], ready=False)
            last = SLOTS.split(whole)[-1].lstrip()
            self._begin = SLOTS.split(written_behind(opened, whole) or "")[0]
        if self.opens_thought and after_thoughts(self._begin, begun=True) is None:
            self._begin = written_behind(before, before[: list(THOUGHT_TAG.finditer(before))[-1].start()]) or ""
        closes, goes_on = self._ids.control.match(last), self._ids.control.match(self._after)
        end = closes or goes_on
        if end is None:
            raise self._refuse(
                "its chat template does not end an assistant's turn with a special token",
                f"Use a model whose template does (ChatML, Llama 3, Gemma, …), or write one: {FILE}.",
            )
        self._closing = {self._ids.control_ids[goes_on.group()]} if closes and goes_on else set()
        return self._ids.control_ids[end.group()]

    def _before_later(self, breaks: str) -> str | None:
        """What the template writes before an answer, with these line breaks behind its thought, where it leaves the
        thought out; None where it leaves none out."""
        user, thought, said, last = map(SLOT.format, (0, 2, 1, 3))
        texts = (user, f"<think>\n{thought}\n</think>{breaks}{said}", last)
        messages = [{"role": role, "content": text} for role, text in zip(_THREE, texts, strict=True)]
        with suppress(BadInput):
            parts = SLOTS.split(self._render(messages, ready=True))
            if parts[1::2] == ["0", "1", "3"]:
                return str(parts[2])
        return None

    def _reads_calls(self) -> bool:
        """Probe: a call that the template writes is read again; whether so also where it writes none."""
        called = self._tools.written(**PROBE_CALL)
        if called is None:
            return True
        text = one_text(called) if self._channel_ids else called
        return self._calls_in(text, [PROBE]) == [call_of(PROBE_CALL)]

    def _as_shown(self, messages: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """The messages, the system text before the first user's where the template cannot show it by itself."""
        if not self._folds_system or [message["role"] for message in messages[:2]] != ["system", "user"]:
            return messages
        system, user, *others = messages
        return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *others]

    def _shows_system(self) -> bool:
        """Probe: a system text is shown once, whatever follows."""
        try:
            return all(self._render_slots(["system", *_THREE[:number]], ready=True) for number in (1, 3))
        except BadInput:
            return False

    def _training_template(self) -> str | None:
        """TRL's training template of the family whose template this tokenizer has, letter for letter, where it opens a
        chat as that does and keeps earlier turns; None: there is none."""
        import jinja2
        from trl.chat_template_utils import get_training_chat_template

        try:
            found = get_training_chat_template(self._tokenizer)
        except (jinja2.TemplateError, TypeError, ValueError):
            return None
        if found is None or not self._keeps_history(found):
            return None
        chat = [{"role": "user", "content": "A question."}]
        same = self._render(chat, ready=True, template=_NO_CLOCK + found) == self._render(chat, ready=True)
        return found if same else None

    def _keeps_history(self, template: str) -> bool:
        """Probe: every rendering is a prefix of the renderings of longer chats, with and without thoughts; where the
        prompt begins a thought or holds one, with the kind of answer that this asks for."""
        template = _NO_CLOCK + template
        thinks = None if after_thoughts(self._before) == self._before else self.opens_thought
        for thought in ("", "<think>\nA thought.\n</think>\n\n"):
            if thinks is not None and thinks != bool(thought):
                continue
            answer = f"{thought}An answer."
            written = answer.removeprefix("<think>\n") if self.opens_thought else answer
            chat = [{"role": "user", "content": "A question."}]
            shown = self._render(chat, ready=True, template=template)
            for number in range(3):
                chat.append({"role": "assistant", "content": answer})
                try:
                    longer = self._render(chat, ready=False, template=template)
                except BadInput:  # it wants the last message to be the user's
                    longer = shown + written
                ended = longer.removesuffix(self._tokenizer.eos_token or "")
                if ended.rstrip().endswith(str(self._tokenizer.convert_ids_to_tokens(self.end_ids[0]))):
                    longer = ended  # Phi-3's template closes the chat behind the end of the turn
                if not longer.startswith(shown) or written not in longer[len(shown) :]:
                    return False
                chat.append({"role": "user", "content": f"Question {number}."})
                shown = self._render(chat, ready=True, template=template)
                if not shown.startswith(longer):
                    return False
        return True

    def _check_kwargs(self, template: str) -> None:
        """Raise BadInput for a template argument that has no effect."""
        from jinja2 import TemplateSyntaxError
        from transformers.utils.chat_template_utils import _get_template_variables

        own = {"messages", *inspect.signature(self._tokenizer.apply_chat_template).parameters}
        own |= self._tokenizer.special_tokens_map.keys()
        try:
            read_by_it = _get_template_variables(template)
        except TemplateSyntaxError:
            return  # refused with its line where it is rendered
        for name in self._template_kwargs:
            if name in own or name not in read_by_it:
                read = "is set here" if name in own else "is not read by it"
                raise BadInput(
                    f"The chat template of {self._name!r} is given chat_template_kwargs.{name}, which {read}.",
                    expected="variables that the template reads, such as enable_thinking",
                    where="the `chat_template_kwargs` of a role",
                    next_step="correct the name, or leave it out: it would change no prompt",
                )

    def _check_ids(self, rows: int | None) -> None:
        """Probe: a chat gets the ids that the tokenizer gives to the template's own rendering, however long it is, and
        all of them have a row in the model."""
        short = ["A rule.", "A question.\nIn two lines.", "An answer.", "A question.\nIn two lines."]
        used = set(self.end_ids)
        for texts in (short, _long_texts(len(short), partial(self._ids.control.sub, ""))):
            roles = ("system", "user", "assistant", "user")
            messages = self._as_shown(
                [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            )
            rendered = self._render(messages, ready=True)
            found = self.opening(messages)
            expected = self._tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"]
            if found != expected:
                raise self._refuse(
                    "its tokenizer gives a whole chat other ids than its control tokens and its texts, so prompts "
                    f"would not be those it was trained with ({self._first_difference(found, expected)})",
                    "",
                )
            used.update(found)
        if rows is not None:
            self._check_rows(rows, used)

    def _first_difference(self, found: Sequence[int], expected: Sequence[int]) -> str:
        """Where two encodings of one chat part, in words."""
        same = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
        if same is None:
            return f"{len(found)} ids in place of {len(expected)}"
        one, other = (self._tokenizer.convert_ids_to_tokens(list(ids[same : same + 5])) for ids in (found, expected))
        return f"from id {same} of {len(expected)} on: {one} in place of {other}"

    def _check_rows(self, rows: int, used: Set[int]) -> None:
        """Raise BadInput where the model has no row for an id that a chat can have: torch would end the process, or
        read what is not there. A token that no chat has (an image's, say) needs none."""
        written = {index for text, index in self._ids.control_ids.items() if text in self._template}
        beyond = sorted(index for index in used | written | {self._ids.largest_of_texts} if index >= rows)
        if beyond:
            token = self._tokenizer.convert_ids_to_tokens(beyond[0])
            raise self._refuse(
                f"its tokenizer has {len(self._tokenizer)} tokens and its embeddings have {rows} rows; {token!r}, the "
                f"id {beyond[0]}, has none",
                "Use the tokenizer that the model was saved with; or resize the model, "
                "model.resize_token_embeddings(len(tokenizer)), teach it the new tokens, and save both.",
            )

    def _refuse(self, problem: str, next_step: str) -> BadInput:
        return BadInput(
            f"The model {self._name!r} cannot be used for chat: {problem}.",
            expected="a chat template that shows each turn once, and a tokenizer whose ids are the model's",
            where="the `model` of a role",
            next_step=next_step or "Use another model.",
        )


def _as_data(role: str, slot: int) -> dict[str, Any]:
    return {"role": role, "content": SLOT.format(slot)}


def _settle(tokenizer: PreTrainedTokenizerFast) -> None:
    """Switch off what would make ids depend on how long a text is, or on chance."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None


def _long_texts(number: int, without: Callable[[str], str]) -> list[str]:
    """So many texts for the turns of a chat as environments write them, long and with unusual characters.

    Each has some 4,000 characters, and no white space around it.

    `without` takes out what would be control tokens.
    """
    parts = [
        "".join(f"{turn}. {part}" for turn in range(first, first + 4) for part in (_SCREEN, _PAGE, _CODE))
        + "-" * 300
        + "aAbB" * 100
        for first in range(number)
    ]
    return [without(f"Turn {index}. {part}THE KEY IS UNDER THE MAT.").strip() for index, part in enumerate(parts)]


def _unescaped(text: str) -> str | None:
    """The text that stands in a JSON text."""
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return None
