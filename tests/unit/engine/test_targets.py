"""What a run was asked to reach, as its journal has it; `test_driver.py` has what drivers do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config import Runtime
from crl.config.base import MOST_ROUNDS
from crl.engine.targets import fork_run, last_runtime, remember_target, targets
from crl.errors import RecordDamaged
from crl.run.journal import Journal
from tests.unit.engine.harness import make_driver, make_experiment


@pytest.mark.parametrize(("unknown", "keeps"), [("shard_count", 5), ("keep_newest", MOST_ROUNDS)])
def test_settings_of_another_version_lose_only_what_this_one_does_not_know(
    tmp_path: Path, unknown: str, keeps: int
) -> None:
    before = Runtime(save_total_limit=5, keep_every=2).model_dump(mode="json")
    Journal(tmp_path).record("target", token=1, first=0, last=1, runtime={**before, unknown: 1, "retries": -1})
    with pytest.warns(UserWarning, match="runtime.retries"):
        found = last_runtime(tmp_path)
    assert found == Runtime(save_total_limit=keeps, keep_every=2)


def test_a_retried_flow_run_keeps_its_rounds_and_takes_the_settings_of_now(tmp_path: Path) -> None:
    """Its file was corrected in between: engines, and `crl resume` after it, use what the retry checked."""
    journal = Journal(tmp_path)

    def ask(runtime: Runtime, purpose: str | None = "flow") -> tuple[int, int]:
        return remember_target(journal, 4, 9, purpose=purpose, token=1, runtime=runtime)

    old = Runtime.model_validate({"servers": {"actor": {"address": "http://old:8000"}}})
    new = Runtime.model_validate({"servers": {"actor": {"address": "http://new:8000"}}, "save_total_limit": 10})
    remember_target(journal, 1, 3, purpose="flow", token=1, runtime=old)
    for _ in range(2):
        assert ask(new) == (1, 3)
        assert last_runtime(tmp_path) == new
    assert len(targets(journal)) == 2, "what is the same is not written again"
    assert ask(old, purpose=None) == (4, 9)
    assert ask(new) == (1, 3)
    assert last_runtime(tmp_path) == new, "somebody else's settings in between do not stay"


def test_a_fork_keeps_the_runtime_of_its_parent_and_a_damaged_parent_has_none(tmp_path: Path) -> None:
    with make_driver(tmp_path, shards=2) as driver:
        driver.set_target(0)
        driver.run_round(0)
        parent = driver.run
    names = {name: make_experiment().model_copy(update={"name": name}) for name in ("child", "second")}
    child = fork_run(parent, 0, names["child"], tmp_path)
    assert last_runtime(child.path).shards == 2 and child.complete_stages(0) == ["prepare"]
    (parent.path / "rounds" / "0000" / "prepare" / "metrics.parquet").write_bytes(b"")
    with pytest.raises(RecordDamaged):
        fork_run(parent, 0, names["second"], tmp_path)
    assert not (tmp_path / "second").exists()
