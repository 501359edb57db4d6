"""Texts for the UI: what a model wrote stays text in Markdown, long banks are cut and say so, pictures stand inside."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from crl.checks.suites import sentences
from crl.errors import DataCheckFailed
from crl.report.data_docs import StageChecks, TableCheck
from crl.report.diff import BankDiff, Change, Parent
from crl.report.markdown import (
    SHOWN_CHANGES,
    as_text,
    breach_markdown,
    checks_markdown,
    code,
    curve_markdown,
    diff_markdown,
    report_markdown,
    rounds_markdown,
)
from crl.report.summary import summarize
from tests.unit.report.builder import build_run

NASTY = [
    "<script>alert(1)</script> & &amp; <img src=x onerror=alert(2)>",
    "a | b || c \\| d \\",
    "`one` ``two`` ```three",
    "`",
    "ends in a backtick`",
    " starts with a space",
    "[x](http://evil.example) http://evil.example www.evil.example ![i](http://evil.example/i.png)",
    "# heading\n\n- list\n1. list\n> quote\n```\nfence\n```\n---\n| a | b |\n|---|---|",
    "*bold* _under_ ~~gone~~ **x",
    "\u2028line\u0085breaks\r\nof all\x0bkinds",
    "",
]


def spans(text: str) -> list[str]:
    """What stands in code spans, and a check that nothing else of it became markup."""
    found = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        assert token.type not in ("html_block", "fence", "code_block", "blockquote_open", "hr"), token
        for child in token.children or []:
            assert child.type not in ("html_inline", "link_open", "image", "em_open", "s_open"), child
            if child.type == "code_inline":
                found.append(child.content)
    return found


@pytest.mark.parametrize("text", NASTY)
def test_a_code_span_shows_the_text_and_nothing_else(text: str) -> None:
    shown = spans(f"- {code(text)}\n")
    assert len(shown) == 1
    assert shown[0].strip() == " ⏎ ".join(text.splitlines()).strip()


def test_our_own_words_are_never_markup() -> None:
    words = "buffer_waiting 28 > 8, *see* <docs> [x](y) a|b `c` ~d~ & e_f_g # h !"
    tokens = MarkdownIt("commonmark").enable("table").parse(f"- {as_text(words)}\n")
    inline = next(token for token in tokens if token.type == "inline")
    assert "".join(child.content for child in inline.children or []) == words


def change(kind: str, **more: object) -> Change:
    given = {"entry_id": "e1", "family": "room", "operation_id": "o1", "asked": None, "before": None, "after": None,
             "wanted": None, "parents": (), "reason": None, **more}  # fmt: skip
    return Change(kind=kind, **given)  # type: ignore[arg-type]


def test_a_diff_tells_texts_and_reasons_whatever_they_hold() -> None:
    first, second, third = NASTY[0], NASTY[2], NASTY[6]
    diff = BankDiff(4, False, 3, 4, (
        change("added", after=first),
        change("updated", before=second, after=third),
        change("merged", after="both", parents=(Parent("e7", first), Parent("e8", second))),
        change("evicted", operation_id=None, before=third, reason="capacity_fifo"),
        change("rejected", asked="add", wanted=second, reason="duplicate", repeats="x_1"),
        change("rejected", asked="update", before=first, wanted=third, reason="too *long*"),
    ))  # fmt: skip
    text = diff_markdown(diff, "tiny")
    shown = spans(text)
    for expected, times in ((first, 3), (second, 3), (third, 3), ("both", 1)):
        assert shown.count(expected) >= times, expected
    assert "## Added: 1" in text and "## Rejected: 2" in text and "3 → 4 entries" in text
    assert (
        "**add rejected: duplicate**: `x_1` holds the text" in text
        and "**capacity fifo**" in text
        and "too \\*long\\*" in text
    )


def test_a_large_diff_is_cut_with_a_count_and_the_command() -> None:
    changes = tuple(change("added", after=f"advice {index}") for index in range(SHOWN_CHANGES + 5))
    text = diff_markdown(BankDiff(7, False, 0, 9, changes), "tiny")
    assert "**5 further changes are not shown**; all of them: `crl bank diff tiny 7`" in text
    assert f"`advice {SHOWN_CHANGES - 1}`" in text and f"`advice {SHOWN_CHANGES}`" not in text
    few = diff_markdown(BankDiff(7, True, 0, 9, changes), "tiny", max_changes=3)
    assert few.count("`advice") == 3 and "`o1`" in few and "crl approve tiny --show" in few


def test_the_round_table_has_the_numbers_of_the_summary(tmp_path: Path) -> None:
    text = rounds_markdown("room", summarize(build_run(tmp_path / "run"))).replace("\u00a0", " ")
    assert "| 2 | 1/2 50 % | 0/2 0 % | 2/2 100 % [34–100] | 0/2 0 % [0–66] |" in text
    assert "| 2 | – | – | 1 | update 1 | 0/1 | 1 | –/1 | 10.5 | 1 |" in text
    assert "Head" not in text and "`crl verify room --head 1f`" in rounds_markdown("room", [], "1f")
    assert "| 0 base |" in text and "Alarms of round 2" in text and "share\\_malformed" in text


def test_the_curve_is_a_picture_that_asks_for_nothing(tmp_path: Path) -> None:
    text = curve_markdown("room", summarize(build_run(tmp_path / "run")))
    pictures = re.findall(r"!\[[^\]]+\]\(data:image/svg\+xml;base64,([^)]+)\)", text)
    assert len(pictures) == 2
    for encoded in pictures:
        svg = base64.b64decode(encoded).decode()
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg") and root.findall(".//{*}g[@class='line']/{*}path")
        assert svg.count("href=") == svg.count('href="#') and "url(" not in svg
        assert svg.count("http") == 1, "the name of SVG only"
    assert curve_markdown("room", []).startswith("# Learning curve")


def test_checks_name_suites_rules_and_rows() -> None:
    checks = [
        StageChecks("collect", (TableCheck("episodes", 16, 10, True), TableCheck("turns", 32, 2, True))),
        StageChecks("update_actor", ()),
    ]
    text = checks_markdown(3, checks)
    assert text.startswith("# Data checks of round 3: passed") and "2 suites, 12 rules on 48 rows" in text
    assert "| collect | episodes | 16 | 10 | passed |" in text
    for rule in sentences("episodes"):
        assert as_text(rule) in text


def test_a_breach_shows_the_rows_as_they_are() -> None:
    error = DataCheckFailed("table bank: 'x' is broken in 1 row: row 3 (<b>|`id`)", expected="every *rule*",
                            where="round 2", next_step="correct it")  # fmt: skip
    text = breach_markdown(2, "consolidate", error)
    assert spans(text) == [error.found] and "every \\*rule\\*" in text and "**What to do:** correct it" in text


def test_the_report_is_a_link_where_something_serves_it() -> None:
    path = Path("/runs/tiny/report.html")
    assert "](http://127.0.0.1:4201/tiny/report.html)" in report_markdown(
        "tiny", path, "http://127.0.0.1:4201/tiny/report.html"
    )
    assert "](" not in report_markdown("tiny", path, None) and str(path) in report_markdown("tiny", path, None)
