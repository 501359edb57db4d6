"""A model of a billion parameters, random, plays and trains one round on this machine within its estimate."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks.estimate import experiment_on, measure
from benchmarks.made_model import Shape, write_model
from crl.policies.machine import computes_bfloat16
from crl.preflight.shapes import shape_of

pytestmark = pytest.mark.slow

_NEEDED = 14e9 if computes_bfloat16() else 20e9


def test_a_round_of_a_billion_parameters_needs_what_was_estimated(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < _NEEDED:
        pytest.skip(f"needs {_NEEDED / 1e9:.0f} GB of free memory")
    write_model(tmp_path / "model", Shape(2048, 5632, 20, heads=32, key_value_heads=8, vocabulary=49_152))
    shape = shape_of(str(tmp_path / "model"))
    assert shape is not None and 1.0e9 < shape.parameters < 1.1e9
    experiment = experiment_on(tmp_path / "model", tmp_path / "runs", threads=2)
    found = {each.name: each for each in measure(experiment, tmp_path / "runs")}
    assert 0.75 < found["memory"].ratio < 1.25, found
    assert 0.98 < found["checkpoints of the round"].ratio < 1.02, found
