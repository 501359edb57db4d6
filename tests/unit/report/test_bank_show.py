"""The bank after any round: listed, searched and compared, against the rows that a told run is known to hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import crl
from crl.errors import BadInput
from crl.policies.embedders import LexicalEmbedder
from crl.report.bank import BankAfter, entries_after, search, search_words
from crl.report.diff import net_diff
from crl.report.views import query
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.unit.report.scripted import Ask, ScriptedRun, experiment


class Told:
    """Five rounds; the newest bank holds `b` (rewritten), `d`, `pond` and a merge of `a` and `c`."""

    def __init__(self, root: Path) -> None:
        with ScriptedRun(root, experiment(method__recipe__bank__capacity=3)) as run:
            run.initialize()
            self.a, self.b, self.c, self.pond = run.play(
                Ask("add", "go left at the lake"), Ask("add", "go right"), Ask("add", "wait for the ice"),
                Ask("add", "swim", family="pond"),
            )  # fmt: skip
            run.play(
                Ask("update", "go right twice", entry=self.b), guided=[(self.b, True), (self.a, False), (self.c, True)]
            )
            (self.d,) = run.play(Ask("add", "jump over the hole"), guided=[(self.b, True), (self.b, False)])
            (self.merged,) = run.play(merges=[Ask("merge", "left, or wait", parents=(self.c, self.d))])
            run.play(Ask("drop", entry=self.pond, family="pond"))
            self.path = run.path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_every_round_is_shown_as_it_was(told: Told) -> None:
    for number in range(6):
        shown = entries_after(told.path, number)
        sql = 'SELECT entry_id, text FROM bank_text WHERE round = $r ORDER BY "order"'
        assert [(each.entry_id, each.text) for each in shown] == query(told.path, sql, {"r": number})[1]
    assert entries_after(told.path) == entries_after(told.path, 5)
    assert [each.text for each in entries_after(told.path, 1, "pond")] == ["swim"]


def test_usefulness_is_that_of_the_round(told: Told) -> None:
    then = {each.entry_id: each for each in entries_after(told.path, 2)}
    assert (then[told.c].uses, then[told.c].mean_outcome, then[told.c].retrieved) == (1, 1.0, 1)
    assert (then[told.b].uses, then[told.b].mean_outcome, then[told.b].retrieved) == (0, None, 1), "of its new words"
    now = {each.entry_id: each for each in entries_after(told.path, 4)}
    assert (now[told.b].uses, now[told.b].mean_outcome, now[told.b].version) == (2, 0.0, 2)
    assert (now[told.merged].uses, now[told.merged].mean_outcome) == (0, None)


@pytest.mark.parametrize("number", sampled(range(6), 3))
def test_the_python_interface_says_the_same(told: Told, number: int) -> None:
    columns = "entry_id, retrieved, uses, mean_outcome"
    shown = [(each.entry_id, each.retrieved, each.uses, each.mean_outcome) for each in entries_after(told.path, number)]
    assert crl.open(told.path).bank(number).project(columns).fetchall() == sorted(shown)


def test_entries_come_in_the_order_asked_for(told: Told) -> None:
    def listed(order: str, number: int = 2, limit: int | None = None) -> list[str]:
        return [each.entry_id for each in entries_after(told.path, number, "lake", order=order, limit=limit)]

    assert listed("age") == [told.a, told.b, told.c]
    assert listed("newest") == [told.b, told.c, told.a]
    assert listed("uses") == [told.a, told.c, told.b]  # one use each of the first two: the oldest first
    assert listed("credit") == [told.c, told.a, told.b]
    assert listed("harm") == [told.a, told.c, told.b]
    assert listed("credit", limit=1) == [told.c]


def test_what_cannot_be_shown_is_refused(told: Told) -> None:
    with pytest.raises(BadInput, match="round 9") as caught:
        entries_after(told.path, 9)
    assert "from 0 to 5" in str(caught.value.expected)
    with pytest.raises(BadInput, match="task family 'sea'"):
        entries_after(told.path, family="sea")


def test_damage_in_another_round_does_not_show(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(told.path, path)
    before = entries_after(path, 2)
    for stage in ("distill", "merge", "consolidate", "credit"):
        for file in (path / "rounds" / "0005" / stage).glob("*.parquet"):
            file.write_bytes(b"damaged")
    assert entries_after(path, 2) == before
    bank = BankAfter(RunDirectory.open(path), 2)
    assert search_words(bank, "right")[0].entry.entry_id == told.b
    assert net_diff(path, 1, 4).of("updated")[0].after == "go right twice"


def test_search_ranks_by_the_cosine_of_the_runs_embedder(told: Told) -> None:
    bank, embedder = BankAfter(RunDirectory.open(told.path), 1), LexicalEmbedder()
    hits = search(bank, "go right", embedder, most=3)
    vectors = embedder.embed(["go left at the lake", "go right", "wait for the ice", "swim"]).astype(np.float64)
    cosines = vectors @ embedder.embed(["go right"])[0].astype(np.float64)
    order = np.argsort(-cosines, kind="stable")[:3]
    assert [hit.entry.entry_id for hit in hits] == [[told.a, told.b, told.c, told.pond][row] for row in order]
    assert [hit.score for hit in hits] == [float(cosines[row]) for row in order] and hits[0].score == pytest.approx(1)
    assert [hit.entry.text for hit in search(bank, "go right", embedder, family="pond")] == ["swim"]
    assert search(BankAfter(RunDirectory.open(told.path), 0), "go", embedder) == []
    with pytest.raises(BadInput, match="nothing to search for"):
        search(bank, "  ", embedder)


def test_words_are_whole_and_rare_ones_weigh_more(told: Told) -> None:
    bank = BankAfter(RunDirectory.open(told.path), 1)
    assert [hit.entry.text for hit in search_words(bank, "GO ice")] == [
        "wait for the ice", "go left at the lake", "go right",
    ]  # fmt: skip
    assert search_words(bank, "the lake")[0].score == pytest.approx(1)
    assert search_words(bank, "righ") == [] and search_words(bank, "swim", family="lake") == []
    with pytest.raises(BadInput, match="holds no word"):
        search_words(bank, "?!")


@pytest.mark.slow
def test_the_difference_of_two_rounds_is_net_and_gives_reasons(told: Told) -> None:
    diff = net_diff(told.path, 1, 5)
    assert (diff.size_before, diff.size_after) == (4, 2)
    assert [(each.entry_id, each.after, each.reason) for each in diff.of("added")] == [
        (told.merged, "left, or wait", f"merge of {told.c}, {told.d} in round 4"),
    ]
    assert [(each.entry_id, each.before, each.after, each.version_after) for each in diff.of("updated")] == [
        (told.b, "go right", "go right twice", 2)
    ]
    # `d` came and went in between: it is in neither bank.
    assert [(each.entry_id, each.before, each.reason) for each in diff.of("removed")] == [
        (told.a, "go left at the lake", "evicted in round 3 (capacity_fifo)"),
        (told.c, "wait for the ice", f"merged into {told.merged} in round 4"),
        (told.pond, "swim", "dropped in round 5"),
    ]
    assert diff.headline() == "bank from round 1 to round 5: 4 → 2 entries: added 1, updated 1, removed 3"
    for first, last in ((0, 1), (1, 2), (2, 5), (0, 5)):
        _agrees_with_snapshots(told.path, first, last)
    with pytest.raises(BadInput) as caught:
        net_diff(told.path, 5, 1)
    assert "diff" in str(caught.value.next_step) and "1 5" in str(caught.value.next_step)


def _agrees_with_snapshots(path: Path, first: int, last: int) -> None:
    old, new = ({each.entry_id: each.text for each in entries_after(path, number)} for number in (first, last))
    diff = net_diff(path, first, last)
    assert {each.entry_id: each.after for each in diff.of("added")} == {n: new[n] for n in new if n not in old}
    assert {each.entry_id: each.before for each in diff.of("removed")} == {n: old[n] for n in old if n not in new}
    assert {each.entry_id: (each.before, each.after) for each in diff.of("updated")} == {
        name: (old[name], new[name]) for name in old if name in new and old[name] != new[name]
    }
    assert all(each.reason for each in diff.changes)
