"""What came from outside is shown as it is: a terminal never obeys it, and nothing of it is markup."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from crl.cli import main
from crl.cli.consoles import PlainConsole, escaped_text
from crl.cli.shared import say, say_json
from crl.text.unicode import UNSEEN, escaped
from tests.marks import sampled
from tests.unit.cli.conftest import Outcome
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

Crl = Callable[..., Outcome]

HOSTILE = "\x1b[2J[red] \x9b31m\u202e:smile:\x07"
SHOWN = r"\x1b[2J[red] \x9b31m\u202e:smile:"
FIRST = "x-d-r0001-0-o0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory with `story`: its entries are what someone hostile wrote."""
    root = tmp_path_factory.mktemp("runs")
    with ScriptedRun(root, experiment("story")) as run:
        run.initialize()
        first, *_ = run.play(Ask("add", HOSTILE), Ask("add", f"go right {HOSTILE}"))
        run.play(Ask("update", f"x{HOSTILE}", entry=first), guided=[(first, True)])
    return root


COMMANDS: list[tuple[str, ...]] = [
    ("status", "story"), ("verify", "story"), ("bank", "show", "story"), ("bank", "diff", "story", "1"),
    ("bank", "diff", "story", "2"), ("bank", "diff", "story", "1", "2"), ("bank", "why", "story", FIRST),
    ("bank", "why", "story", FIRST, "--full"), ("bank", "history", "story", FIRST),
    ("bank", "search", "story", "go", "--lexical"), ("sql", "story", "FROM bank"), ("sql", "story", "FROM entry_texts"),
    ("bank", "show", "story", "--format", "csv"), ("bank", "show", "story", "--format", "json"),
    ("bank", "diff", "story", "1", "--format", "json"), ("bank", "why", "story", FIRST, "--format", "json"),
    ("bank", "history", "story", FIRST, "--format", "json"), ("sql", "story", "FROM bank", "--format", "csv"),
    ("sql", "story", "FROM bank", "--format", "json"), ("sql", "story", "SELECT error(chr(27) || '[2J')"),
    ("bank", "why", "story", "\x1b[2J"), ("train", "\x1b[2J"), ("\x1b[2J",), ("train", "--\x1b[2J"),
    ("bank", "show", "story", "--sort", "\x1b[2J"),
]  # fmt: skip


@pytest.mark.parametrize(
    "words", sampled([(each,) for each in COMMANDS], 3), ids=lambda words: escaped("-".join(words))
)
def test_no_command_prints_a_control_character(
    words: tuple[str, ...], crl: Crl, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made))
    outcome = crl(*words)
    assert outcome.code in (0, 2), outcome
    assert not UNSEEN.search(outcome.out + outcome.err)


def test_the_text_itself_is_shown(crl: Crl, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made))
    for words in (
        ("show", "story"),
        ("why", "story", FIRST),
        ("diff", "story", "1"),
        ("search", "story", "go", "--lexical"),
    ):
        assert SHOWN in crl("bank", *words).out, words
    rows = list(csv.DictReader(io.StringIO(crl("bank", "show", "story", "--format", "csv").out)))
    assert rows[1]["text"] == rf"go right {SHOWN}\x07"
    line = crl("bank", "show", "story", "--format", "json").out.splitlines()[1]
    assert json.loads(line)["text"] == f"go right {HOSTILE}", "for programs nothing is lost"


def test_on_a_terminal_only_our_own_styles_are_sent() -> None:
    file = io.StringIO()
    out = PlainConsole(file=file, force_terminal=True, width=60, markup=False, emoji=False, highlight=False)
    out.print(Text.assemble("a", (f"b{HOSTILE}", "bold"), ("c", "bold")))
    out.print(HOSTILE, style="red")
    assert re.sub(r"\x1b\[(0|1|31)m", "", file.getvalue()) == f"ab{SHOWN}c\n{SHOWN}\\x07\n"
    assert "\x1b[1m" in file.getvalue() and "\x1b[31m" in file.getvalue()


@given(st.text())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text(capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = io.StringIO()
    PlainConsole(file=file, width=40, markup=False, emoji=False).print(text, Text(text), {"a": text})
    assert not UNSEEN.search(file.getvalue())
    capsys.readouterr()
    say(text)
    assert not UNSEEN.search(capsys.readouterr().out)
    say_json({"a": text})
    printed = capsys.readouterr().out
    assert not UNSEEN.search(printed) and json.loads(printed)["a"] == text
    if not UNSEEN.search(text):
        assert escaped(text) == text and escaped_text(kept := Text(text)) is kept


def test_a_terminal_that_is_not_utf8(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setenv("CRL_RUNS", str(made))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with pytest.raises(SystemExit, match="0"):
        main(["bank", "diff", "story", "2"])
    assert rb"\u2192" in written.getvalue()
