"""Prompts filled from their templates: `{name}` is replaced once, whatever the values hold.

`str.format` is not used because values are model outputs and observations: braces in them must stay as they are, and a
template may hold braces that are no placeholder (JSON in an instruction). A placeholder is a brace pair around a lower
case name; everything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from crl.config import PromptConfig
from crl.errors import BadInput

Messages = list[dict[str, str]]
"""What a chat is opened with: a role and a text each."""
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")


def placeholders(template: str) -> set[str]:
    """Names of the placeholders in a template."""
    return set(_PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{name}` by its value, in one pass: braces inside a value are never expanded.

    Raises BadInput for a placeholder that has no value; values that no placeholder asks for are ignored.
    """
    check(template, values.keys())
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], template)


def numbered(texts: Sequence[str]) -> str:
    """Texts under each other, each with its number. Further lines of one are indented: none looks like another."""
    return "\n".join(f"{number}. {text}".replace("\n", "\n   ") for number, text in enumerate(texts, start=1))


def check(template: str, allowed: Collection[str], where: str | None = None) -> None:
    """Raise BadInput if a template asks for a name that is not in `allowed`; `where` names the prompt and its part."""
    unknown = sorted(placeholders(template) - set(allowed))
    if unknown:
        raise BadInput(
            f"unknown placeholder {', '.join('{' + name + '}' for name in unknown)} in a prompt template",
            expected=", ".join("{" + name + "}" for name in sorted(allowed)) or "no placeholder",
            where=where or repr(template[:80]),
            next_step="correct the name in the prompt file",
        )


def messages_of(prompt: PromptConfig, values: Mapping[str, str]) -> Messages:
    """Messages of a prompt: system and first user message filled by name, the example exchanges between them."""
    messages = [{"role": "system", "content": fill(prompt.system, values)}]
    for exchange in prompt.examples:
        messages.append({"role": "user", "content": exchange.user})
        messages.append({"role": "assistant", "content": exchange.assistant})
    return [*messages, {"role": "user", "content": fill(prompt.first, values)}]


def prompt_text(messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as one readable text for the record (the token ids beside it are what the model read)."""
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
