"""Characters that a person does not see and a model reads: named, written out, and left where scripts need them."""

from __future__ import annotations

import json

import pytest

from crl.cli.shared import say, say_json
from crl.text.unicode import escaped, hidden_in

HIDING = {
    "Go\u200bup": r"Go\u200bup",
    "a\u200db": r"a\u200db",
    "\u202eon": r"\u202eon",
    "\u2066x\u2069": r"\u2066x\u2069",
    "x\U000e0041\U000e0042": r"x\U000e0041\U000e0042",
    "a\ufe0f\ufe0e": r"a\ufe0f\ufe0e",
    "\u200c\u200d\u200c": r"\u200c\u200d\u200c",
    "so\u00adft": r"so\xadft",
    "\u3164": r"\u3164",
    "\ufeffstart": r"\ufeffstart",
    "é\ufe0f\ufe0f\ufe0f": "é\ufe0f" + r"\ufe0f\ufe0f",
}
SHOWING = (
    "plain", "äöü ß", "漢字 かな", "a\tb\nc", "👨\u200d👩\u200d👧", "❤\ufe0f\u200d🔥", "1\ufe0f\u20e3", "می\u200cخواهم",
    "क्\u200dष", "→ − ≤",
)  # fmt: skip


@pytest.mark.parametrize("text", HIDING)
def test_what_is_hidden_is_named_and_written_out(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert escaped(text) == HIDING[text]
    assert "U+" in hidden_in(text)
    say(text)
    assert capsys.readouterr().out == HIDING[text] + "\n"
    say_json({"text": text})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": text}, "nothing is lost for programs"
    assert escaped(out.strip("\n")) == out.strip("\n"), "and nothing is hidden from people"


@pytest.mark.parametrize("text", SHOWING)
def test_what_scripts_and_emoji_need_is_left_as_it_is(text: str) -> None:
    assert (escaped(text), hidden_in(text)) == (text, "")


def test_counts_come_with_their_names() -> None:
    assert hidden_in("\u200ba\u200bb\u2060c") == "2 × U+200B (zero width space), 1 × U+2060 (word joiner)"
