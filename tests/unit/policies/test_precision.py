"""bfloat16 is computed where the machine can; elsewhere in float32, everywhere alike, and people are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crl.config import Experiment, RoleConfig
from crl.config.engines import VllmEngine
from crl.config.load import load_experiment
from crl.config.roles import DeepSpeedConfig
from crl.policies import machine
from crl.policies.language_model import load_policy
from crl.policies.sources import resolve_model
from crl.preflight.estimate import estimate

HALF = RoleConfig(model="tiny", dtype="bfloat16", deepspeed=DeepSpeedConfig(autocast="bfloat16", micro_batch=3))
CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture(params=[False, True], ids=["without", "with"])
def able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(machine, "computes_bfloat16", lambda: request.param)
    return bool(request.param)


def test_a_role_is_computed_as_the_machine_can(able: bool) -> None:
    made = machine.computed(HALF)
    if able:
        assert made is HALF
    else:
        assert (made.dtype, made.deepspeed.autocast, made.deepspeed.micro_batch) == ("float32", "none", 3)
        assert HALF.dtype == "bfloat16", "what the role asks for is kept"
    plain = RoleConfig(model="tiny")
    assert machine.computed(plain) is plain


def test_a_policy_samples_in_it(able: bool) -> None:
    policy = load_policy(HALF, resolve_model("tiny").path, None, threads=1)
    assert policy.model.dtype == (torch.bfloat16 if able else torch.float32)


def test_what_a_server_samples_is_its_own(able: bool) -> None:
    served = HALF.model_copy(update={"engine": VllmEngine()})
    made = machine.computed(served)
    assert (made.dtype, made.deepspeed.autocast) == ("bfloat16", "bfloat16" if able else "none")


def quickstart(dtype: str) -> Experiment:
    roles = ("actor", "extractor")
    overrides: dict[str, object] = {f"method.roles.{role}.dtype": dtype for role in roles}
    autocast = "none" if dtype == "float32" else dtype
    overrides |= {f"method.roles.{role}.deepspeed.autocast": autocast for role in roles}
    return load_experiment(CONF / "quickstart.yaml", overrides)


def test_estimates_and_words_follow(able: bool) -> None:
    half, plain = quickstart("bfloat16"), quickstart("float32")
    assert machine.replaced(plain.method) is None
    said = machine.replaced(half.method)
    if able:
        assert said is None and estimate(half) != estimate(plain)
    else:
        assert said is not None and said.startswith("actor, extractor: computed in float32")
        assert estimate(half) == estimate(plain)


def test_this_machine_says_what_it_can() -> None:
    assert machine.computes_bfloat16() in (True, False)


def test_a_torch_without_onednn_does_not_compute_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert machine.computes_bfloat16() is False


@pytest.mark.parametrize(
    ("kernels", "wide", "multiplies", "tiles", "able"),
    [
        (False, False, False, False, False),  # AVX2
        (True, True, False, False, False),  # AVX-512: converts to float32 and back
        (True, True, True, False, True),
        (True, True, False, True, True),  # AMX
        (True, False, False, False, True),  # ARM with bfloat16
    ],
)
def test_a_cpu_that_only_converts_computes_in_float32(
    monkeypatch: pytest.MonkeyPatch, kernels: bool, wide: bool, multiplies: bool, tiles: bool, able: bool
) -> None:
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: kernels)
    for name, value in (("avx512", wide), ("avx512_bf16", multiplies), ("amx_tile", tiles)):
        monkeypatch.setattr(f"torch.cpu._is_{name}_supported", lambda value=value: value)
    assert machine.cpu_computes_bfloat16() is able


def test_a_gpu_says_nothing_of_the_cpu_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert machine.computes_bfloat16() is True
    assert machine.cpu_computes_bfloat16() is False
