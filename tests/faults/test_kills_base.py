"""Two roles with an adapter each on one frozen base: killed, forked, opened by others."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from crl.policies import resolve_model
from crl.policies.language_model import load_model
from crl.records import Weights, rows_of
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, digests, train

ROUNDS = 2
ROLES = ("actor", "extractor")
LORA = "lora: {r: 16, lora_alpha: 32}, optimizer: {learning_rate: 1.0e-3}"

pytestmark = pytest.mark.slow


def based_on(model: Path) -> Mapping[str, Any]:
    """Changes of the tiny run: both roles learn adapters on a model that writes notes already."""
    return {
        "method__roles__actor": f"{{model: {model}, sampling: {{max_new_tokens: 4}}, {LORA}}}",
        "method__roles__extractor": f"{{base: actor, sampling: {{max_new_tokens: 48}}, {LORA}}}",
        "method__recipe__warm_start__extractor_episodes": 0,
        "method__recipe__warm_start__learning_rate": 3.0e-3,
        "method__recipe__warm_start__num_train_epochs": 12,
        "runtime__save_total_limit": 9,
    }


@pytest.fixture(scope="module")
def base(finished: Path) -> Path:
    """A model with trained weights."""
    [row] = rows_of(Weights, RunDirectory.open(finished).read(2, "update_extractor", Weights))
    assert row.checkpoint is not None
    return finished / row.checkpoint


@pytest.fixture(scope="module")
def reference(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run."""
    runs = tmp_path_factory.mktemp("based")
    crl_here(runs, *train(ROUNDS, **based_on(base)))
    return runs / NAME


def last(reference: Path, role: str) -> Weights:
    """The weights of a role at the end."""
    [row] = rows_of(Weights, RunDirectory.open(reference).read(ROUNDS, f"update_{role}", Weights))
    return row


def test_both_learn_and_say_which_base_they_have(reference: Path, base: Path) -> None:
    rows = [last(reference, role) for role in ROLES]
    assert all(row.updates > 0 and row.checkpoint is not None for row in rows)
    assert rows[0].base_digest == rows[1].base_digest == resolve_model(str(base)).digest
    assert rows[0].weights_digest != rows[1].weights_digest
    for row in rows:
        names = {path.name for path in (reference / str(row.checkpoint)).iterdir()}
        assert "adapter_model.safetensors" in names and "model.safetensors" not in names
    assert "intact" in crl_here(reference.parent, "verify", NAME).stdout


def test_peft_opens_the_checkpoints_and_they_are_models_of_other_runs(
    reference: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(reference.parent))
    for role in ROLES:
        folder = reference / str(last(reference, role).checkpoint)
        ids = AutoTokenizer.from_pretrained(folder)("go up, then left", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            opened = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()(ids).logits
            plain = load_model(base, None, dtype=torch.float32).eval()(ids).logits
            named = resolve_model(f"run:{NAME}@{ROUNDS}/{role}").path
            merged = load_model(named, None, dtype=torch.float32).eval()(ids).logits
        torch.testing.assert_close(opened, merged, rtol=0, atol=1e-4)
        assert (opened - plain).abs().max() > 1e-3


def test_killed_around_both_updates(reference: Path, base: Path, tmp_path: Path) -> None:
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 7, **based_on(base)) as killed:
        killed.kill_in_each(
            "0000/warm_start_actor",
            "0001/update_actor",
            "0002/collect",
            "0002/update_extractor",
            "0002/evaluate",
            least=3,
        )


def test_a_fork_goes_on_with_both_adapters(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / NAME)
    crl_here(tmp_path, "fork", NAME, "--round", "1", "--name", "forked")
    crl_here(tmp_path, "resume", "forked", "--rounds", "1")
    assert digests(tmp_path / "forked") == digests(reference)
