"""Chat messages to token ids that are only ever appended to.

A chat template is rendered once with placeholders instead of texts, so its control text (`<|im_start|>user\n`, …) and
the texts of messages never mix: control text becomes special ids, texts never do, whatever they contain
(`crl/policies/chat_ids.py`). Ordinary texts get exactly the ids that the template's own rendering would get; a probe
says so of each model, with a short chat and with one of many thousand tokens.

Whoever saved a tokenizer after a call with truncation or padding has it in its `tokenizer.json`, and some have merges
left out at random (dropout). All of that is switched off: a chat is encoded whole, and in one way.

Where a template knows no system role, or moves the system text about, the system text is the beginning of the first
user message, as the makers of such models (Gemma, Mistral) advise.

Leading and trailing white space that a template would strip from a message is kept: ids must not depend on a rewrite.

A chat of several turns is only ever appended to. Where a model's own template renders earlier turns anew once the chat
goes on (it drops thoughts, say), TRL's training template of its family takes its place, if TRL has one that does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING

from crl.errors import BadInput
from crl.policies.chat_ids import SLOT, SLOTS, ChatIds, ForgeableToken
from crl.policies.turn import StopStrings
from crl.protocols import Tool
from crl.text.answers import THOUGHT_TAG, after_thoughts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
_NO_THOUGHT = "\n</think>\n\n"
OWN, TRAINING = "the model's own", "TRL's training template of its family"
"""Which template writes prompts."""
# Some templates write today's date into the prompt; rows must not depend on the clock. A macro hides the function.
_NO_CLOCK = "{% macro strftime_now(format) %}26 July 2024{% endmacro %}"


class ChatFormat:
    """A model's chat format, built from its tokenizer's template (protocol `Chat`).

    Attributes:
        template: which template is used, :data:`OWN` or :data:`TRAINING`.
        written: its text.
        end_ids: ids that end an assistant's turn in this template (one id; generation adds the model's own).
        opens_thought: whether the template ends a prompt with the beginning of a thought, as thinking models' do.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, name: str, *, multi_turn: bool = True, rows: int | None = None
    ) -> None:
        """
        Args:
            tokenizer: a fast tokenizer with a chat template; its truncation, padding and dropout are switched off.
            name: the model, for messages.
            multi_turn: whether `reply` will be used. A template that rewrites history (drops earlier thoughts, say)
                can serve one-turn chats only: unless this is False, TRL's training template is used, if there is one.
            rows: of the model's embeddings; None: any id may be used.

        Raises:
            BadInput: no template, no fast tokenizer, a template that rewrites history or moves texts about, or one that
                does not end an assistant's turn with a special token; ids that the embeddings have no row for.
        """
        self._tokenizer, self._name = tokenizer, name
        if not getattr(tokenizer, "chat_template", None):
            raise self._refuse("it has no chat template", "Use an instruction-tuned model.")
        if not getattr(tokenizer, "is_fast", False):
            raise self._refuse("its tokenizer has no tokenizer.json", "Convert the tokenizer to the fast format.")
        _settle(tokenizer)
        self._multi_turn = multi_turn
        self.template = OWN
        self._use(tokenizer.get_chat_template())
        if multi_turn and not self._keeps_history():
            training = _training_template(tokenizer)
            if training is None:
                raise self._refuse_history("TRL has no other template for exactly this text")
            self.template = TRAINING
            self._use(training)
            if not self._keeps_history():
                raise self._refuse_history("so does TRL's training template of its family")
        self._folds_system = not self._shows_system()
        self._check_ids(rows)

    def _use(self, template: str) -> None:
        """Write prompts with this template from now on."""
        self._template = _NO_CLOCK + template
        self.written = self._template if "strftime_now" in template else template
        try:
            self._ids = ChatIds(self._tokenizer, template)
        except ForgeableToken as error:
            raise self._refuse(
                f"its tokenizer turns the written text {str(error)!r} into the control token", "Use another model."
            ) from error
        # A thought's tags may be control tokens; what follows the end of a thought is found by them, so they are read.
        self._hidden_ids = {index for text, index in self._ids.control_ids.items() if not THOUGHT_TAG.fullmatch(text)}
        self._after, self._before, self._begin = self._between_turns()
        self.end_ids = (self._after_end_id(),)
        self.opens_thought = after_thoughts(self._before) is None

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools, and where it showed them first; many leave them out without a word."""
        probe = Tool("crlProbeTool", "A probe.", {"type": "object", "properties": {}})
        first = [] if self._folds_system else [{"role": "system", "content": "A rule."}]
        try:
            rendered = self._render_slots([*(message["role"] for message in first), "user"], ready=True, tools=[probe])
            return probe.name in rendered and (not self._multi_turn or self._keeps_history(first, tools=[probe]))
        except BadInput:
            return False

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of a whole first prompt, ready for the assistant to answer.

        Args:
            messages: `{"role": "system" | "user" | "assistant", "content": text}`, the last one the user's.
            tools: what the template is to offer; only where it `takes_tools`.

        Raises:
            BadInput: the template refuses these messages, or a tool's text holds a control token.
        """
        for tool in tools:
            said = json.dumps([tool.name, tool.description, tool.parameters], ensure_ascii=False)
            if self._ids.control.search(said) or SLOTS.search(said):
                raise self._refuse(f"the tool {tool.name!r} holds one of its control tokens", "Describe it otherwise.")
        messages = self._as_shown(messages)
        rendered = self._render_slots([message["role"] for message in messages], ready=True, tools=tools)
        return self._ids.encode(rendered, [message["content"] for message in messages])

    def reply(self, text: str, *, ended: bool) -> list[int]:
        """Ids after an assistant turn: its end (unless `ended`: it was sampled), the user's text, the next opening."""
        if not self._multi_turn:
            raise AssertionError("a chat of one turn has no reply")
        ids = self._ids.encode(self._after + SLOT.format(0) + self._before, [text])
        return ids[1:] if ended else ids

    def answer(self, text: str) -> list[int]:
        """Ids a model would have sampled to say `text` and end its turn (demonstrations only).

        A thought that the prompt began is ended first.
        """
        begin = _NO_THOUGHT if self.opens_thought else self._begin
        return [*self._ids.encode(begin + SLOT.format(0), [text], continues=True), self.end_ids[0]]

    def stops(self, strings: Sequence[str]) -> StopStrings:
        """What finds the ids that complete one of some strings; a control token completes what is part of its name."""
        hidden = {text: index for text, index in self._ids.control_ids.items() if index in self._hidden_ids}
        return StopStrings(strings, self.decode, hidden)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids. Control tokens between two texts are a blank: words on both sides must not run together
        (`north<|im_start|>north`); elsewhere they are nothing. The tags of thoughts stay."""
        pieces = [list(ids) for hidden, ids in groupby(token_ids, self._hidden_ids.__contains__) if not hidden]
        return " ".join(str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)) for ids in pieces)

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
                "Change the prompt, or use another model.",
            ) from error
        return str(rendered)

    def _render_slots(self, roles: Sequence[str], *, ready: bool, tools: Sequence[Tool] = ()) -> str:
        messages = [{"role": role, "content": SLOT.format(index)} for index, role in enumerate(roles)]
        rendered = self._render(messages, ready=ready, tools=tools)
        if [int(index) for index in SLOTS.findall(rendered)] != list(range(len(roles))):
            raise self._refuse(f"its chat template does not show each of {list(roles)} once, in order", "")
        return rendered

    def _between_turns(self) -> tuple[str, str, str]:
        """Control text from an assistant's text to the next user's, from there to the assistant's next, and the white
        space that a template (Mistral's) leaves for the assistant to begin with."""
        rendered = self._render_slots(["user", "assistant", "user"], ready=True)
        _, first, after, before = SLOTS.split(rendered)[::2]  # without the numbers of the slots
        begin = first.removeprefix(before) if first.startswith(before) else ""
        # White space before the end is the template's; the model does not write it.
        return after.lstrip(), before, begin if begin.isspace() else ""

    def _after_end_id(self) -> int:
        match = self._ids.control.match(self._after)
        if match is None:
            raise self._refuse(
                "its chat template does not end an assistant's turn with a special token",
                "Use a model whose template does (ChatML, Llama 3, Gemma, …).",
            )
        return self._ids.control_ids[match.group()]

    def _as_shown(self, messages: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """The messages, the system text before the first user's where the template cannot show it by itself."""
        if not self._folds_system or [message["role"] for message in messages[:2]] != ["system", "user"]:
            return messages
        system, user, *others = messages
        return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *others]

    def _shows_system(self) -> bool:
        """Probe: a system text is shown once, before everything else, and stays there once the chat goes on."""
        try:
            self._render_slots(["system", "user", "assistant", "user"], ready=True)
            return not self._multi_turn or self._keeps_history([{"role": "system", "content": "A rule."}])
        except BadInput:
            return False

    def _keeps_history(self, first: Sequence[Mapping[str, str]] = (), tools: Sequence[Tool] = ()) -> bool:
        """Probe: every rendering is a prefix of the renderings of longer chats, with and without thoughts; where the
        prompt begins a thought or holds one, with the kind of answer that this asks for."""
        thinks = None if after_thoughts(self._before) == self._before else self.opens_thought
        for thought in ("", "<think>\nA thought.\n</think>\n\n"):
            if thinks is not None and thinks != bool(thought):
                continue
            answer = f"{thought}An answer."
            written = answer.removeprefix("<think>\n") if self.opens_thought else answer
            chat = [*first, {"role": "user", "content": "A question."}]
            shown = self._render(chat, ready=True, tools=tools)
            for number in range(3):
                chat.append({"role": "assistant", "content": answer})
                longer = self._render(chat, ready=False, tools=tools)
                ended = longer.removesuffix(self._tokenizer.eos_token or "")
                if ended.rstrip().endswith(str(self._tokenizer.convert_ids_to_tokens(self.end_ids[0]))):
                    longer = ended  # Phi-3's template closes the chat behind the end of the turn
                if not longer.startswith(shown) or written not in longer[len(shown) :]:
                    return False
                chat.append({"role": "user", "content": f"Question {number}."})
                shown = self._render(chat, ready=True, tools=tools)
                if not shown.startswith(longer):
                    return False
        return True

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

    def _refuse_history(self, training: str) -> BadInput:
        return self._refuse(
            "its chat template rewrites history (earlier turns render differently once the chat goes on), and "
            f"{training}",
            "Use a model whose template only appends, such as the same family's non-thinking instruct model.",
        )

    def _refuse(self, problem: str, next_step: str) -> BadInput:
        return BadInput(
            f"The model {self._name!r} cannot be used for chat: {problem}.",
            expected="a chat template that only appends, and a tokenizer whose ids are the model's",
            where="the `model` of a role",
            next_step=next_step or "Use another model.",
        )


def _settle(tokenizer: PreTrainedTokenizerFast) -> None:
    """Switch off what would make ids depend on how long a text is, or on chance."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None


def _training_template(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """TRL's training template of the family whose template this tokenizer has, letter for letter; None: there is none.

    It keeps what came before a tool's answer as it is. Whether it also does before a user's turn, the caller looks at.
    """
    import jinja2
    from trl.chat_template_utils import get_training_chat_template

    try:
        found: str | None = get_training_chat_template(tokenizer)
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    return found


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
