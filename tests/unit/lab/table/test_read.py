"""Which evaluation of a run a table shows: of which round, and whose rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.errors import BadInput, RecordDamaged
from crl.lab.table.read import read_results
from crl.records import Evaluation, rows_of
from crl.run.directory import RunDirectory
from crl.run.lineage import LINEAGE, Ancestor, Lineage
from tests.tiny_run import ROUNDS
from tests.unit.lab.table.recorded import FIRST, WITH, WITHOUT, Won, keep, recorded

BOTH: Won = {
    ("lake", WITH): [1, 1, 0], ("lake", WITHOUT): [1, 0, 0], ("pond", WITH): [1, 1, 1], ("pond", WITHOUT): [0, 0, 0],
}  # fmt: skip


def all_won(count: int, condition: str = WITHOUT) -> Won:
    return {("lake", condition): [1] * count, ("pond", condition): [1] * count}


def test_metrics_are_those_of_the_rows(tmp_path: Path) -> None:
    found = read_results(recorded(tmp_path, "one", {3: BOTH}), "last")
    lake = found.cells["lake", WITH].result
    assert (found.name, found.round, found.tasks) == ("one", 3, ["lake", "pond"])
    assert (lake.won and lake.won.successes, lake.episodes) == (2, 3)
    assert lake.score == pytest.approx((1 + 1 - 1) / 3) and lake.actions == pytest.approx((4 + 4 + 10) / 3)
    assert lake.tokens == pytest.approx((30 + 30 + 60) / 3) and lake.invalid_share == pytest.approx(1 / 18)
    assert found.cells["lake", WITH].seeds == (FIRST, FIRST + 1, FIRST + 2) and not found.cells["lake", WITH].kept
    average = found.average(WITH, ["lake", "pond"])
    assert average is not None and average.success.mean == pytest.approx((2 / 3 + 1) / 2)
    assert found.average(WITH, ["lake", "pond", "sea"]) is None


@pytest.mark.parametrize(("which", "number"), [("last", 6), ("best", 5), (2, 2), (0, 0)])
def test_the_round_is_the_last_the_best_or_the_one_that_was_named(tmp_path: Path, which: Any, number: int) -> None:
    good: Won = {place: [1, 1, 1] for place in BOTH}
    path = recorded(tmp_path, "one", {0: all_won(1), 2: BOTH, 4: good, 5: good, 6: BOTH})
    keep(path, 0, {("lake", WITHOUT): [0, 0], ("pond", WITHOUT): [0, 0]})
    assert read_results(path, which).round == number


def test_the_best_round_is_so_with_the_bank_where_there_is_one(tmp_path: Path) -> None:
    with_more: Won = {**BOTH, ("lake", WITH): [1, 1, 1]}
    without_more: Won = {**BOTH, ("lake", WITHOUT): [1, 1, 1], ("pond", WITHOUT): [1, 1, 1]}
    path = recorded(tmp_path, "one", {1: BOTH, 2: with_more, 3: without_more})
    assert read_results(path, "best").round == 2


def test_a_round_in_which_a_task_is_missing_is_the_last_only_where_there_is_no_other(tmp_path: Path) -> None:
    half: Won = {("lake", WITHOUT): [1, 1]}
    path = recorded(tmp_path, "one", {1: BOTH})
    keep(path, 7, half)
    assert read_results(path, "last").round == 1
    assert read_results(recorded(tmp_path, "two", {2: half}), "last").round == 2


def test_most_episodes_count_task_by_task(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {1: BOTH})
    keep(path, 1, {("lake", WITH): [0, 0, 0, 0], ("pond", WITH): [0, 0]})
    cells = read_results(path, 1).cells
    assert cells["lake", WITH].kept and cells["lake", WITH].result.success.mean == 0
    assert not cells["pond", WITH].kept and cells["pond", WITH].result.success.mean == 1
    assert not cells["lake", WITHOUT].kept


def test_of_equally_many_episodes_the_stage_is_shown(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {1: BOTH})
    keep(path, 1, {place: [0, 0, 0] for place in BOTH}, first=FIRST + 100)
    assert not any(found.kept for found in read_results(path, "last").cells.values())


def test_the_random_policy_is_in_no_table(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {0: {**all_won(2), ("lake", "random"): [1] * 9}})
    assert {condition for _, condition in read_results(path, 0).cells} == {WITHOUT}


def test_a_round_that_was_not_evaluated_is_refused_with_those_that_were(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {1: BOTH, 3: BOTH})
    with pytest.raises(BadInput, match="round 2 was not evaluated") as caught:
        read_results(path, 2)
    assert "1, 3" in (caught.value.expected or "") and "--round 2" in (caught.value.next_step or "")
    with pytest.raises(BadInput, match="no round of it was evaluated"):
        read_results(recorded(tmp_path, "two", {}), "last")


def test_damage_to_a_stage_is_an_error_and_to_a_kept_evaluation_a_note(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {1: BOTH})
    place = keep(path, 1, all_won(9))
    (place / "evaluations.parquet").write_bytes(b"")
    found = read_results(path, "last")
    assert any(place.name in note for note in found.footnotes) and not found.cells["lake", WITHOUT].kept
    (path / "rounds/0001/evaluate/evaluations.parquet").write_bytes(b"")
    with pytest.raises(RecordDamaged):
        read_results(path, "last")


def test_a_run_that_did_not_reach_its_end_is_named(tmp_path: Path) -> None:
    notes = read_results(recorded(tmp_path, "one", {1: BOTH}), "last").footnotes
    assert any(note.startswith("unfinished: round 0") for note in notes)


def test_a_finished_run_has_nothing_to_note(finished: Path) -> None:
    found = read_results(finished, "last")
    recorded_rows = rows_of(Evaluation, RunDirectory.open(finished).read(ROUNDS, "evaluate", Evaluation))
    assert found.round == ROUNDS and found.footnotes == ()
    for (task, condition), cell in found.cells.items():
        mine = [row for row in recorded_rows if (row.family, row.condition) == (task, condition)]
        assert cell.result.episodes == len(mine) and cell.result.won is not None
        assert cell.result.won.successes == sum(row.success for row in mine)


def test_a_round_that_was_evaluated_again_with_one_condition_is_not_the_last(tmp_path: Path) -> None:
    path = recorded(tmp_path, "one", {1: BOTH, 2: BOTH})
    keep(path, 3, all_won(4))
    assert read_results(path, "last").round == 2
    keep(path, 3, all_won(4, WITH))
    assert read_results(path, "last").round == 3


def test_a_fork_is_shown_by_its_own_rounds(tmp_path: Path) -> None:
    path = recorded(tmp_path, "milder", {4: all_won(4), 8: all_won(4)})
    run = RunDirectory.open(path)
    parent = Ancestor(
        experiment="first", round=8, head="0" * 64, method_digest=run.method.digest(), method=run.method.model_dump()
    )
    (path / LINEAGE).write_bytes(Lineage((parent,)).render())
    only = read_results(path, "best")
    assert (only.round, only.footnotes) == (8, ("round 8 is of first, which it was forked from", *only.footnotes[1:]))
    keep(path, 9, BOTH)
    for which in ("best", "last"):
        own = read_results(path, which)
        assert own.round == 9 and not any("forked" in note for note in own.footnotes)
    assert read_results(path, 8).footnotes[0] == "round 8 is of first, which it was forked from"
