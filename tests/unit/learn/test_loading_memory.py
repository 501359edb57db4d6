"""How much memory loading takes, in a process of its own: the most that it held, in files of the base."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LOADING = """
import sys, torch, peft, deepspeed
from pathlib import Path
from transformers import AutoModelForCausalLM
from crl.config import LoraConfig
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import load_trainable
from crl.policies.language_model import load_model

def held(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024

base, what, adapter = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
size = sum(file.stat().st_size for file in base.glob("*.safetensors"))
lora = LoraConfig(r=8, lora_alpha=16)
before = held("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
if what == "sampled":
    model = load_model(base, adapter, dtype=torch.bfloat16)
else:
    model = load_trainable(base, None, lora=lora, source="base", seed=0, narrow=what == "trained")
peak = held("VmHWM")
if not adapter.exists():
    state = {name: each for name, each in model.named_parameters() if each.requires_grad}
    save_weights(model, state, adapter)
print((peak - before) / size)
"""


def peak(base: Path, what: str, adapter: Path) -> float:
    run = [sys.executable, "-c", LOADING, str(base), what, str(adapter)]
    return float(subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()[-1])


def test_a_bfloat16_base_with_an_adapter_takes_little_more_than_its_file(tmp_path):
    """The proportions of Qwen2.5-1.5B, a fifth as wide and a quarter as deep, in two files."""
    config = LlamaConfig(
        vocab_size=60_000, hidden_size=768, intermediate_size=4480, num_hidden_layers=14, num_attention_heads=12,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "base", max_shard_size="250MB")
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    assert peak(tmp_path / "base", "trained", tmp_path / "adapter") <= 1.3
    assert peak(tmp_path / "base", "sampled", tmp_path / "adapter") <= 1.3
    assert peak(tmp_path / "base", "trained wide", tmp_path / "adapter") > 1.8, "else nothing was measured"
