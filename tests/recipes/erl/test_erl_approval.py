"""Experiential RL whose memory a person approves: what they refuse is never read, what they approve is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.errors import ApprovalPending
from crl.recipes.erl.rows import Reflection
from crl.records import BankEvent, Episode, Operation, Retrieval, rows_of
from crl.records.base import R
from crl.report.views import query
from crl.rounds.approvals import PendingApproval, awaited, decide
from crl.run.directory import RunDirectory
from tests.recipe_runs import tiny_name, train_tiny
from tests.recipes.erl.erl_played import played
from tests.tiny_run import crl, digests

REFUSED, APPROVED = "win, this way", "win, that way"
"""Reflections that lead to a success."""
GROUPS = 8
"""So many that round 1 has both."""


@pytest.fixture(scope="module")
def first_wait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that came to the approval of round 1."""
    return played_until_asked(tmp_path_factory.mktemp("waiting"), 1)


@pytest.fixture
def waiting(first_wait: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_wait, tmp_path / first_wait.name))


def played_until_asked(root: Path, number: int) -> Path:
    """Play, or go on, until the round waits for a person."""
    with pytest.raises(ApprovalPending):
        played(root, number, method__recipe__approve_bank=True, method__families__0__groups=GROUPS)
    return root / "erl-played"


def asked(path: Path) -> PendingApproval:
    found = awaited(path)
    assert found is not None
    return found


def rows(path: Path, row_type: type[R], stage: str, number: int = 1) -> list[R]:
    return rows_of(row_type, RunDirectory.open(path).read(number, stage, row_type))


def texts(path: Path, number: int) -> list[str]:
    sql = 'SELECT text FROM bank_text WHERE round = $round ORDER BY "order"'
    return [row[0] for row in query(path, sql, {"round": number})[1]]


def test_a_round_stops_for_the_decision_about_every_reflection_that_led_to_a_success(waiting: Path) -> None:
    assert RunDirectory.open(waiting).complete_stages(1) == ["plan", "collect", "reflect", "retry", "distill"]
    won = {row.episode_id for row in rows(waiting, Episode, "retry") if row.success}
    led = [row for row in rows(waiting, Reflection, "reflect") if row.text is not None and row.retry_id in won]
    assert {row.text for row in led} == {REFUSED, APPROVED}
    pending = asked(waiting)
    assert pending.choices == tuple(f"{row.reflection_id}-o0" for row in led)
    assert (
        pending.in_words() == f"round 1 waits for a person before stage approve: {len(led)} operations to decide about"
    )
    # Without a decision it stops there again.
    assert played_until_asked(waiting.parent, 1) == waiting and awaited(waiting) == pending


@pytest.mark.slow
def test_a_refused_reflection_never_enters_the_memory_and_an_approved_one_is_read(waiting: Path) -> None:
    wanted = {row.operation_id: row.text for row in rows(waiting, Operation, "distill") if row.kind == "add"}
    refused = [name for name, text in wanted.items() if text == REFUSED]
    approved = next(name for name, text in wanted.items() if text == APPROVED)
    decide(asked(waiting), approve=True, reject=refused, person="Ada", reason="not true")
    played_until_asked(waiting.parent, 2)
    assert texts(waiting, 1) == [APPROVED]
    events = rows(waiting, BankEvent, "consolidate")
    assert [row.operation_id for row in events if row.kind == "add"] == [approved]
    reasons = {row.operation_id: row.reason for row in events if row.kind == "rejected"}
    assert reasons == {
        name: "rejected by Ada: not true" if name in refused else "duplicate" for name in wanted if name != approved
    }
    read = rows(waiting, Retrieval, "reflect", 2)
    assert read and {row.entry_id for row in read} == {f"x-{approved}"}, "the next round reads what was approved alone"
    said = "SELECT decision, person, reason, rejected_operations FROM approvals"
    assert query(waiting, said)[1] == [("partly", "Ada", "not true", refused)]


@pytest.mark.slow
def test_where_all_is_refused_the_memory_stays_empty(waiting: Path) -> None:
    decide(asked(waiting), approve=False, person="Ada")
    played_until_asked(waiting.parent, 2)
    assert texts(waiting, 1) == [] and rows(waiting, Retrieval, "reflect", 2) == []


@pytest.mark.slow
def test_where_all_is_approved_the_memory_is_that_of_an_experiment_which_asks_nobody(
    waiting: Path, tmp_path: Path
) -> None:
    decide(asked(waiting), approve=True, person="Ada")
    played_until_asked(waiting.parent, 2)
    plain = played(tmp_path / "plain", 2, method__families__0__groups=GROUPS).run.path
    for table in ("bank", "bank_events"):
        sql = f"SELECT * FROM {table} WHERE round = 1 ORDER BY ALL"
        assert query(plain, sql) == query(waiting, sql) and query(waiting, sql)[1]
    for row_type, stage in ((Reflection, "reflect"), (Episode, "retry"), (Operation, "distill")):
        assert rows(plain, row_type, stage, 2) == rows(waiting, row_type, stage, 2)


@pytest.mark.slow
def test_with_a_real_engine_the_command_line_waits_and_publishes_what_was_approved(tmp_path: Path) -> None:
    run = tmp_path / tiny_name("erl")
    crl(tmp_path, *train_tiny("erl"), "--set", "method.recipe.approve_bank=true", code=6)
    assert "round 1 waits for a person before stage approve" in crl(tmp_path, "status", run.name).stdout
    before = digests(run)
    crl(tmp_path, "resume", run.name, code=6)
    assert digests(run) == before, "nothing goes on without a decision"
    crl(tmp_path, "approve", run.name)
    crl(tmp_path, "resume", run.name, code=6)
    # What the model learned in round 1 lets some of its second attempts succeed.
    first, *others = asked(run).choices
    assert others, "there is something to refuse, and something to approve"
    crl(tmp_path, "approve", run.name, "--reject", first, "--person", "Ada")
    crl(tmp_path, "resume", run.name)
    wanted = {row.operation_id: row.text for row in rows(run, Operation, "distill", 2)}
    kept = [wanted[name] for name in others if wanted[name] != wanted[first]]
    assert texts(run, 2) == list(dict.fromkeys([*texts(run, 1), *kept])) and wanted[first] not in texts(run, 2)
    assert "intact" in crl(tmp_path, "verify", run.name).stdout
