"""Answers of several messages as one text."""

import time

import pytest

from crl.text.channels import one_text

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
CALL = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (f"{ANALYSIS}Hm.<|end|>{FINAL}north<|return|>", "<think>Hm.</think>\nnorth"),
        (f"{ANALYSIS}Hm.<|end|>{FINAL}nor", "<think>Hm.</think>\nnor"),
        (f"{ANALYSIS}Hm", "<think>Hm"),
        (f"{ANALYSIS}Hm.{FINAL}north", "<think>Hm.\nnorth"),
        ('<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>', CALL),
        (' to=functions.f<|channel|>commentary json<|message|>{"n": 1}<|call|>', CALL),
        (" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>north<|eot|>", "<think>Hm.</think>\nnorth"),
        ("<|channel|>commentary<|message|>I look.<|end|>", "I look."),
        ("north", "north"),
        ("<|channel|>final north<|return|>", "final north"),
        ("<|message|>a<|message|>b<|return|>", "a<|message|>b"),
        ("", ""),
        ("<|end|><|end|>", ""),
    ],
)
def test_what_is_said_in_messages(written: str, text: str) -> None:
    assert one_text(written) == text


def test_repeated_control_tokens_take_no_time() -> None:
    began = time.process_time()
    for part in ("<|start|>assistant", "<|channel|>", "<|message|>", "to=self", "<|end|>", "a<|message|>b<|end|>"):
        one_text(part * 20_000)
    assert time.process_time() - began < 5
