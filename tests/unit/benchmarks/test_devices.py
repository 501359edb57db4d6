"""What the pieces of `make gpu` do where torch sees a GPU, as far as can be shown without one; and their clocks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import estimate, rollout
from crl.config import SamplingConfig
from crl.preflight.estimate import Estimate

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def module(monkeypatch: pytest.MonkeyPatch, folder: str, name: str) -> Any:
    """A module as its script finds it, beside itself."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    return importlib.import_module(name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch says that there is one; the waits for it."""
    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("waited"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10, 80))
    return waits


def test_reread_histories_are_on_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def generate(**named: Any) -> torch.Tensor:
        given.update(named)
        return torch.tensor([[0, 0, 7, 9], [0, 0, 8, 8]])

    model = SimpleNamespace(device=torch.device("meta"), generate=generate)
    session = module(monkeypatch, "rollout_systems", "reread").Reread(
        SimpleNamespace(model=model, end_ids=frozenset({9})), [[5], [5, 6]]
    )
    found = session.sample([0, 1], SamplingConfig(max_new_tokens=2), None)
    assert given["input_ids"].device.type == given["attention_mask"].device.type == "meta"
    assert [found[row].token_ids for row in (0, 1)] == [[7, 9], [8, 8]]


def test_an_update_is_clocked_and_weighed_on_the_gpu(monkeypatch: pytest.MonkeyPatch, gpu: list[str]) -> None:
    worker = module(monkeypatch, ".", "update_systems.worker")
    assert worker.peak_gigabytes() == 3.0
    worker.clock()
    assert gpu == ["waited"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert 0 < worker.peak_gigabytes() < 3e3 and len(worker.clock()) == 2 and gpu == ["waited"]


def test_the_memory_of_a_gpu_is_compared_with_what_is_estimated_for_it(
    monkeypatch: pytest.MonkeyPatch, gpu: list[str]
) -> None:
    needed = Estimate(1000, 10, 1, device_bytes=100, written_bytes=10)
    assert estimate.gpu_bytes() == 70
    on_gpu = estimate.compare(needed, (70, 10, 1))[0]
    assert (on_gpu.name, on_gpu.estimated, on_gpu.ratio) == ("memory of the GPU", 100, 0.7)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert estimate.gpu_bytes() is None
    assert estimate.compare(needed, (70, 10, 1))[0] == estimate.Compared("memory", 1000, 70)


def test_turns_that_end_together_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    games = module(monkeypatch, "rollout_systems", "games")
    ticks = iter([0.0, 1.0, 5.0, 6.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    made = games.Clocked(SimpleNamespace(reset_many=list, step_many=lambda actions: dict.fromkeys(actions, "step")))
    made.told({})  # before the first turn: what was opened is none's
    made.step_many({0: "a"}), made.step_many({1: "a"}), made.told({})
    assert made.step_many({0: "b"}) == {0: "step"}
    made.told({})
    made.step_many({0: "c", 2: "a"}), made.told({})  # row 2 comes later than the others
    assert made.clock.metrics() == {"turns_of": [3, 1, 1], "seconds_of": [2.0, 1.0, 2.0]}
    assert "ms per turn, from the first: 2000.0 1000.0 2000.0; turns: 3 1 1" in rollout.by_turn(made.clock.metrics())


def test_all_ways_compute_in_one_precision(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def measured(way: str, size: list[str], root: Path) -> dict[str, Any]:
        asked.append(size[3])
        if way == "trl":
            raise rollout.WayFailed("trl failed (exit code 1):\nTraceback\n  File\nValueError: no such model\nmore")
        return {"turns": 2, "seconds": 1.0, "turns_of": [2], "seconds_of": [0.5]}

    monkeypatch.setattr(rollout, "measured", measured)
    monkeypatch.setattr(rollout, "computes_bfloat16", lambda: False)
    monkeypatch.setattr(sys, "argv", ["rollout.py", "--pairs", "1", "--ways", "trl", "reread", "--metrics"])
    assert rollout.main() == 1, "one failed, and the other was measured all the same"
    assert asked == ["float32"] * 3
    said = capsys.readouterr().out
    assert "1.0 times as fast as reread" in said and '{"trl": {"failed": "ValueError: no such model"}}' in said
    monkeypatch.setattr(sys, "argv", ["rollout.py", "--dtype", "bfloat16"])
    with pytest.raises(SystemExit):
        rollout.main()
    assert "would compute in float32" in capsys.readouterr().err


def test_a_worker_over_an_older_tree_needs_nothing_of_this_one_to_begin(tmp_path: Path) -> None:
    (tmp_path / "crl").mkdir()
    (tmp_path / "crl/__init__.py").touch()
    command = [sys.executable, str(BENCHMARKS / "update.py")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run([*command, "--against", "108de1b"], env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "108de1b is no worktree" in refused.stderr
