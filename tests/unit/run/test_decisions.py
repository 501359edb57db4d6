"""Decisions on disk: written once, about certain rows, found when damaged."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crl.audit.verify import Severity, verify
from crl.errors import DecisionMade, RecordDamaged
from crl.run.decisions import (
    Decision,
    decided_rounds,
    decision_path,
    load_decision,
    shown_digest,
    withdraw_decision,
    write_decision,
)
from crl.run.directory import RunDirectory
from tests.processes import PATIENCE_SECONDS
from tests.unit.run.support import experiment

SHOWN = shown_digest({"0003/distill": "a", "0002/consolidate": "b"})


def decision(**changes: object) -> Decision:
    values: dict[str, object] = {
        "round": 3, "stage": "approve", "shown": SHOWN, "approve": True, "person": "Ada",
        "decided_at": datetime(2026, 5, 1, 12, 0, tzinfo=UTC),
    }  # fmt: skip
    return Decision.model_validate({**values, **changes})


def test_what_is_written_is_read_and_the_order_of_stages_does_not_matter(tmp_path: Path) -> None:
    written = write_decision(tmp_path, decision(reject=("o1", "o2"), reason="nonsense"))
    assert load_decision(tmp_path, 3) == written and written.check
    assert load_decision(tmp_path, 4) is None and decided_rounds(tmp_path) == [3]
    assert shown_digest({"0002/consolidate": "b", "0003/distill": "a"}) == SHOWN
    assert written.in_words() == "Ada approved all but o1, o2 at 2026-05-01 12:00:00 UTC"
    assert [path.name for path in decision_path(tmp_path, 3).parent.iterdir()] == ["0003.json"]


def test_the_same_again_is_the_first_and_another_is_refused_naming_the_first(tmp_path: Path) -> None:
    first = write_decision(tmp_path, decision(reject=("o1",), reason="nonsense"))
    assert write_decision(tmp_path, decision(reject=("o1",), person="Bob")) == first
    for other in (decision(person="Bob"), decision(approve=False, person="Bob"), decision(reject=("o1", "o2"))):
        with pytest.raises(DecisionMade, match=r"Ada approved all but o1 at 2026-05-01 .*nonsense") as refused:
            write_decision(tmp_path, other)
    assert refused.value.exit_code == 2 and "crl redo" in str(refused.value)
    assert load_decision(tmp_path, 3) == first


def test_of_many_at_once_one_holds(tmp_path: Path) -> None:
    def attempt(number: int) -> str:
        try:
            return write_decision(tmp_path, decision(person=f"p{number}", reject=(f"o{number}",))).person
        except DecisionMade:
            return ""

    with ThreadPoolExecutor(8) as pool:
        winners = [name for name in pool.map(attempt, range(24)) if name]
    found = load_decision(tmp_path, 3)
    assert found is not None and winners == [found.person]


def test_of_many_at_once_one_holds_where_an_older_one_is_set_aside_first(tmp_path: Path) -> None:
    def attempt(number: int) -> str:
        barrier.wait(PATIENCE_SECONDS)
        try:
            return write_decision(place, decision(shown=now, person=f"p{number}", reject=(f"o{number}",))).person
        except DecisionMade:
            return ""

    now = shown_digest({"0003/distill": "redone"})
    for repeat in range(20):
        place, barrier = tmp_path / str(repeat), threading.Barrier(4)
        write_decision(place, decision(approve=False))
        with ThreadPoolExecutor(4) as pool:
            winners = [name for name in pool.map(attempt, range(4)) if name]
        found = load_decision(place, 3)
        assert found is not None and winners == [found.person], "whoever was told that his decision holds has it"


def test_a_decision_about_other_rows_is_set_aside_not_lost(tmp_path: Path) -> None:
    old = write_decision(tmp_path, decision(approve=False))
    new = write_decision(tmp_path, decision(shown=shown_digest({"0003/distill": "c"})))
    assert load_decision(tmp_path, 3) == new
    aside = tmp_path / "damaged" / "1" / "decisions" / "0003.json"
    assert Decision.model_validate_json(aside.read_bytes()) == old


def test_one_can_be_taken_back(tmp_path: Path) -> None:
    assert withdraw_decision(tmp_path, 3) is None
    write_decision(tmp_path, decision())
    assert withdraw_decision(tmp_path, 3) == tmp_path / "damaged" / "1" / "decisions" / "0003.json"
    assert write_decision(tmp_path, decision(approve=False)).approve is False


@pytest.mark.parametrize("damage", ["flip", "truncate", "sealed_for_another_round"])
def test_damage_is_found_named_and_stops_whoever_would_build_on_it(tmp_path: Path, damage: str) -> None:
    run = RunDirectory.create_or_open(experiment(), tmp_path)
    write_decision(run.path, decision())
    path = decision_path(run.path, 3)
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content.replace(b"Ada", b"Eve"))
    elif damage == "truncate":
        path.write_bytes(content[:-20])
    else:
        path.write_bytes(decision(round=4).sealed().render())
    with pytest.raises(RecordDamaged):
        load_decision(run.path, 3)
    (problem,) = verify(run.path)
    assert (problem.file, problem.severity) == ("decisions/0003.json", Severity.damaged)
    assert problem.mend.endswith(f"mv {path} {run.path}/damaged/")


def test_one_that_is_set_aside_is_on_the_disk_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_decision(tmp_path, decision())
    synced: list[Path] = []
    monkeypatch.setattr("crl.run.files.fsync", synced.append)
    target = withdraw_decision(tmp_path, 3)
    assert target is not None and {target.parent, tmp_path, tmp_path / "decisions"} <= set(synced)
