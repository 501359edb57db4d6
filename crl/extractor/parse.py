"""Parsing an extractor output: in form and applicable, or malformed with one reason code and no operation at all.

Rules beside the form (`crl/extractor/formats.py`):

- only what follows the end of its thoughts is read; an output that ends inside one says nothing;
- an output cut off by its length limit is malformed as a whole: its last experience is half a sentence;
- distill: at most `max_operations`; `return` must be alone; `update` needs an experience that guided the episode, and
  appears once; no text twice;
- merge: indices are those shown, each at most once over the whole output; a merge names at least two; an entry that
  is not mentioned is kept; `max_operations` does not apply (the entries shown bound it);
- a text is not empty, at most `max_characters` long, valid Unicode without control characters but line feed and tab;
- a text is none of the prompt's examples, case, blanks and closing punctuation aside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set
from dataclasses import dataclass

from crl.config import PromptConfig
from crl.extractor.formats import Format, Malformed, OutputKind, ParsedOperation, ReasonCode, read_operations
from crl.text.answers import after_thoughts, text_flaw


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A parsed output: its operations if `reason_code` is ok, else none."""

    reason_code: ReasonCode
    operations: tuple[ParsedOperation, ...]
    kind: OutputKind

    @property
    def verdict(self) -> str:
        """malformed, return, add, update, mixed or merge (column `verdict` of a distillation)."""
        if self.reason_code is not ReasonCode.ok:
            return "malformed"
        if self.kind == "merge":
            return "merge"
        kinds = {operation.kind for operation in self.operations}
        return kinds.pop() if len(kinds) == 1 else "mixed"


def parse_output(
    text: str,
    *,
    format: Format,
    max_operations: int,
    max_characters: int,
    guided: bool = False,
    kind: OutputKind = "distill",
    source_count: int = 0,
    truncated: bool = False,
    thinking: bool = False,
    examples: Set[str] = frozenset(),
) -> ParsedOutput:
    """Parse one output; never raises, whatever the text.

    `guided`: an experience guided the episode, so `update` has a target. `source_count`: entries shown to a merge.
    `truncated`: sampling ended by the length limit. `examples`: :func:`example_texts` of the prompt.
    """
    try:
        answer = after_thoughts(text, begun=thinking)
        if answer is None:
            raise Malformed(ReasonCode.unfinished_thought)
        if truncated:
            raise Malformed(ReasonCode.truncated)
        if not answer.strip():
            raise Malformed(ReasonCode.empty)
        operations = read_operations(answer, format, kind)
        if not operations:
            raise Malformed(ReasonCode.no_operation)
        if len(operations) > (max_operations if kind == "distill" else source_count):
            raise Malformed(ReasonCode.too_many_operations)
        for operation in operations:
            flaw = None if operation.text is None else text_flaw(operation.text, max_characters)
            if flaw is not None:
                raise Malformed(ReasonCode(flaw))
            if operation.text is not None and _plain(operation.text) in examples:
                raise Malformed(ReasonCode.example)
        if kind == "distill":
            _check_distilled(operations, guided)
        else:
            _check_merge(operations, source_count)
    except Malformed as malformed:
        return ParsedOutput(malformed.reason, (), kind)
    return ParsedOutput(ReasonCode.ok, tuple(operations), kind)


def example_texts(prompt: PromptConfig, form: Format, kind: OutputKind) -> frozenset[str]:
    """The experience texts of a prompt's own example answers; an answer that is not in form has none."""
    texts = set()
    for exchange in prompt.examples:
        with contextlib.suppress(Malformed):
            texts |= {_plain(each.text) for each in read_operations(exchange.assistant, form, kind) if each.text}
    return frozenset(texts)


def _plain(text: str) -> str:
    """A text as it is compared with examples."""
    return " ".join(text.split()).casefold().rstrip(".!")


def _check_distilled(operations: list[ParsedOperation], guided: bool) -> None:
    kinds = [operation.kind for operation in operations]
    if "return" in kinds and len(kinds) > 1:
        raise Malformed(ReasonCode.mixed_return)
    if "update" in kinds and not guided:
        raise Malformed(ReasonCode.update_without_guide)
    texts = [operation.text for operation in operations]
    if kinds.count("update") > 1 or len(set(texts)) < len(texts):
        raise Malformed(ReasonCode.duplicate_operation)


def _check_merge(operations: list[ParsedOperation], source_count: int) -> None:
    indices = [index for operation in operations for index in operation.indices]
    if any(not 1 <= index <= source_count for index in indices):
        raise Malformed(ReasonCode.bad_index)
    if any(len(set(operation.indices)) < (2 if operation.kind == "merge" else 1) for operation in operations):
        raise Malformed(ReasonCode.bad_index)
    texts = [operation.text for operation in operations if operation.kind == "merge"]
    if len(set(indices)) < len(indices) or len(set(texts)) < len(texts):
        raise Malformed(ReasonCode.duplicate_operation)
