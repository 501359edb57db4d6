"""A text that is one of the prompt's own examples says nothing of any game: it is refused and scored like malformed."""

from __future__ import annotations

import pytest

from crl.config import Exchange, PromptConfig
from crl.extractor.formats import ReasonCode
from crl.extractor.parse import example_texts, parse_output

PROMPT = PromptConfig(
    system="s",
    first="f",
    examples=[
        Exchange(user="a game", assistant="ADD: When > is in sight, walk straight to it."),
        Exchange(user="a game", assistant="UPDATE: If a move changes nothing, try another direction."),
        Exchange(user="a game", assistant="RETURN"),
    ],
)


def judged(text: str) -> ReasonCode:
    examples = example_texts(PROMPT, "lines", "distill")
    return parse_output(
        text, format="lines", max_operations=3, max_characters=200, guided=True, examples=examples
    ).reason_code


@pytest.mark.parametrize(
    "text",
    [
        "ADD: When > is in sight, walk straight to it.",
        "UPDATE: When > is in sight, walk straight to it.",
        "ADD: if a move  changes NOTHING, try another direction",
        "ADD: A note of its own.\nADD: If a move changes nothing, try another direction.",
    ],
)
def test_copies_are_malformed(text: str) -> None:
    assert judged(text) is ReasonCode.example


@pytest.mark.parametrize("text", ["ADD: Walk straight to > when it is near.", "RETURN", "UPDATE: Try south first."])
def test_other_outputs_are_not(text: str) -> None:
    assert judged(text) is ReasonCode.ok


def test_merges_have_examples_of_their_own() -> None:
    prompt = PromptConfig(
        system="s", first="f", examples=[Exchange(user="1. a\n2. b", assistant="MERGE 1,2: Walk to >.\nKEEP 3")]
    )
    examples = example_texts(prompt, "lines", "merge")
    options = {"format": "lines", "max_operations": 3, "max_characters": 200, "kind": "merge", "source_count": 3}
    assert parse_output("MERGE 1,2: Walk to >.", **options, examples=examples).reason_code is ReasonCode.example
    assert parse_output("MERGE 1,2: Walk there.", **options, examples=examples).reason_code is ReasonCode.ok


def test_a_demonstration_that_is_not_in_form_is_no_example() -> None:
    prompt = PromptConfig(system="s", first="f", examples=[Exchange(user="u", assistant="I would say: nothing")])
    assert example_texts(prompt, "lines", "distill") == frozenset()
