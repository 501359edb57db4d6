"""Servers over several rounds: started once, whatever is trained in between, and shared where weights or bases are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.served_rounds import play_rounds
from tests.unit.engine.test_vllm_policy import Process, process  # noqa: F401

FULL = {"model": "tiny", "engine": "vllm", "optimizer": {"learning_rate": 0.01}}
ADAPTED = {**FULL, "lora": {"r": 4, "lora_alpha": 8.0}}
ON_ANOTHER = {key: value for key, value in ADAPTED.items() if key not in ("model", "engine")} | {"base": "actor"}


@pytest.mark.parametrize(
    ("roles", "servers"),
    [
        pytest.param({"actor": FULL, "extractor": FULL}, 2, marks=pytest.mark.slow),
        ({"actor": FULL, "extractor": {"weights": "actor"}}, 1),
        pytest.param({"actor": ADAPTED, "extractor": ON_ANOTHER}, 2, marks=pytest.mark.slow),
        ({"actor": ADAPTED, "extractor": ON_ANOTHER}, 1),
    ],
    ids=["own", "weights", "base", "base on a GPU"],
)
def test_a_server_lives_for_all_rounds_however_large_its_model_is(
    process: type[Process],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    roles: dict[str, Any],
    servers: int,
    request: pytest.FixtureRequest,
) -> None:
    """No model stays beside another, and other engines train as well."""
    monkeypatch.setattr("crl.policies.machine.all_stay", lambda method, size, on_gpu: False)
    monkeypatch.setattr("crl.engine.vllm_weights.gpu_count", lambda: int("GPU" in request.node.name))
    given = []

    def remember(services: Any, role: str, number: int) -> None:
        given.extend((str(fake.adapters or fake.weights), len(fake.files)) for fake in process.fakes)

    play_rounds(tmp_path, roles, 3, remember)
    assert [each.starts for each in process.started] == [1] * servers
    assert all(str(tmp_path) in path or files for path, files in given[-servers:]), "they have what was trained"
    assert not any(each.running for each in process.started)
