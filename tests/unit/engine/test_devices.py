"""Engines that run side by side use devices of their own; a server that spreads over several gets as many."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config import Runtime
from crl.engine.pool import EnginePool, device_environment


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"),
    [
        ("0,1,2,3", 1, [None, "1", "2", "3", "0"]),
        ("0,1,2,3", 2, [None, "2,3", "0,1", "2,3", "0,1"]),
        ("4, 5 ,6", 2, [None, "4,5", "4,5", "4,5", "4,5"]),
        ("0,1", 2, [None] * 5),
        ("7", 1, [None] * 5),
        ("", 1, [None] * 5),
    ],
)
def test_shards_take_the_visible_devices_in_turn(
    visible: str, gpus: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [device_environment(shard, gpus).get("CUDA_VISIBLE_DEVICES") for shard in range(5)]
    assert found == expected


def test_without_the_variable_the_devices_of_the_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvidia2", "nvidia5", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    found = [device_environment(shard, 1, tmp_path).get("CUDA_VISIBLE_DEVICES") for shard in range(4)]
    assert found == [None, "1", "2", "0"], "as CUDA counts them, not by the machine's numbers"
    assert device_environment(1, 1, tmp_path / "none") == {}


def test_engines_get_as_many_as_the_widest_server_that_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    servers = {
        "actor": {"tensor_parallel_size": 2},
        "extractor": {},
        "judge": {"tensor_parallel_size": 8, "address": "http://gpu:8000"},
    }
    runtime = Runtime.model_validate({"servers": servers, "shards": 2})
    assert (runtime.engine_gpus, Runtime().engine_gpus) == (2, 1)
    devices = []
    for track in range(2):
        pool = EnginePool({}, print, first_shard=track * runtime.shards, gpus=runtime.engine_gpus)
        devices += [engine._environment.get("CUDA_VISIBLE_DEVICES") for engine in pool.shards(2)]
    assert devices == [None, "2,3", "4,5", "6,7"], "the first keeps all in sight, and its server takes 0 and 1"


@pytest.mark.parametrize(
    ("visible", "shards", "ranks", "expected"),
    [
        ("0,1,2,3", 2, 2, "2,3"),
        ("4,5,6,7", 1, 2, "5,6"),
        ("0,1,2,3", 3, 2, "3,0"),  # as shards do where there are too few
        ("0,1,2,3", 2, 4, "2,3,0,1"),
        ("0,1,2,3", 2, 8, None),
        ("0", 1, 2, None),
        ("", 1, 2, None),
    ],
)
def test_the_ranks_of_a_second_track_come_behind_the_devices_of_the_first(
    visible: str, shards: int, ranks: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    first, second = (EnginePool({}, print, first_shard=track * shards).ranks(ranks) for track in range(2))
    assert "CUDA_VISIBLE_DEVICES" not in first._environment, "all in sight, and rank 0 on the first"
    assert second._environment.get("CUDA_VISIBLE_DEVICES") == expected
