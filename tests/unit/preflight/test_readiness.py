"""Of a model by its name: whether it is here, or is prepared or downloaded when it is first used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from crl.preflight import shapes

HUB = "nobody/such-a-model"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the Hugging Face cache has what was downloaded of `HUB`."""
    monkeypatch.setattr(shapes, "config_file", lambda name: next(tmp_path.glob("config.json"), None))
    return tmp_path


def test_a_hugging_face_id_is_ready_once_its_weights_are_here(cached: Path) -> None:
    assert "will be downloaded" in shapes.readiness(HUB)
    (cached / "config.json").write_text("{}")
    assert "will be downloaded" in shapes.readiness(HUB), "a download that was cut short"
    save_file({"a": np.zeros(1)}, cached / "model-00001-of-00002.safetensors")
    (cached / "tokenizer.json").write_text("{}")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "will be downloaded" in shapes.readiness(HUB), "one of two files"
    save_file({"b": np.zeros(1)}, cached / "model-00002-of-00002.safetensors")
    assert shapes.readiness(HUB) == "ready"


def test_what_is_prepared_here_is_not_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CRL_MODELS", str(tmp_path))
    assert shapes.readiness("smollm2-135m-instruct") == "will be prepared on first use"
    for name in ("tiny", "lexical", "minilm", "warm:realms/actor", "endpoint:teacher", str(tmp_path)):
        assert shapes.readiness(name) == "ready"
