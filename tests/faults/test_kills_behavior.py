"""kill -9 where behavior log-probabilities are computed: resumed, the run is the one that nobody disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.records import SERVER, BehaviorLogprobs, Generation
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, train

ROUNDS = 2
ACTOR, EXTRACTOR = "behavior_logprobs_actor", "behavior_logprobs_extractor"
CUT: Mapping[str, Any] = {
    "method__roles__actor__engine": "tests.cutting:CutEngine",
    "method__roles__actor__sampling": "{max_new_tokens: 4, top_p: 0.9, top_k: 20}",
    "method__roles__extractor__engine": "tests.cutting:CutEngine",
    "method__roles__extractor__sampling": "{max_new_tokens: 24, top_p: 0.9, top_k: 20}",
}

pytestmark = pytest.mark.slow


def test_killed_before_in_and_after_these_stages(tmp_path: Path) -> None:
    crl_here(tmp_path / "reference", *train(ROUNDS, **CUT))
    reference = tmp_path / "reference" / NAME
    run = RunDirectory.open(reference)
    for stage, sampled in ((ACTOR, "collect"), (EXTRACTOR, "distill")):
        assert set(run.read(1, sampled, Generation)["logprobs_by"].to_pylist()) == {SERVER}
        assert run.read(1, stage, BehaviorLogprobs).num_rows == run.read(1, sampled, Generation).num_rows
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 13, **CUT) as killed:
        keys = ("0001/distill", f"0001/{ACTOR}", f"0001/{EXTRACTOR}", f"0002/{ACTOR}", "0002/credit")
        killed.kill_in_each(*keys, least=2)
        killed.check_journal()
