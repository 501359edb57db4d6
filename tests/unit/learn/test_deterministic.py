"""Determinism of gradients, on a machine that passes for one with a GPU."""

from __future__ import annotations

import pytest
import torch

from crl.errors import StageFailed
from crl.learn.scoring import deterministic


@pytest.fixture(autouse=True)
def as_with_a_gpu(monkeypatch):
    """Torch sees a GPU, and its settings are as they were afterward."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def test_it_is_strict_inside_and_as_before_outside():
    @deterministic()
    def inside() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    filled = torch.utils.deterministic.fill_uninitialized_memory
    assert inside() == (True, False) == inside()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filled
    with deterministic():
        assert not torch.utils.deterministic.fill_uninitialized_memory


def test_what_has_no_deterministic_algorithm_stops_the_stage():
    with pytest.raises(StageFailed, match="put_ does not have") as raised, deterministic():
        raise RuntimeError("put_ does not have a deterministic implementation, but you set ...")
    assert "CUDA_VISIBLE_DEVICES" in str(raised.value)
    with pytest.raises(StageFailed, match="before the process starts"), deterministic():
        raise RuntimeError("this operation is not deterministic because it uses CuBLAS: set CUBLAS_WORKSPACE_CONFIG")
    with pytest.raises(RuntimeError, match="out of memory"), deterministic():
        raise RuntimeError("out of memory")
    assert not torch.are_deterministic_algorithms_enabled()
