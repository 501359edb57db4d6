"""Splits texts as a tokenizer does, in a process with limits: `python tokenizer_trial.py SECONDS BYTES`.

The standard input is what a `tokenizer.json` says of normalizing and splitting. Its patterns are somebody else's. One
that has many ways to match is slow, half a second for a match, and then the library gives the text up. Long runs of the
characters that a pattern names, and of common ones, show most such patterns; on what text others are slow is not known.
The exit code is 0 unless the library gives a text up; the limits end the process (:mod:`crl.policies.untrusted`).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

_COMMON = " \n\t09aAzZ.,-_=/#é中!"
_LONG = 2_000
_ENDS = ("", "!", "a", " ", "\n")
GIVES_UP = 3


def patterns(content: Any) -> Iterator[str]:
    """Every regular expression of a part of a `tokenizer.json`."""
    if isinstance(content, dict):
        if isinstance(content.get("Regex"), str):
            yield content["Regex"]
        content = list(content.values())
    if isinstance(content, list):
        for each in content:
            yield from patterns(each)


def main(seconds: int, memory: int) -> int:
    """Split within the limits. Returns the exit code."""
    from tokenizers import Tokenizer

    content = json.loads(sys.stdin.buffer.read())
    named = dict.fromkeys("".join(patterns(content)) + _COMMON)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    parts: dict[str, Any] = {
        "added_tokens": [],
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "decoder": None,
    }
    try:
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, **parts, **content}))
    except Exception:  # said where it is used
        return 0
    for length in (30, _LONG):
        for character in named:
            for end in _ENDS:
                try:
                    tokenizer.encode(character * length + end)
                except Exception:  # of one text, such as an unknown character: said where it is used
                    continue
                except BaseException:  # a panic of the library is none of Python's exceptions
                    return GIVES_UP
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
