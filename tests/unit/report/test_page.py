"""The report page: its numbers against SQL, what models wrote stays text, it loads nothing, it stays small."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from crl.audit.verify import verify
from crl.bank.segments import SEGMENTS
from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from crl.report.diff import BankDiff, Change
from crl.report.page import REPORT, SHOWN_CHANGES, page_url, render, write_report
from crl.report.success import Rate
from crl.report.summary import History
from crl.report.views import query
from tests.unit.cli.conftest import Outcome, crl, room, runs  # noqa: F401  (fixtures)
from tests.unit.report.builder import build_run, write_stage

NASTY = '<script>alert(1)</script> a|b *c* `d` [x](http://evil.example/a) <img src="http://evil.example/b">'

OWN_SCRIPTS = 2
"""The episodes as JSON, and what turns them into text."""


class Page(HTMLParser):
    """Tags, addresses, visible text and tables of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.words: list[str] = []
        self.data = ""
        self._quiet, self._data, self._cell = 0, False, False
        self.feed(text)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self._quiet += tag in ("style", "script")
        self._data = given.get("type") == "application/json"
        if tag == "table":
            self.tables.append((given.get("aria-label") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._quiet -= tag in ("style", "script")
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._data and self._quiet:
            self.data += data
        if not self._quiet:
            self.words.append(data)
            if self._cell:
                self.tables[-1][1][-1][-1] += " ".join(data.split()) + (" " if data.endswith(" ") else "")

    def table(self, name: str) -> list[list[str]]:
        """Rows of all tables of this name, headings included."""
        return [[cell.strip() for cell in row] for found, rows in self.tables if found == name for row in rows]

    def row(self, name: str, first: str) -> list[str]:
        """The first row of a table that starts with a cell."""
        return next(row for row in self.table(name) if row[0] == first)

    def numbers(self, chart: str) -> dict[str, dict[str, str]]:
        """The table beside a chart: cells by round and heading."""
        heads, *rows = self.table(chart)
        return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


def share(good: int, count: int) -> str:
    return f"{good}/{count} {Rate(good, count).percent} [{Rate(good, count).span}]"


@pytest.fixture(scope="module")
def html(finished: Path) -> str:
    """The page of the finished run."""
    return render(finished)


def test_numbers_equal_those_of_sql(finished: Path, html: str) -> None:
    page = Page(html)
    last = query(finished, "SELECT max(round) FROM rounds")[1][0][0]

    def one(sql: str) -> Any:
        return query(finished, sql, {"round": last})[1][0]

    cells = page.row("Rounds", str(last))
    guided = one(
        "SELECT count_if(success), count(*) FROM episodes WHERE stage = 'collect' AND guided AND round = $round"
    )
    free = one(
        "SELECT count_if(success), count(*) FROM episodes WHERE stage = 'collect' AND NOT guided AND round = $round"
    )
    assert cells[1:3] == [f"{won}/{games}" if games else "–" for won, games in (guided, free)]
    for cell, condition in ((cells[3], "with_bank"), (cells[4], "without_bank")):
        sql = f"SELECT count_if(success), count(*) FROM evaluations WHERE round = $round AND condition = '{condition}'"
        assert cell == (share(*one(sql)) if one(sql)[1] else "–")
    for cell, name in ((cells[5], "turns_valid"), (cells[6], "turns_cut")):
        metric = one(f"SELECT value FROM metrics WHERE stage = 'health' AND name = '{name}' AND round = $round")[0]
        assert cell == f"{100 * metric:.3g} %"
    assert cells[7] == str(one("SELECT count(*) FROM bank WHERE round = $round")[0])
    malformed = one("SELECT count_if(verdict = 'malformed'), count(*) FROM distillations WHERE round = $round "
                    "AND stage IN ('distill', 'merge')")  # fmt: skip
    assert cells[9] == f"{malformed[0]}/{malformed[1]}"
    assert cells[10] == str(one("SELECT count_if(status = 'waiting') FROM buffer WHERE round = $round")[0])
    alarms = one("SELECT count(*) FROM metrics WHERE alarm IS NOT NULL AND round = $round")[0]
    assert cells[13] == str(alarms or "–")


def test_charts_have_their_numbers_beside_them(finished: Path, html: str) -> None:
    page = Page(html)

    def by_round(sql: str) -> dict[str, str]:
        return {str(number): f"{value:.4g}" for number, value in query(finished, sql)[1]}

    def shown(chart: str, heading: str) -> dict[str, str]:
        return {number: row[heading] for number, row in page.numbers(chart).items() if row[heading] not in ("–", "0")}

    assert shown("entries in the bank", "entries") == by_round("SELECT round, count(*) FROM bank GROUP BY round")
    for kind in ("add", "update"):
        events = by_round(f"SELECT round, count(*) FROM bank_events WHERE kind = '{kind}' GROUP BY round")
        assert events and shown("what became of operations", kind) == events
    born = "SELECT created_round, count(DISTINCT entry_id) FROM bank WHERE created_round > 0 GROUP BY 1"
    assert shown("entries that changed", "added") == by_round(born)
    kept = "SELECT round, count(*) FROM bank WHERE updated_round = round AND created_round < round GROUP BY round"
    assert shown("entries that changed", "rewritten") == by_round(kept)
    # Of the bank that was searched, the one of the round before: the texts that were used are some of these.
    last = "(SELECT max(round) FROM rounds)"
    ages = f"SELECT round + 1, avg(round + 1 - updated_round) FROM bank WHERE round < {last} GROUP BY round"
    assert by_round(ages) and shown("mean age of texts, in rounds", "whole bank") == by_round(ages)
    used = "SELECT c.round, avg(c.round - g.round) FROM credits c JOIN generations g USING (generation_id) GROUP BY 1"
    assert by_round(used) and shown("mean age of texts, in rounds", "used") == by_round(used)
    for heading, status in (("waiting", "waiting"), ("trained now", "selected")):
        scored = f"SELECT round, count(*) FROM buffer WHERE status = '{status}' AND uses > 0 GROUP BY round"
        buffered = by_round(scored)
        assert shown("outputs in the training buffer", heading) == buffered
    reasons = query(finished, "SELECT reason_code, count(*) FROM distillations WHERE verdict = 'malformed' "
                              "AND stage IN ('distill', 'merge') GROUP BY 1")[1]  # fmt: skip
    assert reasons and all(f"{reason.replace('_', ' ')} {count}" in page.text for reason, count in reasons)


@pytest.mark.usefixtures("plain_charts")
def test_a_round_that_has_updated_nothing_yet_leaves_the_updates_so_far(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    shutil.rmtree(run / "rounds/0002/update_extractor")
    text = Page(render(run)).text
    assert "1 experiences in the bank 1 / 1 updates of actor / extractor" in text


@pytest.mark.slow
def test_a_round_on_its_way_has_no_bank_yet(copied: Path) -> None:
    from tests.tiny_run import ROUNDS, cut_back

    cut_back(copied, ROUNDS, "consolidate")
    page = Page(render(copied))
    assert str(ROUNDS) not in [row[0] for row in page.table("mean age of texts, in rounds")]
    assert set(page.numbers("age of the entries")[str(ROUNDS)].values()) == {"0"}


def test_every_change_of_the_bank_is_told_with_its_text(finished: Path, html: str) -> None:
    page = Page(html)
    texts = query(finished, "SELECT DISTINCT text FROM bank_texts")[1]
    told = query(finished, "SELECT count(*) FROM bank_events WHERE kind IN ('add', 'update', 'rejected')")[1][0][0]
    assert texts and told
    for (text,) in texts:
        assert " ".join(text.split()) in page.text


def test_checks_are_those_that_the_manifests_keep(finished: Path, html: str) -> None:
    page = Page(html)
    history = History(finished)
    checks = history.checks(history.rounds()[-1])
    assert {each.stage for each in checks} >= {"plan", "collect", "consolidate", "evaluate"}
    for each in checks:
        assert each.suites, f"{each.stage} kept what was checked"
        name = each.stage.replace("_", " ")
        assert page.row(f"Checks of round {history.rounds()[-1]}", name)[1:4] == [
            "passed",
            str(each.rules),
            str(each.rows),
        ]
    collect = next(each for each in checks if each.stage == "collect")
    where = f"WHERE stage = 'collect' AND round = {history.rounds()[-1]}"
    tables = ("episodes", "turns", "generations")
    assert collect.rows == sum(query(finished, f"SELECT count(*) FROM {table} {where}")[1][0][0] for table in tables)


@pytest.mark.usefixtures("plain_charts")
def test_what_a_model_wrote_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = build_run(tmp_path / "run")
    changes = (
        Change("added", NASTY, NASTY, "o1", "add", None, NASTY, None, (), None),
        Change("rejected", None, None, "o2", "add", None, None, NASTY, (), NASTY),
        Change("evicted", "e9", "room", None, None, NASTY, None, None, (), "capacity_fifo"),
    )
    monkeypatch.setattr(History, "diff", lambda self, number: BankDiff(number, False, 1, 1, changes))
    text = render(run)
    page = Page(text)
    assert page.tags.count("script") == OWN_SCRIPTS and "img" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)
    assert page.text.count(" ".join(NASTY.split())) >= 4
    assert "capacity fifo" in page.text


def test_the_page_loads_nothing(html: str) -> None:
    page = Page(html)
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(page.tags)
    assert page.tags.count("script") == OWN_SCRIPTS and page.tags.count("style") == 1
    assert not re.search(r"url\(|@import|http://|https://", html), "no style may load anything either"


@pytest.mark.slow
def test_equal_records_give_equal_pages(finished: Path, html: str) -> None:
    assert render(finished) == html


@pytest.mark.slow
def test_a_report_is_no_part_of_the_record(copied: Path) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != REPORT}
    written = write_report(copied)
    assert written == copied / REPORT and "<html" in written.read_text(encoding="utf-8")
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path != written} == before
    assert verify(copied) == []


@pytest.mark.slow
def test_a_failure_stands_at_the_head_of_the_page(tmp_path: Path) -> None:
    from crl.errors import DataCheckFailed
    from crl.run.journal import Journal

    run = build_run(tmp_path / "run")
    error = DataCheckFailed("table episodes: row 3 is <b>broken</b>", next_step="look at row 3")
    Journal(run).record("stage_failed", token=1, round_number=3, stage="collect", error=error, attempt=1)
    page = Page(render(run))
    assert "stopped in round 3, stage collect" in page.text and "row 3 is <b>broken</b>" in page.text
    assert "What to do: look at row 3" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("plain_charts")
def test_a_run_that_waits_for_a_person_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.config import Runtime
    from crl.engine.driver import Driver
    from crl.errors import ApprovalPending
    from crl.run.directory import RunDirectory
    from tests.unit.engine.approval_recipe import approved_experiment

    run = RunDirectory.create_or_open(approved_experiment(), tmp_path)
    with Driver(run, Runtime()) as driver, pytest.raises(ApprovalPending):
        driver.run_rounds(1)
    page = Page(render(run.path))
    assert "waits for a person" in page.text and "4 operations to decide about" in page.text
    assert f"crl approve {run.path} --show" in page.text and "stopped in" not in page.text


def test_a_run_without_rounds_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "rounds").mkdir()
    assert "no round yet" in Page(render(tmp_path)).text


@pytest.mark.slow
def test_a_long_round_is_cut_and_the_rest_has_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = tuple(
        Change("added", f"e{index}", "room", f"o{index}", "add", None, f"advice {index} " + "x" * 3000, None, (), None)
        for index in range(SHOWN_CHANGES + 7)
    )
    diffs = {2: BankDiff(2, False, 0, 9, changes)}
    monkeypatch.setattr(History, "diff", lambda self, number: diffs.get(number))
    text = render(build_run(tmp_path / "run"))
    page = Page(text)
    assert "7 further changes: crl bank diff run 2" in page.text
    assert f"advice {SHOWN_CHANGES - 1} " in page.text and f"advice {SHOWN_CHANGES} " not in page.text
    assert "(3009 characters)" in page.text and len(text) < 200_000


@pytest.mark.slow
def test_a_thousand_rounds_make_a_small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    run = build_run(tmp_path / "run")
    last = History(run).summaries()[-1]
    many = [dataclasses.replace(last, round=number, label=str(number)) for number in range(1, 1001)]
    monkeypatch.setattr(History, "summaries", lambda self: many)
    text = render(run)
    assert len(text) < 500_000
    page = Page(text)
    assert "Each point pools 9 consecutive rounds" in page.text and "The 900 oldest" in page.text
    assert page.row("Rounds", "1000") and "900" not in [row[0] for row in page.table("Rounds")]


def test_another_place_and_a_place_that_cannot_be_written(
    finished: Path, html: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.report.page.render", lambda *run, **options: html)
    out = tmp_path / "page.html"
    assert write_report(finished, out) == out and out.read_text(encoding="utf-8") == html
    with pytest.raises(RunDirectoryUnusable, match="cannot be written") as raised:
        write_report(finished, tmp_path / "missing" / "page.html")
    assert "--out FILE" in str(raised.value)


def test_a_page_of_a_damaged_bank_names_the_file_and_what_mends_it(copied: Path) -> None:
    for segment in (copied / SEGMENTS).iterdir():
        segment.write_bytes(b"nothing")
    with pytest.raises(RecordDamaged) as raised:
        render(copied)
    assert SEGMENTS in raised.value.found and f"crl mend {copied}" in (raised.value.next_step or "")


@pytest.mark.usefixtures("plain_charts")
def test_a_line_of_the_journal_that_says_nothing_is_passed_over(room: Path) -> None:  # noqa: F811
    (room / "journal.jsonl").write_text('{"note": 1}\n', encoding="utf-8")
    assert "last stage committed" not in render(room)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_record_that_is_read_only_says_what_to_do(copied: Path) -> None:
    copied.chmod(0o555)
    try:
        with pytest.raises(RunDirectoryUnusable, match="--out"):
            write_report(copied)
    finally:
        copied.chmod(0o755)


@pytest.mark.usefixtures("plain_charts")
def test_the_command_writes_the_page(crl: Callable[..., Outcome], room: Path, tmp_path: Path) -> None:  # noqa: F811
    outcome = crl("report", "room")
    assert outcome.code == 0 and str(room / REPORT) in outcome.out and (room / REPORT).is_file()
    assert crl("report", "room", "--out", tmp_path / "x.html").code == 0 and (tmp_path / "x.html").is_file()
    assert crl("report", "rom").code == BadInput.exit_code


def test_addresses_of_pages() -> None:
    assert page_url("http://127.0.0.1:4201/", Path("/runs/a b")) == "http://127.0.0.1:4201/a%20b/report.html"


@pytest.mark.slow
def test_history_reads_new_rounds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.report import summary as module
    from crl.report.summary import summarize
    from tests.unit.report.builder import evaluation

    run = build_run(tmp_path / "run")
    asked: list[Any] = []

    def counted(path: Path, rounds: Any = None) -> Any:
        asked.append(rounds)
        return summarize(path, rounds)

    monkeypatch.setattr(module, "summarize", counted)
    history = History(run)
    assert history.summaries() == summarize(run) and asked == [[0, 1, 2]]
    assert history.summaries() == summarize(run) and asked == [[0, 1, 2]]
    write_stage(run, 3, "evaluate", [[evaluation(3, "with_bank", 1, True)]])
    assert history.summaries() == summarize(run) and asked[1:] == [[3]]
    shutil.rmtree(run / "rounds" / "0003" / "evaluate")
    assert history.rounds() == [0, 1, 2] and history.summaries() == summarize(run)
