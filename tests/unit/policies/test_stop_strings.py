"""The id that completes a stop string is found when it is drawn, whatever a decoder does to the beginning of a text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import decoders

from crl.policies.turn import StopStrings

BYTES = decoders.ByteLevel()
FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
"""As Llama 2's: bytes of an unknown character, and the first blank of a text is lost."""


def as_bytes(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


@pytest.mark.parametrize(
    ("decoder", "tokens", "strings", "place"),
    [
        (FALLBACK, as_bytes("一二三終一"), ["終", "abcd"], 12),
        (FALLBACK, [*as_bytes("一二三終"), "a"], ["終a"], 13),
        (FALLBACK, ["x", "▁", "a", "b"], [" a"], 3),
        (FALLBACK, ["x", "▁", "y"], [" "], 2),
        (BYTES, ["<", "/act", "ion", ">Ċ", "x"], ["</action>"], 4),
        (BYTES, ["Ġgo", "Ġnorth", "Ġnow"], ["north"], 2),
        (BYTES, ["Ġgo", "Ġnorth"], ["south"], None),
    ],
)
def test_a_string_is_found_with_its_last_token(
    decoder: decoders.Decoder, tokens: list[str], strings: list[str], place: int | None
) -> None:
    def decode(ids: Sequence[int]) -> str:
        return str(decoder.decode([tokens[index] for index in ids]))

    stop = StopStrings(strings, decode)
    found = [end for end in range(1, len(tokens) + 1) if stop.in_last(range(end))]
    assert (found[0] if found else None) == place


def test_a_control_token_completes_the_strings_in_it() -> None:
    stop = StopStrings(["</tool_call>"], lambda ids: "", {"</tool_call>": 7, "<tool_call>": 8})
    assert stop.in_last([1, 7]) and not stop.in_last([1, 8]) and not stop.in_last([7, 1])


def test_without_strings_nothing_is_decoded() -> None:
    def decode(ids: Sequence[int]) -> str:
        raise AssertionError("asked for nothing")

    assert not StopStrings([], decode).in_last([1, 2])
