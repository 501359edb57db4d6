"""Which models stay in memory: by their size, what they learn and the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crl.config import Method
from crl.config.load import load_experiment
from crl.policies import machine
from tests.tiny_run import ROOT

GB = 10**9


def quickstart(**settings: Any) -> Method:
    """Both roles learn adapters."""
    return load_experiment(ROOT / "conf/quickstart.yaml", settings).method


def test_a_container_has_the_memory_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=64 * GB))
    monkeypatch.setattr(machine, "_CONTAINER", tmp_path / "memory.max")
    for said, stays in (("max\n", True), (f"{8 * GB}\n", False), (f"{16 * GB}\n", True)):
        (tmp_path / "memory.max").write_text(said)
        assert machine.all_stay(quickstart(), 538 * 10**6, on_gpu=False) is stays, said


@pytest.mark.parametrize(
    ("size", "adapted", "memory", "stays"),
    [
        (60 * 10**6, False, 8 * GB, True),
        (60 * 10**6, True, GB // 2, True),
        (538 * 10**6, False, 16 * GB, False),
        (538 * 10**6, False, 24 * GB, True),
        (538 * 10**6, True, 8 * GB, False),
        (538 * 10**6, True, 16 * GB, True),
        (4 * GB, True, 48 * GB, False),
        (4 * GB, True, 96 * GB, True),
        (4 * GB, False, 96 * GB, False),
    ],
)
def test_models_stay_where_there_is_room(
    size: int, adapted: bool, memory: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory))
    monkeypatch.setattr(machine, "_CONTAINER", Path("/nowhere"))
    whole = {"method.roles.extractor.lora": None, "method.recipe.warm_start.adapters": None}
    settings = {} if adapted else whole
    assert machine.all_stay(quickstart(**settings), size, on_gpu=False) is stays
    small = size <= 64 * 2**20
    assert machine.all_stay(quickstart(**settings), size, on_gpu=True) is small, "with room for a miniature only"
    if adapted:  # two tracks hold twice as much
        with_both = machine.all_stay(quickstart(**{"method.overlap": True}), size, on_gpu=False)
        assert with_both is (small or machine.all_stay(quickstart(), 2 * size, on_gpu=False))
