"""A stage that waits for a person: through the driver and the command line, without a server."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from crl.audit.verify import Severity, verify
from crl.cli import main
from crl.config import Runtime
from crl.engine.driver import Driver
from crl.errors import ApprovalPending, BadInput
from crl.report.views import query
from crl.rounds.approvals import PendingApproval, awaited, decide
from crl.run.decisions import decision_path, load_decision, write_decision
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from tests.unit.engine.approval_recipe import NAME, approved_experiment
from tests.unit.engine.harness import digests

TEXTS = 'SELECT text FROM bank_text WHERE round = $round ORDER BY "order"'


@pytest.fixture(scope="module")
def first_wait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that came to the approval of round 1."""
    run = RunDirectory.create_or_open(approved_experiment(), tmp_path_factory.mktemp("waiting"))
    with Driver(run, Runtime()) as driver:
        driver.set_target(2)
        with pytest.raises(ApprovalPending) as stopped:
            driver.run_rounds(2)
        assert driver.next_round() == 1 and run.complete_stages(1) == ["distill"]
    assert stopped.value.exit_code == 6 and not stopped.value.transient
    assert stopped.value.found == "round 1 waits for a person before stage approve: 4 operations to decide about"
    assert f"`crl approve {run.path} --show`" in str(stopped.value)
    return run.path


@pytest.fixture
def waiting(first_wait: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_wait, tmp_path / NAME))


@pytest.fixture
def crl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def go_on(path: Path, last: int = 1) -> None:
    with Driver(RunDirectory.open(path), Runtime()) as driver:
        driver.run_rounds(last)


def asked(path: Path) -> PendingApproval:
    found = awaited(path)
    assert found is not None
    return found


def select(path: Path, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return query(path, sql, parameters)[1]


def test_a_wait_is_no_failure_and_leaves_no_engine(waiting: Path) -> None:
    events = [event["event"] for event in Journal(waiting).read()]
    assert "stage_failed" not in events and events[-1] == "attempt_ended"
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [command for command in commands if "crl.engine.worker" in command]
    assert asked(waiting).choices == tuple(f"r1-d{index}-o0" for index in range(4))


@pytest.mark.slow
def test_what_a_person_refuses_stays_as_rejected_and_when_they_decided_changes_no_digest(
    waiting: Path, first_wait: Path, tmp_path: Path
) -> None:
    decision = decide(asked(waiting), approve=True, reject=["r1-d1-o0"], person=" Ada ", reason="not true")
    assert awaited(waiting) is None
    with pytest.raises(ApprovalPending, match="round 2 waits"):
        go_on(waiting, last=2)
    assert select(waiting, TEXTS, round=1) == [("Go down.",), ("Take the stairs.",)]
    rejected = "SELECT operation_id, reason FROM bank_events WHERE kind = 'rejected' ORDER BY operation_id"
    # The twin of the refused text was a duplicate when it was shown: it does not slip in.
    assert select(waiting, rejected) == [("r1-d1-o0", "rejected by Ada: not true"), ("r1-d2-o0", "duplicate")]
    found = "SELECT round, decision, person, reason, operations, rejected_operations, decided_at FROM approvals"
    assert select(waiting, found) == [
        (1, "partly", "Ada", "not true", 4, ["r1-d1-o0"], decision.decided_at.isoformat())
    ]  # fmt: skip

    later = Path(shutil.copytree(first_wait, tmp_path / "later"))
    assert asked(later).shown == decision.shown
    write_decision(later, decision.model_copy(update={"decided_at": decision.decided_at.replace(year=2031)}))
    go_on(later)
    mine = digests(RunDirectory.open(waiting))
    assert {key: value for key, value in mine.items() if not key.startswith("2/")} == digests(RunDirectory.open(later))

    # Once it is applied, the file is evidence only: gone is harmless, changed is told.
    assert verify(waiting) == []
    path = decision_path(waiting, 1)
    path.write_bytes(path.read_bytes().replace(b"not true", b"quite ok"))
    (problem,) = verify(waiting)
    assert (problem.file, problem.severity) == ("decisions/0001.json", Severity.housekeeping)
    path.unlink()
    assert verify(waiting) == []


@pytest.mark.slow
def test_without_approval_there_is_no_such_stage_and_the_bank_is_that_of_one_who_approves_all(
    waiting: Path, tmp_path: Path
) -> None:
    decide(asked(waiting), approve=True, person="Ada")
    go_on(waiting)
    plain = RunDirectory.create_or_open(approved_experiment("plain", approve=False), tmp_path)
    go_on(plain.path)
    assert plain.complete_stages(1) == ["distill", "consolidate"]
    for table in ("bank", "bank_events"):
        rows = f"FROM {table} WHERE round = 1 ORDER BY ALL"
        assert select(plain.path, rows) == select(waiting, rows) != []


def test_a_decision_about_other_rows_is_never_applied(waiting: Path, crl: Callable[..., tuple[int, str, str]]) -> None:
    pending = asked(waiting)
    other = dataclasses.replace(pending, shown="0" * 64)
    decide(other, approve=True, person="Ada")
    found = asked(waiting)
    assert found.outdated is not None and "an earlier decision concerns other operations" in found.in_words()
    with pytest.raises(ApprovalPending, match="an earlier decision"):
        go_on(waiting)
    assert crl("approve", waiting, "--reject-all", "--person", "Bob")[0] == 0
    held = load_decision(waiting, 1)
    assert held is not None and (held.person, held.shown) == ("Bob", pending.shown)
    assert (waiting / "damaged/1/decisions/0001.json").is_file()


def test_ids_that_nobody_asked_for_and_nameless_people_are_refused(waiting: Path) -> None:
    with pytest.raises(BadInput, match="does not ask for r9") as refused:
        decide(asked(waiting), approve=True, reject=["r9"], person="Ada")
    assert "r1-d0-o0" in str(refused.value)
    with pytest.raises(BadInput, match="needs a person"):
        decide(asked(waiting), approve=True, person="  ")
    assert load_decision(waiting, 1) is None


@pytest.mark.slow
def test_the_command_line_from_waiting_to_published(waiting: Path, crl: Callable[..., tuple[int, str, str]]) -> None:
    code, said, complaint = crl("resume", waiting)
    assert code == 6 and not complaint
    assert "nothing failed" in said and f"crl approve {waiting} --show" in said and f"crl resume {waiting}" in said
    code, said, _ = crl("status", waiting)
    assert "round 1 waits for a person before stage approve: 4 operations" in said
    assert f"next: crl approve {waiting} --show" in said

    code, said, _ = crl("approve", waiting, "--show", "--reject", "r1-d0-o0")
    assert code == 0 and "0 → 2 entries: added 2, rejected 2" in said and "Take the stairs." in said
    assert load_decision(waiting, 1) is None, "it was only shown"
    assert crl("approve", waiting, "--reject", "nope")[0] == 2
    assert crl("approve", waiting, "--reject", "r1-d0-o0", "--reject-all")[0] == 2
    assert crl("approve", waiting, "--round", "2")[0] == 2

    code, said, _ = crl("approve", waiting, "--reject-all", "--reason", "all of it", "--person", "Ada")
    assert code == 0 and "Ada rejected all" in said and f"next: crl resume {waiting}" in said
    code, said, complaint = crl("approve", waiting, "--person", "Bob")
    assert code == 2 and "already decided: Ada rejected all" in complaint
    assert crl("approve", waiting, "--reject-all", "--person", "Bob")[0] == 0, "the same again is no contradiction"

    # Taken back before it was used, and decided anew.
    code, said, _ = crl("redo", waiting, "--from", "1/approve", "--yes")
    assert code == 0 and "set aside the decision about round 1" in said
    assert crl("approve", waiting, "--reject-all", "--person", "Eve")[0] == 0
    code, said, _ = crl("resume", waiting)
    assert code == 6 and "round 2 waits for a person" in said and "1 operation to decide about" in said
    assert select(waiting, TEXTS, round=1) == []
    assert select(waiting, "SELECT decision, person FROM approvals") == [("rejected", "Eve")]
    code, _, complaint = crl("approve", waiting, "--round", "1")
    assert code == 2 and "was decided and its bank is published: Eve rejected all" in complaint
    code, said, complaint = crl("bank", "why", waiting, "x-r1-d0")
    assert code == 0 and "never came into the bank" in said and "rejected by Eve" in said, said + complaint
    code, said, _ = crl("bank", "diff", waiting, "1")
    assert code == 0 and "0 → 0 entries: rejected 4" in said and "rejected by Eve" in said


def test_an_experiment_without_approval_asks_nobody(tmp_path: Path, crl: Callable[..., tuple[int, str, str]]) -> None:
    run = RunDirectory.create_or_open(approved_experiment("plain", approve=False), tmp_path)
    code, _, complaint = crl("approve", run.path)
    assert code == 2 and "needs no approval" in complaint and "method.recipe.approve_bank: true" in complaint
