"""Answers that are several messages, each to somebody (harmony): from what such a model wrote to what it says.

A message is `<|start|>assistant`, a header, `<|message|>`, a text, and a control token that ends it. The header names
a channel (`analysis` is a thought) or a recipient: the model itself (a thought), the user, or a tool. Where the model
writes the recipient before the channel or behind it, it means the same.
"""

from __future__ import annotations

import json
import re

START, MESSAGE = "<|start|>", "<|message|>"
CHANNEL_TOKENS = frozenset(
    {
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|eom|>",
        "<|eot|>",
    }
)
"""Control tokens that say whom a message is for, and where it ends."""
_ENDS = {"<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>"}
_PARTS = re.compile("(" + "|".join(map(re.escape, sorted({START, MESSAGE, *_ENDS}))) + ")")
_IN_HEADERS = re.compile(r"<\|(?:channel|constrain)\|>")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")


def one_text(written: str) -> str:
    """The messages of an answer as one text: thoughts in `<think>` tags, calls as JSON, what is for the user as it is.

    What is no message stays, without the control tokens.
    """
    messages, header, text = [], "", None
    for part in [*_PARTS.split(written), ""]:
        if part == MESSAGE and text is None:
            text = ""
        elif part == START or part in _ENDS:
            messages.append(_message(header, text, ended=part in _ENDS))
            header, text = "", None
        elif text is None:
            header += part
        else:
            text += part
    return "\n".join(filter(None, [*messages, _message(header, text, ended=False)]))


def _message(header: str, text: str | None, *, ended: bool) -> str:
    if text is None:  # a header alone, or words without one
        return _IN_HEADERS.sub("", header)
    to = _RECIPIENT.search(header)
    recipient = to.group(1) if to else "user"
    if recipient == "self" or (to is None and _ANALYSIS.search(header)):
        return f"<think>{text}" + ("</think>" if ended else "")
    if recipient in ("user", "assistant", "all") or text.lstrip().startswith("<"):
        return text
    return f'<tool_call>{{"name": {json.dumps(recipient)}, "arguments": {text}}}</tool_call>'
