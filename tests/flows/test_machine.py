"""Threads and ranks that this machine does not have fail a flow run before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crl.errors import BadInput
from crl.run import experiment_file
from flows.compare import compare
from flows.evaluate import evaluate
from flows.train import resume, train
from tests.study.studies import write
from tests.tiny_run import ROOT
from tests.unit.engine.harness import make_experiment
from tests.unit.report.builder import build_run

RANKS = "method.roles.actor.deepspeed.ranks"

pytestmark = pytest.mark.slow


def test_no_flow_starts_more_than_the_machine_has(fake: Callable[..., Path], tmp_path: Path) -> None:
    def refused(begin: Callable[..., Any], *arguments: Any) -> None:
        before = sorted(tmp_path.rglob("*"))
        state = begin(*arguments, return_state=True)
        assert state.is_failed() and "is 1024, and this machine has" in state.message
        with pytest.raises(BadInput):
            state.result()
        assert sorted(tmp_path.rglob("*")) == before

    path = fake({})
    refused(train, make_experiment(ranks=1024))
    # As the form sends it.
    refused(train, str(ROOT / "conf/tiny.yaml"), 1, {"method.threads": 1024})
    refused(train, str(ROOT / "conf/tiny.yaml"), 1, {}, {RANKS: 1024})
    refused(compare, write(tmp_path, arms={"one": {"set": {RANKS: 1024}}}, compare_with=[]))
    made = make_experiment(ranks=1024, recipe={"kind": "complementary"})
    made = made.model_copy(update={"method": made.method.model_copy(update={"threads": 1024})})
    build_run(path)
    experiment_file.create(path, made)
    refused(resume, str(path))
    refused(evaluate, str(path))
