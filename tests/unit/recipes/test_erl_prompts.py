"""What the reflector reads, and what is taken from what it writes."""

from __future__ import annotations

from typing import Any

import pytest

from crl.protocols import Sampled, StopReason
from crl.recipes.erl.config import ReflectConfig
from crl.recipes.erl.prompts import parsed
from crl.text.outputs import Output


def output(text: str, *, cut: bool) -> Output:
    prompt: Any = None
    return Output(prompt, Sampled([], [], StopReason.length if cut else StopReason.end_of_turn), text)


@pytest.mark.parametrize(
    ("text", "cut", "found"),
    [
        ("So: <instructions>Go left.</instructions> I hope", True, "Go left."),
        ("So: <instructions>Go left. Then g", True, "Go left. Then g"),
        ("So: <instructions>Go left.</instruct", True, "Go left."),
        ("<instructions>Go up.</instructions> No: <INSTRUCTIONS>Go left", True, "Go left"),
        ("So: <instructions>Go left. Then g", False, "no_instructions"),
        ("<instructions>Go up.</instructions> No: <instructions>Go left", False, "Go up."),
        ("So I think that", True, "no_instructions"),
        ("So: <instructions>", True, "empty_text"),
    ],
)
def test_what_the_length_limit_ends_is_kept_as_far_as_it_goes(text: str, cut: bool, found: str) -> None:
    config = ReflectConfig(form="tag", truncated="keep")
    reason_code, kept = parsed(output(text, cut=cut), config)
    assert (kept or reason_code) == found
    malformed = parsed(output(text, cut=cut), ReflectConfig(form="tag"))
    assert not cut or malformed == ("truncated", None)
