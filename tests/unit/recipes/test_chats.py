"""A role whose model cannot do what its settings ask is refused before anything is computed, not hours later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.preflight import check_ready
from tests.recipe_runs import requires
from tests.windowed import write_windowed

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
def test_a_model_with_a_window_is_refused_at_once(experiment: str, role: str, tmp_path: Path) -> None:
    path = shutil.copytree(resolve_model("tiny").path, tmp_path / "model")
    write_windowed(path, 64)
    changes = {f"method.roles.{role}.model": str(path)}
    with pytest.raises(BadInput, match="do not see the whole context") as caught:
        check_ready(load_experiment(CONF / f"{experiment}.yaml", changes), tmp_path / "run", 1)
    assert caught.value.where == f"method.roles.{role}.model"
