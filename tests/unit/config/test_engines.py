"""Engines that sample by a server: what of an experiment they refuse, at its place, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Experiment
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.preflight import checks

TINY = Path(__file__).parents[3] / "conf" / "tiny.yaml"
FROZEN = {
    "method.recipe.kind": "static_online",
    "method.recipe.warm_start.extractor_episodes": 0,
    "method.roles.extractor.engine": "openai",
    "method.roles.extractor.model": "endpoint:some/model",
    "method.roles.extractor.optimizer": {},
    "runtime.servers": {"extractor": {"address": "https://host/v1", "key_variable": "A_KEY"}},
}
VLLM = {"method.roles.actor.engine": "vllm"}


def experiment(**changes: Any) -> Experiment:
    return load_experiment(TINY, changes)


def test_what_samples_is_a_matter_of_the_method_and_where_it_is_not() -> None:
    served = experiment(**VLLM)
    elsewhere = experiment(**VLLM, **{"runtime.servers": {"actor": {"address": "http://gpu:8000"}}})
    assert served.method.digest() == elsewhere.method.digest() != experiment().method.digest()
    assert served.method.role("actor").engine.model_dump() == {"kind": "vllm"}


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"method.roles.actor.sampling.temperature": 0.005}, "method.roles.actor.sampling.temperature", "0.01"),
        ({"method.evaluation.temperature": 0.001}, "method.evaluation.temperature", "0.01"),
        ({"method.roles.actor.model": "endpoint:x"}, "method.roles.actor.model", "with the engine openai"),
    ],
)
def test_vllm_refuses_what_it_cannot_do_exactly(changes: dict[str, Any], where: str, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        experiment(**VLLM, **changes)
    assert raised.value.where == where and said in str(raised.value)


@pytest.mark.parametrize("cut", [{"top_p": 0.99}, {"top_k": 100}, {"min_p": 0.05}], ids=str)
def test_where_vllm_cuts_in_training_its_log_probabilities_are_not_those_of_the_whole(cut: dict[str, Any]) -> None:
    both = {"method.roles.actor.engine": "vllm", "method.roles.extractor.engine": "vllm"}
    made = experiment(**both, **{"method.roles.actor.sampling": {"max_new_tokens": 4, **cut}}).method
    assert made.renormalized() == ("actor",)
    assert experiment(**{"method.roles.actor.sampling": cut}).method.renormalized() == ()
    assert experiment(**both, **{"method.evaluation.sampling": cut}).method.renormalized() == ()
    assert experiment(**both, **{"method.families.0.sampling": cut}).method.renormalized() == ("actor",)
    frozen = {**both, **FROZEN, "method.roles.extractor.engine": "vllm", "method.roles.extractor.model": "tiny"}
    assert experiment(**frozen, **{"method.roles.extractor.sampling": cut}).method.renormalized() == ()


def test_settings_without_a_cut_are_those_of_before() -> None:
    sampling = experiment().method.role("actor").sampling
    assert not sampling.cuts and "min_p" not in sampling.model_dump()
    assert (
        "min_p" in experiment(**{"method.roles.actor.sampling.min_p": 0.1}).method.role("actor").sampling.model_dump()
    )


def test_an_evaluation_may_cut() -> None:
    cut = {"method.evaluation.sampling": {"top_p": 0.8, "top_k": 20}}
    found = experiment(**VLLM, **cut).method.evaluation_sampling("actor", "lake")
    assert (found.top_p, found.top_k) == (0.8, 20)
    endpoint = {
        "method.recipe.kind": "experience_only", "method.recipe.warm_start": None,
        "method.recipe.self_distillation": None, "method.roles.actor.engine": "openai",
        "method.roles.actor.model": "endpoint:some/model", "method.roles.actor.optimizer": {},
        "runtime.servers": {"actor": {"address": "https://host/v1", "key_variable": "A_KEY"}},
    }  # fmt: skip
    assert experiment(**endpoint, **{"method.evaluation.sampling": {"top_p": 0.8}}).method.evaluation.sampling
    with pytest.raises(BadInput) as raised:
        experiment(**endpoint, **cut)
    assert raised.value.where == "method.evaluation.sampling.top_k" and "evaluation: " in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"method.recipe.kind": "complementary"}, "method.roles.extractor.engine", "the weights are not here"),
        ({"method.roles.extractor.model": "tiny"}, "method.roles.extractor.model", "endpoint:<name>"),
        ({"method.roles.extractor.sampling.top_k": 9}, "method.roles.extractor.sampling.top_k", "top_k 0"),
        ({"method.roles.extractor.sampling.min_p": 0.1}, "method.roles.extractor.sampling.min_p", "min_p 0"),
        (
            {"method.roles.extractor.sampling.stop_strings": ["."]},
            "method.roles.extractor.sampling.stop_strings",
            "is openai",
        ),
        (
            {"method.recipe.warm_start.extractor_episodes": 24},
            "method.recipe.warm_start.extractor_episodes",
            "behind an endpoint",
        ),
    ],
)
def test_a_role_behind_an_endpoint_cannot_be_trained(changes: dict[str, Any], where: str, said: str) -> None:
    assert experiment(**FROZEN).method.role("extractor").model == "endpoint:some/model"
    with pytest.raises(BadInput) as raised:
        experiment(**{**FROZEN, **changes})
    assert raised.value.where == where and said in str(raised.value)


def test_top_p_is_left_out_only_where_it_is_1_and_the_digest_of_older_methods_stays() -> None:
    engine = {"kind": "openai", "leave_out": ["seed", "top_p"]}
    found = experiment(**{**FROZEN, "method.roles.extractor.engine": engine}).method.role("extractor").engine
    assert found.model_dump(mode="json")["leave_out"] == ["seed", "top_p"]
    assert "leave_out" not in experiment(**FROZEN).method.role("extractor").engine.model_dump(mode="json")
    with pytest.raises(BadInput, match=r"top_p is 0.9, and the engine leaves top_p out") as raised:
        experiment(**{**FROZEN, "method.roles.extractor.engine": engine, "method.roles.extractor.sampling.top_p": 0.9})
    assert raised.value.where == "method.roles.extractor.engine.leave_out"


def test_an_actor_behind_an_endpoint_is_not_restricted_to_actions() -> None:
    changes = {
        "method.recipe.kind": "experience_only",
        "method.recipe.warm_start.actor_episodes": 0,
        "method.roles.actor": {"model": "endpoint:m", "engine": "openai", "sampling": {"constrain": "none"}},
    }
    assert experiment(**changes).method.trained() == ("extractor",)
    with pytest.raises(BadInput, match="constrain is actions, and the engine is openai"):
        experiment(**changes, **{"method.roles.actor.sampling.constrain": "actions"})


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({"actor": {}}, "runtime.servers.actor serves no role; expected one of extractor"),
        ({"extractor": {"address": "https://me:secret@host/v1"}}, "address"),
        ({"extractor": {"address": "host:8000"}}, "address"),
        ({"extractor": {"key": "sk-1"}}, "unknown key"),
    ],
)
def test_a_server_is_of_a_role_and_its_key_is_not_in_the_config(servers: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        experiment(**{**FROZEN, "runtime.servers": servers})


@pytest.mark.parametrize("where", ["runtime.servers.actor.tensor_parallel_size", "method.roles.actor.deepspeed.ranks"])
def test_no_more_gpus_are_asked_for_than_the_machine_of_the_run_has(where: str) -> None:
    gpus = {"runtime.gpus": {"count": 2, "gigabytes": 80}}
    experiment(**VLLM, **gpus, **{where: 2})
    with pytest.raises(BadInput, match=f"{where} is 4, and runtime.gpus has 2"):
        experiment(**VLLM, **gpus, **{where: 4})


def test_what_is_missing_on_this_machine_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("httpx.get", lambda url, **more: None)  # somebody answers
    monkeypatch.delenv("A_KEY", raising=False)
    found = dict(checks(experiment(**FROZEN)))
    with pytest.raises(BadInput, match="the variable A_KEY is not set"):
        found["runtime.servers.extractor"]()
    monkeypatch.setenv("A_KEY", "sk-1")
    found["runtime.servers.extractor"]()
    found["method.roles.extractor.model"]()
    monkeypatch.setenv("CRL_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(BadInput, match="make vllm"):
        dict(checks(experiment(**VLLM)))["runtime.servers.actor"]()
    assert not any(name.startswith("runtime.servers") for name, _ in checks(experiment()))
