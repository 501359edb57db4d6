"""A run full of attacks: every command and page that reads it shows them as text."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import crl as library
from crl.errors import StageFailed
from crl.report.markdown import as_text, diff_markdown, report_markdown, rounds_markdown
from crl.report.summary import History
from crl.run.journal import JsonLines
from crl.text.unicode import UNSEEN, escaped
from crl.trackers.base import record_of
from tasks.failures import escape_logs, one_line
from tests.unit.cli.conftest import Outcome
from tests.unit.cli.hostile import CONTROLS, ENTRY, FAMILY, HOSTILE, hostile_run

Crl = Callable[..., Outcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        hostile_run(root / "room", patch)
    return root


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.dangers: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (name in ("href", "src") and not str(value).startswith("#")):
                self.dangers.append((name, value))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "room"), 0),
        (("verify", "room"), 4),
        (("bank", "show", "room", "--family", FAMILY), 0),
        (("bank", "show", "room", "--format", "csv"), 0),
        (("bank", "diff", "room", "1"), 0),
        (("bank", "diff", "room", "1", "2"), 0),
        (("bank", "why", "room", ENTRY, "--full"), 0),
        (("bank", "why", "room", "nothing"), 2),
        (("bank", "history", "room", ENTRY), 0),
        (("bank", "search", "room", HOSTILE.replace("\0", ""), "--lexical"), 0),
        (("sql", "room", "SELECT *, [goal], {'a': goal}, MAP {goal: 1}, encode(goal) FROM episodes"), 0),
        (("sql", "room", "SELECT *, [goal], MAP {goal: 1} FROM episodes", "--format", "csv"), 0),
        (("sql", "room", "SELECT *, [goal], MAP {goal: 1} FROM episodes", "--format", "json"), 0),
        (("sql", "room", "SELECT 1 AS \"\x1b[2J[red]\""), 0),
        (("mend", "room"), 4),
    ],
    ids=lambda words: escaped("-".join(words))[:40] if isinstance(words, tuple) else "",
)  # fmt: skip
def test_no_command_obeys_it(
    words: tuple[str, ...], code: int, crl: Crl, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made))
    outcome = crl(*words)
    assert outcome.code == code, outcome
    assert not UNSEEN.search(outcome.out + outcome.err)
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_the_report_page_shows_it_as_text(crl: Crl, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made))
    assert crl("report", "room").code == 0
    text = (made / "room/report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not UNSEEN.search(text)
    assert page.tags.count("script") == 2 and not {"img", "iframe", "form"} & {*page.tags} and not page.dangers
    assert escaped(CONTROLS) in text
    data = re.search(r'id="replays">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    shown = json.loads(data[1])
    assert escaped(HOSTILE) in shown["texts"] and shown["episodes"][0]["family"] == escaped(FAMILY)
    # Links of the page name an entry as its games do.
    assert all(not UNSEEN.search(json.dumps(each, ensure_ascii=False)) for each in shown["episodes"])


def test_markdown_for_the_scheduler_and_trackers_shows_it_as_text(made: Path) -> None:
    history = History(made / "room")
    difference = history.diff(1)
    assert difference is not None
    written = [
        rounds_markdown(HOSTILE, history.summaries()), diff_markdown(difference, HOSTILE),
        report_markdown(HOSTILE, Path(f"/a{HOSTILE}".replace("\0", "")), None), record_of(Path(f"/a{CONTROLS[:6]}`")),
    ]  # fmt: skip
    for text in written:
        assert not UNSEEN.search(text)
        outside = re.sub(r"(?<!\\)(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
        assert not re.search(r"(?<!\\)(<script|<img|\[b\]\()", outside)
    assert as_text("\x1b[2J|") == r"\\x1b\[2J\|"


def test_journal_lines_of_errors_are_written_whatever_they_quote(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "journal.jsonl")
    lines.append({"event": "stage_failed", "error": {"found": "seen \ud800\x1b"}})
    assert lines.read() == [{"event": "stage_failed", "error": {"found": "seen \ufffd\x1b"}}]


def test_logs_and_states_of_the_scheduler_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    escape_logs()
    try:
        raise ValueError(CONTROLS)
    except ValueError:
        logging.getLogger("prefect.task_runs").exception("%s | %s", "engine", CONTROLS)
    assert not UNSEEN.search(caplog.text) and caplog.text.count(escaped(CONTROLS)) == 2
    told = one_line(StageFailed(CONTROLS + "\ud800", where=CONTROLS))
    assert not UNSEEN.search(told) and r"\x1b[2J" in told


def test_an_unexpected_error_keeps_its_traceback_and_is_escaped(
    crl: Crl, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise ValueError(CONTROLS)

    monkeypatch.setenv("CRL_RUNS", str(made))
    monkeypatch.setattr("crl.report.summary.summarize", broken)
    outcome = crl("status", "room")
    assert outcome.code == 1 and not UNSEEN.search(outcome.out + outcome.err)
    assert outcome.err.startswith("Traceback") and f"ValueError: {escaped(CONTROLS)}" in outcome.err


def test_what_python_shows_of_a_run_is_escaped(made: Path) -> None:
    odd = made / f"odd{CONTROLS[:6]}"
    odd.symlink_to(made / "room")
    run = library.open(odd)
    assert not UNSEEN.search(repr(run)) and r"odd\x1b[2J" in repr(run)
    assert not UNSEEN.search(repr(run.entry(ENTRY))) and not UNSEEN.search(repr(run.entry(ENTRY).story()))
