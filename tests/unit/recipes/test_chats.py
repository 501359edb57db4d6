"""A role whose model cannot do what its settings ask is refused before anything is computed, not hours later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.preflight import check_ready
from tests.recipe_runs import requires

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    ("experiment", "role"),
    [
        ("tiny", "actor"),
        ("tiny", "extractor"),
        pytest.param("erl_tiny", "actor", marks=requires("erl")),
        pytest.param("dreamgym_tiny", "experience", marks=requires("dreamgym")),
    ],
)
def test_a_model_of_too_few_positions_is_refused_at_once(experiment: str, role: str, tmp_path: Path) -> None:
    path = shutil.copytree(resolve_model("tiny").path, tmp_path / "model")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}), encoding="utf-8")
    changes = {f"method.roles.{role}.model": str(path)}
    with pytest.raises(BadInput, match="longer than the model") as caught:
        check_ready(load_experiment(CONF / f"{experiment}.yaml", changes), tmp_path / "run", 1)
    assert caught.value.where == f"method.roles.{role}.context"
