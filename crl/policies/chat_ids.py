"""A rendering of a chat template as ids: its control strings become control tokens, its texts never do.

A template is rendered with slots instead of the texts of messages. Between two control strings, the text of the
template and the texts of its slots are encoded in one go, by the same tokenizer without its control tokens.

An added token that is marked `special: false` need not be control: Gemma lists line feeds, runs of blanks and tags of
HTML, GPT-NeoX runs of blanks. Such text stays text, with the ids that the model was trained with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from crl.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Letters and digits only: no template strips, escapes or splits on them.
SLOT = "crlSlot{}Text"
SLOTS = re.compile(r"crlSlot(\d+)Text")


class ForgeableToken(Exception):
    """A control token that the tokenizer also makes from written text; the message is that text."""


class ChatIds:
    """Encodes renderings of one template.

    Attributes:
        control: matches a control string.
        control_ids: the id of each.
        largest_of_texts: the largest id that a text can have.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, template: str) -> None:
        """Raises ForgeableToken: texts could not be kept apart from control tokens."""
        from tokenizers import Tokenizer

        added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if token.content}
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content["added_tokens"] = []
        content["post_processor"] = None
        self._blank_first = _prepends_at_the_beginning(content["pre_tokenizer"])
        if self._blank_first:
            content["pre_tokenizer"]["prepend_scheme"] = "never"
        self._plain = Tokenizer.from_str(json.dumps(content))
        self._own_ids: dict[int, int] = {}
        written = {index for index, token in added.items() if index in self._encode_text(token.content)}
        texts = {
            index: token
            for index, token in added.items()
            if not token.special and (_is_blank(token.content) or (index in written and token.content not in template))
        }
        # What a tokenizer gives to a character that it does not know controls nothing, unless it has another use.
        unknown = _unknown(content["model"])
        used = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        for index in sorted(written - texts.keys()):
            if index != unknown or index in used or added[index].content in template:
                raise ForgeableToken(added[index].content)
        self._plain.add_tokens(list(texts.values()))
        for index, token in texts.items():
            # A token that the vocabulary does not have was numbered anew.
            if (number := self._plain.token_to_id(token.content)) is not None:
                self._own_ids[number] = index
        words = content["model"]["vocab"]  # of Unigram a list, by id
        self.largest_of_texts = max([*(words.values() if isinstance(words, dict) else [len(words) - 1]), *texts])
        control = {token.content: (index, token) for index, token in added.items() if index not in texts}
        self.control_ids: dict[str, int] = {text: index for text, (index, _) in control.items()}
        self._strips_after = {text for text, (_, token) in control.items() if token.rstrip}
        self._strips_before = {text for text, (_, token) in control.items() if token.lstrip}
        # Longest first: of two control strings that begin alike, the longer one is meant.
        strings = sorted(control, key=lambda text: (-len(text), text))
        self.control = re.compile("|".join(map(re.escape, strings))) if strings else re.compile(r"(?!)")

    def encode(self, rendered: str, texts: Sequence[str], *, continues: bool = False) -> list[int]:
        """Ids of a rendering: its control strings as control tokens, everything else, with its texts, as text.

        Args:
            rendered: what the template wrote, with slots.
            texts: of the slots, by number.
            continues: whether something is before it, so it is not the beginning of a chat.
        """
        ids: list[int] = []
        position, before = 0, ""
        for match in [*self.control.finditer(rendered), None]:
            end, after = (match.start(), match.group()) if match else (len(rendered), "")
            between = rendered[position:end]
            # The tokenizer drops this white space of a template; a text's own white space is inside its slot.
            if before in self._strips_after:
                between = between.lstrip()
            if after in self._strips_before:
                between = between.rstrip()
            filled = SLOTS.sub(lambda slot: texts[int(slot.group(1))], between)
            if self._blank_first and not (position or continues) and filled and filled[0] not in " ▁":
                filled = f" {filled}"
            ids += self._encode_text(filled)
            if match:
                ids.append(self.control_ids[after])
                position, before = match.end(), after
        return ids

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        # A lone surrogate (JSON can spell one) is no text a tokenizer takes; it becomes a question mark.
        valid = text.encode("utf-8", "replace").decode("utf-8")
        try:
            found = self._plain.encode(valid, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library is none of Python's exceptions
            if type(error).__name__ != "PanicException":
                raise
            raise BadInput(
                f"the tokenizer cannot split a text of {len(valid):,} characters: {error}",
                expected="a tokenizer whose pattern splits any text: this one tries too many ways",
                where=valid[:200],
                next_step="Use another model.",
            ) from None
        return [self._own_ids.get(index, index) for index in found]


def _prepends_at_the_beginning(pre_tokenizer: Any) -> bool:
    """Whether a blank is put before the first word of a chat and of no later part (SentencePiece without `legacy`)."""
    return bool(pre_tokenizer) and pre_tokenizer["type"] == "Metaspace" and pre_tokenizer["prepend_scheme"] == "first"


def _unknown(model: Any) -> int | None:
    """The id that a model of a tokenizer gives to characters that it does not know."""
    if model["type"] == "Unigram":
        return cast("int | None", model["unk_id"])
    return cast("int | None", model["vocab"].get(model.get("unk_token")))


def _is_blank(text: str) -> bool:
    """Whether a token is white space alone; SentencePiece writes a blank as a low line."""
    return not text.replace("▁", " ").strip()
