"""Commands in messages are there to be copied: a path with a space in it is one word of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput, CrlError
from crl.lab.study.runs import incomplete
from crl.lab.table.read import _chosen
from crl.paths import quoted
from crl.records import Episode
from crl.report.bank import entries_after
from crl.report.diff import bank_diff, net_diff
from crl.rounds.approvals import PendingApproval
from crl.rounds.fork import check_round
from crl.rounds.recipe import recipe_in, recorded_bank, recorded_rows
from crl.run.decisions import Decision, write_decision
from crl.run.directory import RunDirectory
from crl.run.evaluations import _check_current
from crl.trackers.base import record_of
from crl.transfer.take import _allowed

TINY = Path(__file__).parents[2] / "conf" / "tiny.yaml"


def fail(error: CrlError) -> None:
    raise error


@pytest.mark.parametrize("folder", ["my runs", "$(touch ran)", "it's; touch ran", "-x\ny"])
def test_a_path_is_one_word(tmp_path: Path, folder: str) -> None:
    run: Any = RunDirectory.create_or_open(load_experiment(TINY), tmp_path / folder)
    recipe = recipe_in(run)
    stage = next(each for each in recipe.stages if each.name == "distill")
    kept = SimpleNamespace(path=run.path / "x", round=1, inputs={"0001/plan": "a digest"})
    bank = run.path / "imports" / "bank" / f"{'0' * 64}.parquet"
    bank.parent.mkdir(parents=True)
    bank.touch()

    def decide() -> None:
        for approve in (True, False):
            at = datetime(2026, 5, 1, tzinfo=UTC)
            decision = Decision(round=1, stage="approve", shown="x", approve=approve, person="Ada", decided_at=at)
            write_decision(run.path, decision)

    commands: list[Callable[[], Any]] = [
        partial(bank_diff, run.path, 1),
        partial(net_diff, run.path, 2, 1),
        partial(net_diff, run.path, 1, 1),
        partial(entries_after, run.path),
        partial(recorded_bank, run, recipe, 1),
        partial(recorded_rows(run, recipe, 1, stage), Episode, "collect"),
        partial(check_round, run, recipe, 0),
        partial(_check_current, run, kept),
        partial(_allowed, run, SimpleNamespace(relative="imports/bank/another.parquet")),
        partial(_chosen, run, SimpleNamespace(), [], "newest"),
        decide,
        partial(fail, PendingApproval(run.path, 1, "approve", "x", ()).error()),
        partial(fail, incomplete({run.path.name: BadInput("no")}, run.path.parent)),
    ]
    said = [record_of(run.path).partition("verified by")[2]]
    for command in commands:
        with pytest.raises(CrlError) as raised:
            command()
        said.append(str(raised.value.next_step))
    for text in said:
        found = [quoted(path) for path in (run.path, run.path / "one", bank) if quoted(path) in text]
        assert found, text
        for path in found:
            text = text.replace(path, "")
        assert folder not in text
