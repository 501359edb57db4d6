"""Chat messages to token ids that are only ever appended to.

A chat template is rendered once with placeholders instead of texts, so its control text (`<|im_start|>user\n`, …) and
the texts of messages never mix: control text becomes special ids, texts never do, whatever they contain. Between two
special tokens, control text and message text are encoded in one go, so ordinary texts get exactly the ids that the
template's own rendering would get.

Leading and trailing white space that a template would strip from a message is kept: ids must not depend on a rewrite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput
from crl.policies.turn import StopStrings
from crl.protocols import Tool
from crl.text.answers import THOUGHT_TAG, after_thoughts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Letters and digits only: no template strips, escapes or splits on them.
_SLOT = "crlSlot{}Text"
_SLOTS = re.compile(r"crlSlot(\d+)Text")
_NO_THOUGHT = "\n</think>\n\n"
# Some templates write today's date into the prompt; rows must not depend on the clock. A macro hides the function.
_NO_CLOCK = "{% macro strftime_now(format) %}26 July 2024{% endmacro %}"


class ChatFormat:
    """A model's chat format, built from its tokenizer's template (protocol `Chat`).

    Attributes:
        end_ids: ids that end an assistant's turn in this template (one id; generation adds the model's own).
        opens_thought: whether the template ends a prompt with the beginning of a thought, as thinking models' do.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, name: str, *, multi_turn: bool = True) -> None:
        """
        Args:
            tokenizer: a fast tokenizer with a chat template.
            name: the model, for messages.
            multi_turn: whether `reply` will be used. A template that rewrites history (drops earlier thoughts, say)
                can serve one-turn chats only, so it is refused unless this is False.

        Raises:
            BadInput: no template, no fast tokenizer, a template that rewrites history or moves texts about, or one that
                does not end an assistant's turn with a special token.
        """
        self._tokenizer, self._name = tokenizer, name
        if not getattr(tokenizer, "chat_template", None):
            raise self._refuse("it has no chat template", "Use an instruction-tuned model.")
        if not getattr(tokenizer, "is_fast", False):
            raise self._refuse("its tokenizer has no tokenizer.json", "Convert the tokenizer to the fast format.")
        self._template = _NO_CLOCK + tokenizer.get_chat_template()
        self._control_ids: dict[str, int] = {text: index for text, index in tokenizer.get_added_vocab().items() if text}
        # Longest first: of two control strings that begin alike, the longer one is meant.
        strings = sorted(self._control_ids, key=lambda text: (-len(text), text))
        self._control = re.compile("|".join(map(re.escape, strings))) if strings else re.compile(r"(?!)")
        # A thought's tags may be control tokens; what follows the end of a thought is found by them, so they are read.
        self._hidden_ids = {index for text, index in self._control_ids.items() if not THOUGHT_TAG.fullmatch(text)}
        self._plain = self._without_control_tokens()
        self._multi_turn = multi_turn
        self._after, self._before = self._between_turns()
        self.end_ids = (self._after_end_id(),)
        self.opens_thought = after_thoughts(self._before) is None
        if multi_turn:
            self._check_history_is_kept()

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools; many leave them out without a word."""
        probe = Tool("crlProbeTool", "A probe.", {"type": "object", "properties": {}})
        try:
            return probe.name in self._render_slots(["system", "user"], ready=True, tools=[probe])
        except BadInput:
            return False

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole first prompt, ready for the assistant to answer.

        Args:
            messages: `{"role": "system" | "user" | "assistant", "content": text}`, the last one the user's.
            tools: what the template is to offer; only where it `takes_tools`.

        Raises:
            BadInput: the template refuses these messages (some know no system role), or a tool's text holds a control
                token.
        """
        for tool in tools:
            said = json.dumps([tool.name, tool.description, tool.parameters], ensure_ascii=False)
            if self._control.search(said) or _SLOTS.search(said):
                raise self._refuse(f"the tool {tool.name!r} holds one of its control tokens", "Describe it otherwise.")
        rendered = self._render_slots([message["role"] for message in messages], ready=True, tools=tools)
        return self._encode(rendered, [message["content"] for message in messages])

    def reply(self, text: str, *, ended: bool) -> list[int]:
        """Ids after an assistant turn: its end (unless `ended`: it was sampled), the user's text, the next opening."""
        if not self._multi_turn:
            raise self._refuse_history()
        ids = self._encode(self._after + _SLOT.format(0) + self._before, [text])
        return ids[1:] if ended else ids

    def answer(self, text: str) -> list[int]:
        """Ids a model would have sampled to say `text` and end its turn (demonstrations only).

        A thought that the prompt began is ended first.
        """
        thought = _NO_THOUGHT if self.opens_thought else ""
        return [*self._encode(thought + _SLOT.format(0), [text]), self.end_ids[0]]

    def stops(self, strings: Sequence[str]) -> StopStrings:
        """What finds the ids that complete one of some strings; a control token completes what is part of its name."""
        hidden = {text: index for text, index in self._control_ids.items() if index in self._hidden_ids}
        return StopStrings(strings, self.decode, hidden)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids. Control tokens between two texts are a blank: words on both sides must not run together
        (`north<|im_start|>north`); elsewhere they are nothing. The tags of thoughts stay."""
        pieces = [list(ids) for hidden, ids in groupby(token_ids, self._hidden_ids.__contains__) if not hidden]
        return " ".join(str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)) for ids in pieces)

    def _without_control_tokens(self) -> Any:
        """The same tokenizer knowing no added token: whatever it encodes is text."""
        from tokenizers import Tokenizer

        content = json.loads(self._tokenizer.backend_tokenizer.to_str())
        content["added_tokens"] = []
        content["post_processor"] = None
        plain = Tokenizer.from_str(json.dumps(content))
        for text, index in self._control_ids.items():
            if index in plain.encode(text, add_special_tokens=False).ids:
                raise self._refuse(
                    f"its tokenizer turns the written text {text!r} into the control token", "Use another model."
                )
        return plain

    def _encode(self, rendered: str, texts: Sequence[str]) -> list[int]:
        """Ids of a rendering: its control strings as control tokens, everything else, with its texts, as text."""
        ids: list[int] = []
        position = 0
        for match in self._control.finditer(rendered):
            ids += self._encode_text(rendered[position : match.start()], texts)
            ids.append(self._control_ids[match.group()])
            position = match.end()
        return ids + self._encode_text(rendered[position:], texts)

    def _encode_text(self, rendered: str, texts: Sequence[str]) -> list[int]:
        if not rendered:
            return []
        filled = _SLOTS.sub(lambda match: texts[int(match.group(1))], rendered)
        # A lone surrogate (JSON can spell one) is no text a tokenizer takes; it becomes a question mark.
        valid = filled.encode("utf-8", "replace").decode("utf-8")
        return list(self._plain.encode(valid, add_special_tokens=False).ids)

    def _render(self, messages: Sequence[Mapping[str, str]], *, ready: bool, tools: Sequence[Tool] = ()) -> str:
        import jinja2

        try:
            rendered = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=ready,
                chat_template=self._template,
                tools=[{"type": "function", "function": asdict(tool)} for tool in tools] or None,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            roles = [message["role"] for message in messages]
            raise self._refuse(
                f"its chat template refuses the roles {roles}: {error}",
                "Change the prompt (some templates know no system role), or use another model.",
            ) from error
        return str(rendered)

    def _render_slots(self, roles: Sequence[str], *, ready: bool, tools: Sequence[Tool] = ()) -> str:
        messages = [{"role": role, "content": _SLOT.format(index)} for index, role in enumerate(roles)]
        rendered = self._render(messages, ready=ready, tools=tools)
        if [int(index) for index in _SLOTS.findall(rendered)] != list(range(len(roles))):
            raise self._refuse(f"its chat template does not show each of {list(roles)} once, in order", "")
        return rendered

    def _between_turns(self) -> tuple[str, str]:
        """Control text from an assistant's text to the next user's, and from there to the assistant's next."""
        rendered = self._render_slots(["user", "assistant", "user"], ready=True)
        after = rendered.split(_SLOT.format(1))[1].split(_SLOT.format(2))[0]
        before = rendered.split(_SLOT.format(2))[1]
        return after.lstrip(), before  # white space before the end is the template's; the model does not write it

    def _after_end_id(self) -> int:
        match = self._control.match(self._after)
        if match is None:
            raise self._refuse(
                "its chat template does not end an assistant's turn with a special token",
                "Use a model whose template does (ChatML, Llama 3, Gemma, …).",
            )
        return self._control_ids[match.group()]

    def _check_history_is_kept(self) -> None:
        """Probe: every rendering is a prefix of the renderings of longer chats, with and without thoughts."""
        for answer in ("An answer.", "<think>\nA thought.\n</think>\n\nAn answer."):
            chat = [{"role": "user", "content": "A question."}]
            shown = self._render(chat, ready=True)
            for number in range(3):
                chat.append({"role": "assistant", "content": answer})
                longer = self._render(chat, ready=False)
                if not longer.startswith(shown) or answer not in longer[len(shown) :]:
                    raise self._refuse_history()
                chat.append({"role": "user", "content": f"Question {number}."})
                shown = self._render(chat, ready=True)
                if not shown.startswith(longer):
                    raise self._refuse_history()

    def _refuse_history(self) -> BadInput:
        return self._refuse(
            "its chat template rewrites history (earlier turns render differently once the chat goes on), so the ids "
            "sampled would not be the ids trained",
            "Use a model whose template only appends, such as the same family's non-thinking instruct model.",
        )

    def _refuse(self, problem: str, next_step: str) -> BadInput:
        return BadInput(
            f"The model {self._name!r} cannot be used for chat: {problem}.",
            expected="a chat template that only appends",
            where="the `model` of a role",
            next_step=next_step or "Use another model.",
        )
