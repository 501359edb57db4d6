"""Answers that are several messages, each to somebody (harmony): from what such a model wrote to what it says.

A message is `<|start|>assistant`, a header, `<|message|>`, a text, and a control token that ends it. The header names
a channel (`analysis` is a thought) or a recipient: the model itself (a thought), the user, or a tool. Where the model
writes the recipient before the channel or behind it, it means the same.
"""

from __future__ import annotations

import json
import re

MESSAGE = "<|message|>"
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
_MESSAGE = re.compile(
    r"(?P<header>(?:(?!<\|(?:message|end|return|call|eom|eot)\|>).)*)<\|message\|>(?P<text>.*?)"
    r"(?P<end><\|(?:end|return|call|eom|eot)\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_CONTROL = re.compile("|".join(map(re.escape, sorted(CHANNEL_TOKENS))))
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")


def said(written: str) -> str:
    """The messages of an answer as one text: thoughts in `<think>` tags, calls as JSON, what is for the user as it is.

    What is no message stays, without the control tokens.
    """
    parts, at = [], 0
    for message in _MESSAGE.finditer(written):
        to = _RECIPIENT.search(message["header"])
        recipient = to.group(1) if to else "user"
        if recipient == "self" or (to is None and _ANALYSIS.search(message["header"])):
            parts.append(f"<think>{message['text']}" + ("</think>" if message["end"] else ""))
        elif recipient in ("user", "assistant", "all") or message["text"].lstrip().startswith("<"):
            parts.append(message["text"])
        else:
            parts.append(f'<tool_call>{{"name": {json.dumps(recipient)}, "arguments": {message["text"]}}}</tool_call>')
        at = message.end()
    return "\n".join(filter(None, [*parts, _CONTROL.sub("", written[at:])]))
