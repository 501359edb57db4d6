"""Renders a chat template from outside, in a process with limits: `python template_trial.py SECONDS BYTES`.

The text comes from the standard input. What ends this process is for :func:`crl.policies.untrusted.tried`: the exit
code is 0 unless a limit was reached. Only endlessness and size are of interest: whatever else the template does, or
refuses, is found where it is used. The environment is that of transformers: sandboxed, with its functions and tags.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import Any, NoReturn

_MOST_BYTES = 64 * 10**6
"""Of a text that is rendered."""
_TOO_MUCH = 1
_USER = {"role": "user", "content": "One question, with a <tag> and {a: 1}."}
_ASSISTANT = {"role": "assistant", "content": "<think>\nA thought.\n</think>\n\nAn answer."}
_TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
_CONVERSATIONS: tuple[dict[str, Any], ...] = (
    {"messages": [_USER], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "Be brief."}, _USER, _ASSISTANT, _USER], "add_generation_prompt": True},
    {"messages": [_USER, _ASSISTANT] * 12, "add_generation_prompt": False},
    {"messages": [_USER], "tools": [_TOOL], "add_generation_prompt": True, "enable_thinking": False},
)


def main(seconds: int, memory: int) -> int:
    """Render within the limits. Returns the exit code."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks what the assistant wrote."""

        tags = {"generation"}  # noqa: RUF012 - as the class above declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: "2026-01-01"}
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        with contextlib.suppress(jinja2.TemplateSyntaxError):
            template = environment.from_string(text)
            for conversation in _CONVERSATIONS:
                with contextlib.suppress(ArithmeticError, LookupError, TypeError, ValueError, jinja2.TemplateError):
                    written = 0
                    for piece in template.generate(bos_token="<s>", eos_token="</s>", **conversation):
                        written += len(piece)
                        if written > _MOST_BYTES:
                            return _TOO_MUCH
    except MemoryError:
        return _TOO_MUCH
    except Exception:  # of the template's own making: said where it is used
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
