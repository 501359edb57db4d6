"""Numbers that this machine or a model cannot take are refused before work starts, at their key."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from crl.cli.doctor import experiment_findings
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.lab.warm.make import make
from crl.preflight import check_ready
from crl.preflight.numbers import check_threads, machine_checks, model_checks

CONF = Path(__file__).parents[3] / "conf"
RANKS = "method.roles.actor.deepspeed.ranks"
MODULES = "method.roles.actor.lora.target_modules"
ALLOWED = {"runtime.oversubscribe": True}


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint whose header alone says what it has."""
    import numpy as np
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 10, "tie_word_embeddings": False}))
    names = {"h.0.q_proj.weight": (2, 2), "h.0.norm.weight": (2,), "h.0.up.weight": (2, 2)}
    save_file({name: np.zeros(shape, np.float32) for name, shape in names.items()}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{}")
    return str(tmp_path)


def checked(changes, found):
    made = load_experiment(CONF / "tiny.yaml", changes)
    for _, check in found(made):
        check()


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("method.threads", 1024, "method.threads is 1024, and this machine has 2 cores"),
        ("method.threads", 9, "at most 8"),
        (RANKS, 3, "ranks is 3, and this machine has 2 cores"),
        ("method.roles.actor.sampling.top_k", 513, "the model tiny has 512 tokens"),
        ("method.roles.extractor.sampling.top_k", 100_000, "at most 512"),
        (MODULES, ["q_proj", "qq_proj"], "the model tiny has no module 'qq_proj'"),
        (MODULES, ["proj"], "some of down_proj"),
        (MODULES, [], "is empty"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(where, value, said, monkeypatch, tmp_path):
    from crl.policies.sources import resolve_model

    resolve_model("tiny")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BadInput, match=said) as caught:
        check_ready(load_experiment(CONF / "tiny.yaml", {where: value}), tmp_path / "run", 1)
    assert caught.value.where == where and caught.value.exit_code == 2 and caught.value.next_step
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"method.threads": 8, RANKS: 2, "method.roles.actor.sampling.top_k": 512},
        {"method.threads": 1024, **ALLOWED},
        {RANKS: 1024, **ALLOWED},
        {MODULES: ["q_proj", "layers.0.self_attn.v_proj", "lm_head"]},
        {"method.roles.actor.lora": {}},
        # Of a model that is not here nothing is known yet; weights that are not trained are not cut in ranks.
        {"method.roles.actor.model": "nobody/never-downloaded", MODULES: ["some"]},
        {"method.recipe.kind": "experience_only", RANKS: 3},
    ],
)
def test_what_can_work_is_not_refused(changes, monkeypatch):
    from crl.policies.sources import resolve_model

    resolve_model("tiny")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    checked(changes, machine_checks)
    checked(changes, model_checks)


@pytest.mark.slow
def test_doctor_names_them_as_well(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    made = load_experiment(CONF / "tiny.yaml", {"method.threads": 9, "method.roles.actor.sampling.top_k": 513})
    failed = [each.name for each in experiment_findings(made, 1) if not each.ok]
    assert {"method.threads", "method.roles.actor.sampling.top_k"} <= set(failed)


def test_ranks_are_held_against_the_gpus_where_there_are_some(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    checked({RANKS: 1}, machine_checks)
    with pytest.raises(BadInput, match="this machine has 1 GPU"):
        checked({RANKS: 2}, machine_checks)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, True),
        ({"runtime.overlap_engines": 1}, False),
        ({"method.overlap": False}, False),
        ({"method.roles.extractor.deepspeed.ranks": 1}, False),
        ({"runtime.nodes": None}, False),
    ],
)
def test_two_tracks_do_not_meet_at_one_port(changes, refused, tmp_path):
    """All ranks of an update over several machines meet at the endpoint, and torch's launcher keeps its port."""
    (tmp_path / "hosts").write_text("one slots=4\n")
    wide = {RANKS: 2, "method.roles.extractor.deepspeed.ranks": 4, "method.overlap": True, **ALLOWED}
    wide["runtime.nodes"] = {"hostfile": str(tmp_path / "hosts"), "endpoint": "127.0.0.1:29500"}
    made = load_experiment(CONF / "tiny.yaml", {**wide, **changes})
    found = dict(machine_checks(made))
    if not refused:
        for check in found.values():
            check()
        return
    with pytest.raises(BadInput, match="`update_actor` of a round and `update_extractor` of the one before") as caught:
        found["runtime.overlap_engines"]()
    assert caught.value.where == "runtime.overlap_engines" and "overlap_engines: 1" in caught.value.next_step


def test_modules_are_those_of_the_checkpoint_with_a_matrix(checkpoint):
    checked({"method.roles.actor.model": checkpoint, MODULES: ["q_proj", "h.0.up"]}, model_checks)
    for name in ("norm", "lm_head", "roj"):
        with pytest.raises(BadInput, match=f"has no module '{name}'"):
            checked({"method.roles.actor.model": checkpoint, MODULES: [name]}, model_checks)


def test_a_warm_start_with_too_many_threads_is_refused_before_anything_is_written(monkeypatch, tmp_path):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    path = tmp_path / "many.yaml"
    path.write_text((CONF / "warm/realms.yaml").read_text().replace("threads: 2", "threads: 1024"))
    (tmp_path / "prompts").symlink_to(CONF / "prompts")
    with pytest.raises(BadInput, match="threads is 1024") as caught:
        make(path)
    assert caught.value.where == "threads" and not (tmp_path / "models").exists()
    check_threads(1)


@pytest.mark.parametrize(("kind", "said"), [("prompts", "needs a prompt 'distill'"), ("model", "no such directory")])
def test_a_warm_start_that_cannot_practice_is_refused_before_anything_is_written(kind, said, monkeypatch, tmp_path):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    made = yaml.safe_load((CONF / "warm/realms.yaml").read_text()) | {"threads": 1}
    prompts = yaml.safe_load((CONF / f"prompts/{made['prompts']}.yaml").read_text())
    made["prompts"] = {"actor": prompts["actor"]} if kind == "prompts" else prompts
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(made | ({"model": "./nowhere"} if kind == "model" else {})))
    with pytest.raises(BadInput, match=said):
        make(tmp_path / "odd.yaml")
    assert not (tmp_path / "models").exists()
