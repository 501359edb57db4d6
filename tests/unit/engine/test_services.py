"""The engine's services on the tiny model: what is kept, what is replaced, what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys

import pytest

from crl.config import LoraConfig
from crl.config.engines import ServerConfig, VllmEngine
from crl.config.environments import FamilyConfig
from crl.errors import BadInput, RecordDamaged
from crl.learn.terms import objectives
from crl.policies.endpoint import EndpointChat
from crl.recipes.complementary.config import BaselineConfig
from crl.records import Sample, Weights, table_of
from crl.run.directory import RunDirectory
from tests.unit.engine.harness import make_experiment

torch = pytest.importorskip("torch")

from crl.engine.services import EngineServices  # noqa: E402


@pytest.fixture
def services(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    recipe = {"kind": "complementary", "retrieval": {"embedder": "lexical"}}
    run = RunDirectory.create_or_open(make_experiment(recipe=recipe), tmp_path)
    services = EngineServices(run)
    services.begin(1, "stage", None)
    yield services
    services.close()
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def base(services):
    digest = services.model_digest("actor")
    return Weights(
        role="actor",
        round=0,
        updates=0,
        source="tiny",
        base_digest=digest,
        checkpoint=None,
        weights_digest=hashlib.sha256(digest.encode()).hexdigest(),
    )


def sample(services) -> Sample:
    ids = [5, 6, 7, 8]
    return Sample(
        sample_id="s",
        round=1,
        role="actor",
        objective="grpo",
        source="0001/collect",
        generation_id="g",
        reward=1.0,
        advantage=1.0,
        weight=1.0,
        temperature=1.0,
        token_ids=ids,
        loss_mask=[0, 0, 1, 1],
        logprobs=[0.0, 0.0, -3.0, -3.0],
    )


def test_a_policy_is_kept_while_its_weights_are_the_same(services, base):
    policy = services.policy("actor", base)
    assert services.policy("actor", dataclasses.replace(base, round=3)) is policy
    assert services.policy("extractor", dataclasses.replace(base, role="extractor")) is not policy
    services.release()
    assert services.policy("actor", base) is not policy


def test_another_base_model_than_the_run_was_begun_with_is_refused(services, base):
    with pytest.raises(RecordDamaged, match="base model"):
        services.policy("actor", dataclasses.replace(base, base_digest="0" * 64))


def test_a_missing_checkpoint_is_named(services, base):
    lost = dataclasses.replace(base, checkpoint="rounds/0001/update_actor/checkpoint", weights_digest="1" * 64)
    with pytest.raises(RecordDamaged, match="checkpoint of the actor") as raised:
        services.policy("actor", lost)
    assert raised.value.where.endswith("rounds/0001/update_actor/checkpoint")


def test_a_trainer_goes_on_from_where_the_stage_left_it_and_only_then(services, base, tmp_path):
    trainer = services.trainer("actor", base)
    trainer.update([sample(services)], objectives(services._method.recipe.actor_objective))
    after = dataclasses.replace(base, round=1, updates=1, weights_digest="2" * 64)
    services.trained("actor", after)
    services.begin(2, "stage", None)
    assert services.trainer("actor", after) is trainer
    # This stage failed: it never said `trained`. The next one must not get its half-made update.
    services.begin(2, "stage", None)
    assert services.trainer("actor", base) is not trainer


def test_a_kept_trainer_and_one_built_from_its_checkpoint_continue_bit_by_bit(services, base, tmp_path):
    objective = services._method.recipe.actor_objective
    trainer = services.trainer("actor", base)
    trainer.update([sample(services)], objectives(objective))
    directory = tmp_path / "fake" / "rounds" / "checkpoint"
    trainer.save(directory)
    after = dataclasses.replace(base, checkpoint="rounds/checkpoint", weights_digest="2" * 64)
    services.trained("actor", after)
    services.begin(2, "stage", None)
    results = []
    for _ in range(2):
        again = services.trainer("actor", after)
        again.update([sample(services)], objectives(objective))
        results.append(again.weights())
        services.release()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_trainers_of_small_models_live_side_by_side(services, base):
    extractor = dataclasses.replace(base, role="extractor")
    actor = services.trainer("actor", base)
    services.trained("actor", base)
    other = services.trainer("extractor", extractor)
    services.begin(2, "stage", None)  # the extractor's stage failed: only its trainer goes
    assert services.trainer("actor", base) is actor
    assert services.trainer("extractor", extractor) is not other


def test_a_large_model_makes_room_for_the_next(services, base, monkeypatch):
    monkeypatch.setattr("crl.policies.machine.all_stay", lambda method, size, on_gpu: False)
    policy, actor = services.policy("actor", base), services.trainer("actor", base)
    services.trained("actor", base)
    services.trainer("extractor", dataclasses.replace(base, role="extractor"))
    assert services.trainer("actor", base) is not actor
    assert services.policy("actor", base) is not policy


@pytest.mark.parametrize(("stage", "stays"), [(0, False), (1, True)])
def test_a_trainer_that_can_rests_where_it_has_to_leave_the_gpu(services, base, monkeypatch, stage, stays):
    method = services._method
    settings = method.role("actor").deepspeed.model_copy(update={"zero_stage": stage})
    roles = {name: method.role(name).model_copy(update={"deepspeed": settings}) for name in ("actor", "extractor")}
    services._method = method.model_copy(update={"roles": {**method.roles, **roles}})
    monkeypatch.setattr("crl.policies.machine._SMALL", 0)
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: 1)
    actor = services.trainer("actor", base)
    services.trained("actor", base)
    extractor = services.trainer("extractor", dataclasses.replace(base, role="extractor"))
    services.trained("extractor", base)
    services.release()
    again = services.trainer("actor", base)
    assert (again is actor) is stays
    metrics = again.update([sample(services)], objectives(method.recipe.actor_objective))
    assert metrics["stepped"] == 1 and metrics["update_norm"] > 0
    services.begin(2, "stage", None)  # it failed
    assert services.trainer("actor", base) is not again
    services.trained("actor", base)
    assert (services.trainer("extractor", base) is extractor) is stays


def test_a_baseline_never_asks_for_the_extractor_that_its_config_names(services, base):
    method = services._method
    extractor = method.role("extractor").model_copy(update={"model": "nobody/nothing"})
    roles = {**method.roles, "extractor": extractor}
    services._method = method.model_copy(update={"recipe": BaselineConfig(), "roles": roles})
    services.trainer("actor", base)
    services.trained("actor", base)
    policy = services.policy("actor", base)
    assert services.policy("actor", dataclasses.replace(base, round=1, weights_digest="2" * 64)) is policy


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4, lora_alpha=12.0)], ids=["full", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_weights_in_a_living_policy_are_those_of_a_fresh_one(services, base, monkeypatch, dtype, lora):
    monkeypatch.setattr("crl.policies.machine.computes_bfloat16", lambda: True)
    method = services._method
    role = method.role("actor").model_copy(update={"dtype": dtype, "lora": lora})
    services._method = method.model_copy(update={"roles": {**method.roles, "actor": role}})
    before = services.policy("actor", base)
    old = {name: value.clone() for name, value in before.model.named_parameters()}
    after = base
    for number in ("1", "2"):
        trainer = services.trainer("actor", after)
        trainer.update([sample(services)], objectives(method.recipe.actor_objective))
        trainer.save(services._run.path / "rounds" / number)
        after = dataclasses.replace(base, checkpoint=f"rounds/{number}", weights_digest=number * 64)
        services.trained("actor", after)
        living = services.policy("actor", after)
        assert living is before
    services.release()
    fresh = services.policy("actor", after)
    assert fresh is not living
    new = dict(living.model.named_parameters())
    assert any(not torch.equal(new[name], old[name]) for name in old)
    assert all(torch.equal(new[name], value) for name, value in fresh.model.named_parameters())
    assert {value.dtype for value in new.values()} == {getattr(torch, dtype)}
    buffers = dict(living.model.named_buffers())
    assert buffers and all(torch.equal(buffers[name], value) for name, value in fresh.model.named_buffers())
    assert {value.dtype for value in buffers.values()} == {torch.float32}, "positions are exact"


def test_weights_that_do_not_fit_are_not_taken(services, base, tmp_path):
    from safetensors.torch import save_file

    policy = services.policy("actor", base)
    old = {name: value.clone() for name, value in policy.model.named_parameters()}
    assert not policy.take_weights(tmp_path), "no file"
    save_file({name: value + 1 for name, value in list(old.items())[1:]}, tmp_path / "model.safetensors")
    assert not policy.take_weights(tmp_path), "a tensor is missing"
    save_file({name: (value + 1).flatten() for name, value in old.items()}, tmp_path / "model.safetensors")
    assert not policy.take_weights(tmp_path), "another shape"
    save_file({name: value + 1 for name, value in old.items()}, tmp_path / "model.safetensors")
    assert policy.take_weights(tmp_path)
    assert all(torch.equal(value, old[name] + 1) for name, value in policy.model.named_parameters())


def test_adapters_of_other_kinds_are_not_taken(services, base, tmp_path):
    from safetensors.torch import save_file

    policy = services.policy("actor", base)
    old = {name: value.clone() for name, value in policy.model.named_parameters()}
    adapted = next(name for name in old if name.endswith("q_proj.weight"))

    def take(module: str = adapted.removesuffix(".weight"), **settings) -> bool:
        told = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "bias": "none", **settings}
        (tmp_path / "adapter_config.json").write_text(json.dumps(told))
        out_rows, in_rows = old[adapted].shape
        halves = {"A": torch.ones(2, in_rows), "B": torch.ones(out_rows, 2)}
        tensors = {f"base_model.model.{module}.lora_{half}.weight": value for half, value in halves.items()}
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        return policy.take_weights(tmp_path)

    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4.0}))
    assert not policy.take_weights(tmp_path), "without its weights"
    for settings in ({"peft_type": "IA3"}, {"use_dora": True}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 4}},
                     {"bias": "all"}, {"something_new": [1]}):  # fmt: skip
        assert not take(**settings), settings
    assert not take("lm_head"), "a head that is tied"
    assert all(torch.equal(value, old[name]) for name, value in policy.model.named_parameters())
    assert take()
    for name, value in policy.model.named_parameters():
        assert torch.equal(value, old[name] + 2 * 2.0 if name == adapted else old[name])


def test_trainers_and_policies_do_not_depend_on_what_was_loaded_before(services, base):
    services.begin(1, "stage", None)
    services.policy("actor", base)
    first = torch.rand(3)
    services.begin(1, "stage", None)
    services.policy("actor", base)
    assert torch.equal(first, torch.rand(3))


def test_an_environment_is_made_once_and_an_unknown_family_is_named(services):
    assert services.environment("lake", 1) is services.environment("lake", 2)
    with pytest.raises(BadInput, match="no task family 'sea'"):
        services.environment("sea", 1)


def test_a_stage_that_is_tried_again_has_new_environments_also_where_an_old_one_cannot_be_closed(services, capfd):
    services.begin(1, "collect", 0)
    broken = services.environment("lake", 1)
    broken.close = lambda: sys.exit(3)
    services.begin(1, "collect", 1)
    assert services.environment("lake", 1) is broken
    services.begin(1, "collect", None, attempt=2)
    anew = services.environment("lake", 1)
    assert anew is not broken and "family lake could not be closed" in capfd.readouterr().err
    services.begin(1, "collect", 0, attempt=2)
    assert services.environment("lake", 1) is anew, "once for each attempt"


def test_a_family_that_changes_has_an_environment_before_and_one_after(tmp_path):
    change = {"round": 3, "environment": {"max_turns": 7}}
    made = make_experiment(recipe={"kind": "baseline"})
    family = made.method.families[0]
    family = FamilyConfig.model_validate(family.model_dump() | {"changes": [change]})
    changed = made.model_copy(update={"method": made.method.model_copy(update={"families": [family]})})
    services = EngineServices(RunDirectory.create_or_open(changed, tmp_path))
    before, after = services.environment("lake", 2), services.environment("lake", 3)
    assert services.environment("lake", 0) is before
    assert services.environment("lake", 9) is after
    assert [each.config.max_turns for each in (before, after)] == [family.environment.max_turns, 7]
    services.close()


def test_another_embedder_under_the_same_name_is_refused(services, base, monkeypatch):
    lexical = services.model_digest("embedder")
    row = dataclasses.replace(base, role="embedder", source="lexical", base_digest=lexical)
    monkeypatch.setattr(services._run, "is_complete", lambda number, stage: (number, stage) == (0, "initialize"))
    monkeypatch.setattr(services._run, "read", lambda number, stage, kind: table_of(Weights, [base, row]))
    assert services.embedder().dimension > 0
    services.release()
    monkeypatch.setattr(services, "model_digest", lambda role: "0" * 64)
    with pytest.raises(RecordDamaged, match="the embedder lexical has digest 000"):
        services.embedder()


class ServedPolicy:
    """A policy that holds a server."""

    chat = EndpointChat()

    def __init__(self) -> None:
        self.handed, self.closed = [], 0

    def hand_over(self, checkpoint, weights) -> None:
        self.handed.append(weights)

    def close(self) -> None:
        self.closed += 1


def test_a_served_policy_is_closed_where_the_files_of_its_next_weights_are_missing(services, base):
    served = ServedPolicy()
    services._policies["actor"] = (base.weights_digest, served)
    after = dataclasses.replace(base, weights_digest="1" * 64)
    for missing in ({"checkpoint": "rounds/0001/lost"}, {"base_digest": "0" * 64}):
        with pytest.raises(RecordDamaged):
            services.policy("actor", dataclasses.replace(after, **missing))
    assert services.policy("actor", after) is served, "what did not come about left it as it was"
    assert served.handed == ["1" * 64]
    with pytest.raises(RecordDamaged):
        services.policy("actor", dataclasses.replace(base, checkpoint="rounds/0001/lost", weights_digest="2" * 64))
    services.release()
    assert served.closed == 1


@pytest.mark.parametrize(
    ("gpus", "server", "goes"),
    [(1, ServerConfig(), True), (0, ServerConfig(), False), (1, ServerConfig(address="http://gpu:8000"), False)],
)
def test_a_trainer_that_is_kept_goes_before_a_server_starts_on_a_gpu(services, base, monkeypatch, gpus, server, goes):
    """A server takes its share of the GPU's memory when it starts, or does not start."""
    method, served = services._method, ServedPolicy()
    extractor = method.role("extractor").model_copy(update={"engine": VllmEngine()})
    services._method = method.model_copy(update={"roles": {**method.roles, "extractor": extractor}})
    monkeypatch.setattr("crl.policies.machine.all_stay", lambda method, size, on_gpu: False)
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: gpus)
    monkeypatch.setattr("crl.policies.load_policy", lambda *role, **settings: served)
    monkeypatch.setattr(services, "_server", lambda role: server)
    trainer = services.trainer("actor", base)
    services.policy("extractor", dataclasses.replace(base, role="extractor"))
    services.trained("actor", base)
    assert services.trainer("actor", base) is trainer, "a stage trained it"
    services.trained("actor", base)
    with monkeypatch.context() as awake:
        awake.setattr("crl.engine.vllm_weights.VllmServers.rests", False)
        services.policy("extractor", dataclasses.replace(base, role="extractor"))
        assert services.trainer("actor", base) is trainer, "the server runs, and is awake"
    services.trained("actor", base)
    services.policy("extractor", dataclasses.replace(base, role="extractor"))
    assert (services.trainer("actor", base) is not trainer) == goes
