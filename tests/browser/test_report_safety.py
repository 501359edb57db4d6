"""Whatever models and environments wrote stays text on the report page, and its policy holds what slips through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crl.records import Turn
from crl.report.bank import EntryUse, Usefulness
from crl.report.charts import bar_chart
from crl.report.diff import BankDiff, Change
from crl.report.page import write_report
from crl.report.success import Rate
from crl.report.summary import History
from crl.text.unicode import escaped
from tests.browser.opened import Opened
from tests.unit.report import builder
from tests.unit.report.builder import write_stage

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>window.broken = 1</script>", "</script><script>window.broken = 1</script>", "<!-- <script>", "]]>",
    '"><img src=x onerror="window.broken = 1">', "' onmouseover='window.broken = 1", "a\u2028b\u2029c",
    "{{ 7 * 7 }}{% raw %}", "&lt;b&gt; &amp;", "\u202eabc", "tab\tand\nline", "javascript:window.broken=1",
)  # fmt: skip


SHOWN = [escaped(text) for text in HOSTILE]


def hostile_run(path: Path) -> Path:
    """One episode a hostile text, which then stands wherever a model or an environment may write."""
    episodes, turns, outputs, operations, written, events, found = [], [], [], [], [], [], []
    for number, text in enumerate(HOSTILE):
        name, made = f"r0001-room-g{number:04d}-m000", f"r1-d{number}"
        episodes.append(
            dataclasses.replace(
                builder.episode(1, 0, guided=True, success=False),
                episode_id=name, group=number, goal=text, experiences=[text], entry_ids=[text], stop_reason="error",
                error=text, family=text,
            )
        )  # fmt: skip
        turns.append(
            Turn(
                episode_id=name, turn=0, observation=text, output=text, action=text, valid=True, feedback=text,
                generation_id="g", first_token=0, last_token=1, stop_reason="length",
            )
        )  # fmt: skip
        found.append(dataclasses.replace(builder.retrieval(0), episode_id=name, round=1, entry_id=text))
        outputs.append(
            dataclasses.replace(
                builder.distillation(1, number, verdict="mixed"), episode_id=name, verdict=text, reason_code=text
            )
        )
        operations.append(
            dataclasses.replace(
                builder.operation(1, "add", text, []), operation_id=f"{made}-o0", distillation_id=made, entry_id=text,
                kind=text,
            )
        )  # fmt: skip
        written.append(builder.generation(made, 1, prompt=text, output=text))
        events.append(
            dataclasses.replace(
                builder.event(1, "rejected", None, text), event_id=f"r1-e{number}", operation_id=f"{made}-o0",
                reason=text,
            )
        )  # fmt: skip
    write_stage(path, 1, "plan", [found])
    write_stage(path, 1, "collect", [episodes, turns])
    write_stage(path, 1, "distill", [outputs, operations, written])
    write_stage(path, 1, "consolidate", [events])
    return path


def test_what_others_wrote_stays_text(
    show: Callable[..., Opened],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = tuple(Change("added", text, text, "o1", "add", None, text, None, (), None) for text in HOSTILE)
    monkeypatch.setattr(History, "diff", lambda self, number: BankDiff(number, False, 1, 1, changes))
    uses = [EntryUse(text, text, text, 1, Rate(0, 3)) for text in HOSTILE]
    monkeypatch.setattr("crl.report.page._usefulness", lambda history: _useful(uses))
    page = show(hostile_run(tmp_path / "hostile"))
    assert page.page.evaluate("[window.broken, document.images.length, document.scripts.length]") == [None, 0, 2]
    assert page.page.evaluate("document.querySelectorAll('[onerror], [onmouseover], a:not([href^=\"#\"])').length") == 0
    assert page.texts("#usefulness .text") == SHOWN and page.texts("#usefulness td a") == SHOWN
    assert page.texts("#bank .change .text") == SHOWN
    assert page.page.locator("#list li").count() == len(HOSTILE)
    for number, text in enumerate(SHOWN):
        page.open(f"r0001-room-g{number:04d}-m000")
        for place in ("#goal", "#observation", "#output", "#feedback", "#guide blockquote", "#distilled .text",
                      "#distilled details pre", "#trail button", "#distilled > p > b"):  # fmt: skip
            assert page.text(place) == text, place
        assert page.text("#action") == f"Action: {text}"
        assert f"rejected: {text.replace('_', ' ')}" in page.text("#distilled")
        assert page.page.evaluate("[window.broken, document.images.length, document.scripts.length]") == [None, 0, 2]
    # A link to an entry with such a name finds its games and nothing else happens.
    for link in page.page.locator("#usefulness td a").all():
        link.click()
    assert page.page.evaluate("window.broken") is None


def _useful(uses: list[EntryUse]) -> Usefulness:
    return Usefulness(1, 3, 3, 0, [bar_chart("none", [], [])], [], uses, [], 0)


def test_the_policy_stops_what_escaping_would_let_through(browser: Any, finished: Path, tmp_path: Path) -> None:
    """The second line of defense: a script that got into the page would not run and could send nothing."""
    path = write_report(finished, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    injected = "<script>window.broken = 1</script><img src='http://127.0.0.1:9/x'><p style='color:red' onclick='x()'>"
    path.write_text(text.replace("<footer>", f"{injected}<footer>"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    stopped: dict[str, str] = {}
    page.on("requestfailed", lambda request: stopped.update({request.url: request.failure or ""}))
    page.goto(path.as_uri())
    assert page.evaluate("window.broken") is None
    refused = page.evaluate("fetch('http://127.0.0.1:9/y').then(() => 'sent', () => 'refused')")
    # The browser stops them by the policy, before any is sent: nobody listens there, which would be another failure.
    assert refused == "refused" and stopped.get("http://127.0.0.1:9/x") == "csp"
    assert set(stopped.values()) == {"csp"}
    assert (
        page.locator("footer ~ *, p[style]").first.evaluate("(each) => getComputedStyle(each).color")
        != "rgb(255, 0, 0)"
    )
    assert page.locator("#browser").is_visible(), "the page's own script runs"
    context.close()
