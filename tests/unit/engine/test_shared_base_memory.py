"""How much memory two roles on one base take, in processes of their own: the most that each held, in files of the base.

A round is played, both roles are updated, and the next round is played, one trainer at a time as with large models.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from crl.policies import resolve_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ROUND = """
import dataclasses, sys, torch, peft, deepspeed
from pathlib import Path
from crl.config import ActorObjective, Method
from crl.engine.services import EngineServices
from crl.learn.terms import objectives
from crl.policies import machine
from crl.run.directory import RunDirectory
from tests.unit.engine.harness import make_experiment
from tests.unit.engine.test_shared_base import base, sample

def held(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024

machine._SMALL, machine._memory = 0, lambda: 0
folder, what, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
lora = {"lora": {"r": 8, "lora_alpha": 16}}
actor = {"model": folder, **lora}
roles = {"actor": actor, "extractor": {"base": "actor", **lora} if what == "shared" else actor}
recipe = {"kind": "baseline"} if what == "one" else {"kind": "complementary", "retrieval": {"embedder": "lexical"}}
experiment = make_experiment(recipe=recipe)
method = Method.model_validate(experiment.method.model_dump() | {"roles": roles})
run = RunDirectory.create_or_open(experiment.model_copy(update={"method": method}), root / what)
services = EngineServices(run)
rows = {role: dataclasses.replace(base(services, role), source=folder) for role in method.owners()}
size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
before = held("VmRSS")
open("/proc/self/clear_refs", "w").write("5")

def play(number):
    services.begin(number, "collect", None)
    for role, row in rows.items():
        with torch.no_grad():
            services.policy(role, row).model(torch.arange(1, 9)[None])

play(1)
for role, row in rows.items():
    trainer = services.trainer(role, row)
    trainer.update([sample(role, 5, 6, 7, 8)], objectives(ActorObjective()))
    trainer.save(run.path / "rounds" / role)
    rows[role] = dataclasses.replace(row, checkpoint=f"rounds/{role}", weights_digest=role)
    services.trained(role, rows[role])
play(2)
print((held("VmHWM") - before) / size)
"""


def peak(base: Path, what: str, root: Path) -> float:
    run = [sys.executable, "-c", ROUND, str(base), what, str(root)]
    return float(subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()[-1])


def test_two_roles_on_one_base_take_hardly_more_than_one(tmp_path: Path) -> None:
    """Of the proportions of Qwen2.5-1.5B, a third as wide and as deep, in bfloat16."""
    config = LlamaConfig(
        vocab_size=40_000, hidden_size=512, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(resolve_model("tiny").path / name, tmp_path / "base")
    one, shared, apart = (peak(tmp_path / "base", what, tmp_path) for what in ("one", "shared", "apart"))
    assert shared <= 1.15 * one, f"{shared:.2f} against {one:.2f} files of the base"
    assert apart > 1.3 * one, "else nothing was measured"
