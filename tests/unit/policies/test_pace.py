"""The pace of a model: FLOPs against those that torch counts, for every way to learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    forget()
    made = pace_of(role, widths, layers=3, rows=5, threads=1)
    assert pace_of(role, widths, layers=3, rows=5, threads=1) == made and len(flops) == 5, "it is measured once"
    forget()
    assert torch.get_num_threads() == threads
    return made, flops


def forget() -> None:
    pace._inference.cache_clear()
    pace._learning.cache_clear()


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


@pytest.mark.parametrize(
    ("modules", "adapted"),
    [
        ("all-linear", 7),
        (["q_proj", "v_proj"], 2),
        (["model.layers.0.self_attn.q_proj"], 1),
        (["layers.3.mlp.up_proj", "lm_head"], 1),
        (["qkv_proj"], 7),
    ],
)
def test_adapters_of_other_layers_and_names_are_measured_too(
    modules: Any, adapted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, flops = counted(monkeypatch, RoleConfig(lora=LoraConfig(target_modules=modules)))
    assert len(pace._modules(LoraConfig(target_modules=modules))) == adapted
    assert made.learning > 0 and flops


def test_a_width_that_is_no_multiple_of_the_heads_is_rounded() -> None:
    widths = Widths(hidden=1000, attention=768, key_value=256, intermediate=640)
    assert widths.head == 128 and widths.possible() == replace(widths, hidden=1002)
    assert Widths(960, 960, 320, 2560).possible().hidden == 960


def test_nothing_is_learned_by_a_role_that_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_learning", None)
    assert pace_of(RoleConfig(), WIDTHS, layers=1, rows=1, threads=1, learns=False).learning == math.inf


def test_a_pace_is_measured_on_this_machine() -> None:
    made = pace_of(RoleConfig(), WIDTHS, layers=2, rows=4, threads=1)
    assert min(made.reading, made.sampling, made.learning) > 1e6
    assert made.device.startswith("CPU, 1 thread") or torch.cuda.is_available()
