"""The checkpoints of a run: opened by transformers, and named as the model of another run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from crl.config import Method
from crl.errors import BadInput
from crl.policies import check_model, resolve_model
from crl.policies.language_model import load_model
from crl.policies.sources import directory_digest
from crl.records import Weights, rows_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.retention import prune
from tests.tiny_run import NAME, ROUNDS, experiment


def weights_of(finished: Path, role: str, number: int = ROUNDS) -> Weights:
    run = RunDirectory.open(finished)
    return rows_of(Weights, run.read(number, f"update_{role}", Weights))[0]


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished run, where names of runs are looked for."""
    shutil.copytree(finished, tmp_path / "runs" / NAME)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.mark.parametrize("role", ["actor", "extractor"])
def test_transformers_opens_the_checkpoint_of_a_round_with_equal_logits(finished: Path, role: str) -> None:
    row = weights_of(finished, role)
    assert row.checkpoint is not None
    folder, base = finished / row.checkpoint, resolve_model("tiny").path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "go up"}]
    ids = torch.tensor([tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]])
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
        expected = load_model(base, folder, dtype=torch.float32).eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    written = AutoModelForCausalLM.from_pretrained(folder).generate(ids)
    assert written.shape[1] <= ids.shape[1] + experiment().method.role(role).sampling.max_new_tokens


def test_a_model_may_be_the_weights_of_a_round(runs: Path, finished: Path) -> None:
    row = weights_of(finished, "extractor")
    assert row.checkpoint is not None
    name = f"run:{NAME}@{ROUNDS}/extractor"
    check_model(name)
    source = resolve_model(name)
    assert source.digest == directory_digest(finished / row.checkpoint) and source.name == name
    assert source.digest != resolve_model(f"run:{NAME}@{ROUNDS}/actor").digest
    assert source.digest != resolve_model(f"run:{NAME}@0/extractor").digest
    shutil.rmtree(runs)
    assert directory_digest(source.path) == source.digest, "they are a copy: runs delete theirs"


def test_a_role_is_the_one_of_the_same_name_unless_it_is_named() -> None:
    roles = experiment().method.model_dump()
    roles["roles"]["actor"]["model"] = "run:quickstart@3"
    roles["roles"]["extractor"]["model"] = "run:quickstart@3/actor"
    method = Method.model_validate(roles)
    assert method.role("actor").model == method.role("extractor").model == "run:quickstart@3/actor"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"run:{NAME}@7/actor", "no weights of 'actor' in round 7"),
        (f"run:{NAME}@1/nobody", "no weights of 'nobody'"),
        ("run:other@1/actor", "there is no run 'other'"),
        (f"run:{NAME}/actor", "does not say which weights"),
    ],
)
def test_weights_that_are_not_there_are_refused(runs: Path, name: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        check_model(name)


def test_weights_that_retention_deleted_are_told(runs: Path) -> None:
    with Lease.acquire(runs / NAME, seconds=600) as lease:
        prune(runs / NAME, {"actor": "update_actor"}, 1, 0, token=lease.token)
    with pytest.raises(BadInput, match=r"not there any more(?s:.*)keep_every"):
        check_model(f"run:{NAME}@1/actor")
    check_model(f"run:{NAME}@2/actor")
