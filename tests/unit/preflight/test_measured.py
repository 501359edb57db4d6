"""The model of memory against what processes held at most: sampling and updates with 32 million random parameters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crl.config import RoleConfig
from crl.preflight.memory import sampling_memory, update_memory
from crl.preflight.shapes import shape_of
from tests.tiny_run import ROOT
from tests.unit.preflight.measured import READ_TOKENS, ROWS

pytestmark = pytest.mark.slow

UPDATE = {"context": 512, "deepspeed": {"micro_batch": 2}}
LORA = {"lora": {"r": 16}}
KEPT = {"deepspeed": {"micro_batch": 2, "gradient_checkpointing": True}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sampling": ("sample", {"context": 512}),
    "all weights": ("update", UPDATE),
    "an adapter": ("update", {**UPDATE, **LORA}),
    "an adapter, checkpointing": ("update", {**UPDATE, **LORA, **KEPT}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, `small` and `large`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from crl.policies import resolve_model

    made = tmp_path_factory.mktemp("models")
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8192}
    for name, wide, layers in (("small", 96, 2), ("large", 512, 10)):
        config = LlamaConfig(
            **heads, hidden_size=wide, intermediate_size=8 * wide // 3, num_hidden_layers=layers,
            tie_word_embeddings=True, max_position_embeddings=1024,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = LlamaForCausalLM(config)
        model.save_pretrained(made / name)
    for path in resolve_model("tiny").path.glob("*"):
        for name in ("small", "large") if "token" in path.name or "template" in path.name else ():
            (made / name / path.name).write_bytes(path.read_bytes())
    return made


def role_of(case: str, models: Path) -> RoleConfig:
    """The settings of a case, and its model."""
    _, settings = CASES[case]
    return RoleConfig.model_validate({"model": str(models / "large"), **settings})


@pytest.fixture(scope="module")
def measured(models: Path) -> dict[str, int]:
    """Peaks by case, of one process: it takes a while to import what an engine does."""
    cases = [(kind, role_of(case, models).model_dump_json()) for case, (kind, _) in CASES.items()]
    run = [sys.executable, "-m", "tests.unit.preflight.measured", str(models / "small"), json.dumps(cases)]
    # Else the C library keeps what was freed, in blocks of any size: as much again where tensors are this small.
    exact = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")
    done = subprocess.run(run, cwd=ROOT, env={**os.environ, **exact}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_within_fifteen_percent_of_the_estimate(case: str, models: Path, measured: dict[str, int]) -> None:
    role = role_of(case, models)
    shape = shape_of(role.model)
    assert shape is not None and 3e7 < shape.parameters < 3.5e7
    if CASES[case][0] == "sample":
        parts = sampling_memory(shape, role, ROWS, nucleus=False)
        estimated = parts.weights + parts.cache + parts.working
    else:
        estimated = update_memory(shape, role, role.context - READ_TOKENS).peak
    told = f"{measured[case] / 1e6:.0f} MB, {measured[case] / estimated:.2f} of {estimated / 1e6:.0f}"
    assert measured[case] == pytest.approx(estimated, rel=0.15), told
