"""What a run was asked to reach, as its journal has it; `test_driver.py` has what drivers do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config import Runtime
from crl.config.base import MOST_ROUNDS
from crl.engine.targets import last_runtime
from crl.run.journal import Journal


@pytest.mark.parametrize(("unknown", "keeps"), [("shard_count", 5), ("keep_newest", MOST_ROUNDS)])
def test_settings_of_another_version_lose_only_what_this_one_does_not_know(
    tmp_path: Path, unknown: str, keeps: int
) -> None:
    before = Runtime(keep_checkpoints=5, keep_every=2).model_dump(mode="json")
    Journal(tmp_path).record("target", token=1, first=0, last=1, runtime={**before, unknown: 1, "retries": -1})
    with pytest.warns(UserWarning, match="runtime.retries"):
        found = last_runtime(tmp_path)
    assert found == Runtime(keep_checkpoints=keeps, keep_every=2)
