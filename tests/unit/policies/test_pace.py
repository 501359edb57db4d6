"""The pace of a model: FLOPs against those that torch counts, for every way to learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crl.config import DeepSpeedConfig, LoraConfig, RoleConfig
from crl.policies import pace
from crl.policies.pace import Pace, Widths, pace_of

WIDTHS = Widths(hidden=256, attention=256, key_value=64, intermediate=640)


def counted(monkeypatch: pytest.MonkeyPatch, role: RoleConfig, widths: Widths = WIDTHS) -> tuple[Pace, list[int]]:
    """The pace where every pass takes one second, and the FLOPs that torch counted in each of them."""
    flops: list[int] = []

    def second(action: Callable[[], object]) -> float:
        with FlopCounterMode(display=False) as counter:
            action()
        flops.append(counter.get_total_flops())
        return 1.0

    monkeypatch.setattr(pace, "best_seconds", second)
    threads = torch.get_num_threads()
    made = pace_of(role, widths, layers=3, rows=5, threads=1)
    assert torch.get_num_threads() == threads
    return made, flops


@pytest.mark.parametrize(
    ("lora", "checkpointing", "passes"),
    [(None, False, 3), (None, True, 4), (LoraConfig(rank=2), False, 2), (LoraConfig(rank=2), True, 3)],
    ids=["full", "full, checkpointed", "adapters", "adapters, checkpointed"],
)
def test_flops_are_those_that_torch_counts(
    lora: LoraConfig | None, checkpointing: bool, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = RoleConfig(lora=lora, deepspeed=DeepSpeedConfig(gradient_checkpointing=checkpointing))
    made, (_, reading, sampling, _, learning) = counted(monkeypatch, role)
    assert pace.learning_passes(role) == passes
    # Attention to sixteen tokens, and the adapters, are the difference.
    assert made.reading == 3 * 2 * WIDTHS.parameters * 16 == pytest.approx(reading, rel=0.05)
    assert made.learning == passes * 2 * WIDTHS.parameters * 16 == pytest.approx(learning, rel=0.1)
    assert made.sampling == 3 * WIDTHS.parameters * 4, "bytes of three layers"
    assert sampling == pytest.approx(3 * 2 * WIDTHS.parameters * 5, rel=0.05), "five rows of one token"


def test_a_layer_that_is_too_wide_is_measured_at_half_its_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_MOST_PARAMETERS", WIDTHS.parameters - 1)
    made, _ = counted(monkeypatch, RoleConfig())
    assert made.reading == pytest.approx(3 * 2 * WIDTHS.parameters / 4 * 16)


def test_a_pace_is_measured_on_this_machine() -> None:
    made = pace_of(RoleConfig(), WIDTHS, layers=2, rows=4, threads=1)
    assert min(made.reading, made.sampling, made.learning) > 1e6
    assert made.device.startswith("CPU, 1 thread") or torch.cuda.is_available()
