"""Two roles on one frozen base: its numbers are in memory once, and each role computes what it would alone."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crl.config import Method
from crl.config.mechanisms import StreamObjective
from crl.learn.terms import objectives
from crl.records import Sample, Weights
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.unit.engine.harness import make_experiment

torch = pytest.importorskip("torch")

from crl.engine.services import EngineServices  # noqa: E402

ADAPTED = {"model": "tiny", "lora": {"r": 4, "lora_alpha": 8.0}, "optimizer": {"learning_rate": 0.01}}
SHARED = {
    "actor": ADAPTED,
    "extractor": {key: each for key, each in ADAPTED.items() if key != "model"} | {"base": "actor"},
}
ALONE = {"actor": ADAPTED, "extractor": ADAPTED}
RECIPE = {"kind": "complementary", "retrieval": {"embedder": "lexical"}}
# With a penalty for leaving the base model: what it compares with is the base without an adapter.
OBJECTIVES = objectives(StreamObjective(beta=0.3))
Made = Callable[[dict[str, Any]], EngineServices]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    opened: list[EngineServices] = []

    def make(roles: dict[str, Any]) -> EngineServices:
        experiment = make_experiment(recipe=RECIPE)
        method = Method.model_validate(experiment.method.model_dump() | {"roles": roles})
        root = tmp_path / str(len(opened))
        run = RunDirectory.create_or_open(experiment.model_copy(update={"method": method}), root)
        opened.append(EngineServices(run))
        opened[-1].begin(1, "stage", None)
        return opened[-1]

    yield make
    for services in opened:
        services.close()
    torch.use_deterministic_algorithms(False)


def base(services: EngineServices, role: str) -> Weights:
    digest = services.model_digest(role)
    return Weights(
        role=role, round=0, updates=0, source="tiny", base_digest=digest, checkpoint=None,
        weights_digest=hashlib.sha256(digest.encode()).hexdigest(),
    )  # fmt: skip


def sample(role: str, *ids: int, advantage: float = 1.0) -> Sample:
    trained = len(ids) - 2
    return Sample(
        sample_id=str(ids), round=1, role=role, objective="grpo", source="0001/collect", generation_id="g", reward=1.0,
        advantage=advantage, weight=1.0, temperature=1.0, token_ids=list(ids), loss_mask=[0, 0, *[1] * trained],
        logprobs=[0.0, 0.0, *[-3.0] * trained],
    )  # fmt: skip


SAMPLES = {
    "actor": [sample("actor", 5, 6, 7, 8), sample("actor", 5, 6, 9, 11, 12, advantage=-0.5)],
    "extractor": [sample("extractor", 40, 3, 2, 2, 7, 1), sample("extractor", 40, 3, 9, advantage=-2.0)],
}


def trained(services: EngineServices, order: list[str]) -> list[tuple[dict[str, float], dict[str, torch.Tensor]]]:
    """Updates of the roles in this order, each saved and gone on from: metrics and gradients of each."""
    rows, found = {role: base(services, role) for role in set(order)}, []
    for number, role in enumerate(order):
        trainer, seen = services.trainer(role, rows[role]), {}
        metrics = trainer.update(SAMPLES[role], OBJECTIVES, inspect=seen.update)
        found.append((metrics, seen))
        directory = services._run.path / "rounds" / f"{number}"
        trainer.save(directory)
        digest = hashlib.sha256((directory / "adapter_model.safetensors").read_bytes()).hexdigest()
        rows[role] = dataclasses.replace(rows[role], checkpoint=f"rounds/{number}", weights_digest=digest)
        services.trained(role, rows[role])
    return found


@pytest.mark.parametrize("small", sampled([False, True], 2), ids=["one trainer at a time", "all stay"])
def test_gradients_and_the_divergence_from_the_base_are_those_of_a_run_of_its_own(
    made: Made, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if not small:
        monkeypatch.setattr("crl.policies.machine._SMALL", 0)
        monkeypatch.setattr("crl.policies.machine._memory", lambda: 0)
    together = trained(made(SHARED), ["actor", "extractor", "extractor", "actor", "extractor"])
    alone = {role: trained(made(ALONE), [role] * 3) for role in ("actor", "extractor")}
    for (metrics, gradients), role, turn in zip(
        together, ["actor", "extractor", "extractor", "actor", "extractor"], [0, 0, 1, 1, 2], strict=True
    ):
        own_metrics, own = alone[role][turn]
        assert metrics == own_metrics and metrics["stepped"] == 1
        assert (metrics["reference_kl"] > 1e-4) == (turn > 0), "adapters off: the base itself, and no second model"
        assert gradients.keys() == own.keys() and len(own) == 28
        assert all(torch.equal(gradients[name], own[name]) for name in own)


def test_of_a_large_base_that_both_stand_on_both_trainers_stay(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.policies.machine._SMALL", 0)
    monkeypatch.setattr("crl.policies.machine._memory", lambda: 0)
    for roles, left in ((SHARED, {"actor", "extractor"}), (ALONE, {"extractor"})):
        services = made(roles)
        trained(services, ["actor", "extractor"])
        assert services._trainers.keys() == left


def frozen(model: Any) -> set[int]:
    """Where the numbers of a base are."""
    return {each.data_ptr() for name, each in model.named_parameters() if "lora_" not in name}


def test_samplers_and_trainers_of_both_roles_have_the_same_numbers_in_memory(made: Made) -> None:
    services = made(SHARED)
    trained(services, ["actor", "extractor"])
    rows = {role: base(services, role) for role in SHARED}
    policies = [services.policy(role, row).model for role, row in rows.items()]
    trainers = [trainer._engine.module.model for _, trainer in services._trainers.values()]
    places = [frozen(model) for model in (*policies, *trainers)]
    assert len(places) == 4 and len(set(map(frozenset, places))) == 1
    parameters = [dict(model.named_parameters()) for model in trainers]
    assert not {id(each) for each in parameters[0].values()} & {id(each) for each in parameters[1].values()}
    before = {name: each.clone() for name, each in policies[0].named_parameters()}
    services._drop_trainers(["actor", "extractor"])
    assert all(torch.equal(each, before[name]) for name, each in policies[0].named_parameters())
    apart = made(ALONE)
    one, other = (frozen(apart.policy(role, base(apart, role)).model) for role in SHARED)
    assert not one & other


def test_a_sampler_keeps_its_adapter_apart_and_takes_the_next_one(made: Made) -> None:
    services = made(SHARED)
    trained(services, ["actor", "extractor", "actor", "extractor"])
    ids = torch.tensor([[5, 9, 2, 40, 7, 7, 1]])

    def row(role: str, number: int) -> Weights:
        return dataclasses.replace(base(services, role), checkpoint=f"rounds/{number}", weights_digest=f"{number}" * 64)

    def logits(role: str, number: int) -> torch.Tensor:
        with torch.no_grad():
            return services.policy(role, row(role, number)).model(ids).logits

    first = logits("actor", 0)
    policy = services._policies["actor"][1]
    found = {("actor", 2): logits("actor", 2), ("extractor", 3): logits("extractor", 3)}
    assert services._policies["actor"][1] is policy, "it takes what was learned while it lives"
    assert torch.equal(logits("actor", 0), first), "and nothing is left of the one before"
    assert not torch.equal(found["actor", 2], first)
    services.release()
    assert all(torch.equal(logits(*which), seen) for which, seen in found.items())
    merged = made(ALONE)
    for (role, number), seen in found.items():
        weights = dataclasses.replace(row(role, number), checkpoint=str(services._run.path / f"rounds/{number}"))
        with torch.no_grad():
            expected = merged.policy(role, weights).model(ids).logits
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)


def test_an_adapter_of_another_shape_is_not_taken(made: Made, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    services = made(SHARED)
    trained(services, ["actor"])
    weights = dataclasses.replace(base(services, "actor"), checkpoint="rounds/0", weights_digest="1" * 64)
    policy = services.policy("actor", weights)
    before = {name: each.clone() for name, each in policy.model.named_parameters()}
    tensors = load_file(services._run.path / "rounds" / "0" / "adapter_model.safetensors")
    assert not policy.take_weights(tmp_path), "no adapter is there"
    save_file({name: each[:2] for name, each in tensors.items()}, tmp_path / "adapter_model.safetensors")
    assert not policy.take_weights(tmp_path)
    save_file(dict(list(tensors.items())[1:]), tmp_path / "adapter_model.safetensors")
    assert not policy.take_weights(tmp_path)
    assert all(torch.equal(each, before[name]) for name, each in policy.model.named_parameters())


def test_models_over_a_base_compute_what_one_that_is_loaded_does(tmp_path: Path) -> None:
    """A bfloat16 file with tied weights: sampled from as it is, updated with the float32 norms that it has."""
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    from crl.config import LoraConfig
    from crl.engine.frozen_base import FrozenBase
    from crl.learn.scoring import load_trainable
    from crl.policies.language_model import load_model

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    exact = {name: each.float() + 1e-4 if "norm" in name else each for name, each in tensors.items()}
    save_file(exact, tmp_path / "model.safetensors", {"format": "pt"})
    base, ids = FrozenBase(tmp_path), torch.tensor([[5, 9, 2, 40, 7, 7, 1]])
    options: dict[str, Any] = {"lora": LoraConfig(r=4), "source": "base", "seed": 1}
    one, other = (load_trainable(tmp_path, None, **options, base=each) for each in (base.model, base.model))
    own, sampler = load_trainable(tmp_path, None, **options), base.model(torch.bfloat16)
    found = []
    for model in (own, one):
        model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
        found.append({name: each.grad for name, each in model.named_parameters() if each.requires_grad})
    assert found[0].keys() == found[1].keys() and all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all(each.grad is None for each in other.parameters()), "nothing reaches the adapter of another role"
    loaded = load_model(tmp_path, None, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(sampler(ids).logits, loaded.eval()(ids).logits)
    places = {each.data_ptr() for name, each in sampler.named_parameters() if "norm" not in name}
    assert places <= frozen(one) & frozen(other)
    assert sampler.get_output_embeddings().weight is sampler.get_input_embeddings().weight
