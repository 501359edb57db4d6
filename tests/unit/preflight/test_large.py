"""A model of a billion parameters, random, plays and trains one round on this machine within its estimate."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks.estimate import make_model, measure
from crl.policies.precision import computes_bfloat16
from crl.preflight.shapes import shape_of

_NEEDED = 14e9 if computes_bfloat16() else 20e9


@pytest.mark.slow
def test_a_round_of_a_billion_parameters_needs_what_was_estimated(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < _NEEDED:
        pytest.skip(f"needs {_NEEDED / 1e9:.0f} GB of free memory")
    make_model(tmp_path / "model", hidden=2048, layers=20, intermediate=5632)
    shape = shape_of(str(tmp_path / "model"))
    assert shape is not None and 1.0e9 < shape.parameters < 1.1e9
    found = {each.name: each for each in measure(tmp_path, tmp_path / "model", threads=2)}
    assert 0.75 < found["memory"].ratio < 1.25, found
    assert 0.98 < found["checkpoints of the round"].ratio < 1.02, found
