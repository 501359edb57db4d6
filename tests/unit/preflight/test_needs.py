"""The metrics of `crl doctor` against arithmetic by hand, against what torch keeps, and against the files of a run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from crl.cli.needs import needs
from crl.config import DeepSpeedConfig, LoraConfig, OptimizerConfig, RoleConfig, SamplingConfig
from crl.config.load import load_experiment
from crl.learn.scoring import ScoredModel, load_trainable
from crl.learn.tree_attention import Paths
from crl.policies.cache import RowCache
from crl.policies.language_model import load_policy
from crl.policies.machine import PASS_TOKENS
from crl.policies.sources import resolve_model
from crl.preflight.estimate import estimate
from crl.preflight.memory import activations, checkpoint_bytes, head_memory, sampling_memory, update_memory
from crl.preflight.placement import machine_of
from crl.preflight.shapes import SHAPES, ModelShape, shape_of
from tests import tiny_run
from tests.marks import sampled
from tests.recipe_runs import requires

H100 = tiny_run.ROOT / "conf/gpu/one_h100.yaml"
ALONE = {
    "method.roles.actor.engine": "transformers",
    "method.roles.extractor": {"weights": "actor", "context": 4096, "sampling": {"max_new_tokens": 256}},
    "method.roles.actor.context": 4096,
    "method.roles.actor.lora": {"r": 16},
    "method.rollout.wave_groups": 4,
    "method.families.0.groups": 8,
    "method.recipe.distill.batch": 32,
    "runtime.servers": {},
}
"""One set of weights, sampled in the run's own process."""
SHAPE = ModelShape(vocabulary=1000, hidden=64, layers=3, key_value=32, intermediate=160, query=128)
# 64 × (2 × 128 + 2 × 32) + 3 × 64 × 160 a layer; 1000 × 64 for the embeddings, which the head shares.
LAYER, TABLE = 51_200, 64_000


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("smollm2-135m-instruct", 134_515_008),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-4B-Thinking-2507", 4_022_468_096),
        ("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096),
        ("Qwen/Qwen3-Embedding-0.6B", 595_776_512),
    ],
)
def test_parameters_are_those_that_transformers_counts_but_for_norms_and_biases(name: str, published: int) -> None:
    assert SHAPES[name].parameters == pytest.approx(published, rel=1e-3)
    assert SHAPES[name].parameters < published


def test_parameters_of_layers_and_adapters() -> None:
    assert SHAPE.layer_parameters == LAYER
    assert SHAPE.parameters == SHAPE.matrix_parameters == 3 * LAYER + TABLE
    assert SHAPE.adapter_parameters(LoraConfig(r=2)) == 3 * 2 * (2 * 192 + 2 * 96 + 3 * 224)
    assert SHAPE.adapter_parameters(LoraConfig(r=2, target_modules=["q_proj", "v_proj"])) == 3 * 2 * (192 + 96)


def test_sampling_holds_weights_cache_and_one_pass() -> None:
    role = RoleConfig(dtype="bfloat16", context=100)
    made = sampling_memory(SHAPE, role, rows=4, nucleus=False)
    assert made.weights == 2 * (3 * LAYER + TABLE) and made.loading == 0
    assert made.cache == 4 * 100 * 3 * 2 * 32 * 2
    masks = 4 * 100 * 100 * 4 * 2  # tokens, slots, queries that share a key
    assert made.working == masks + 4 * 100 * (2 * 64 + 3 * 160) * 2
    many = sampling_memory(SHAPE, role.model_copy(update={"context": 200}), rows=100, nucleus=False)
    assert many.working == PASS_TOKENS * (200 * 4 + 2 * 64 + 3 * 160) * 2, "one pass, not all rows"
    cut = role.model_copy(update={"context": 2})
    assert sampling_memory(SHAPE, cut, rows=1000, nucleus=True).working == 57 * 1000**2, "what is drawn from"
    on_gpu = sampling_memory(SHAPE, role, rows=4, nucleus=False, on_gpu=True)
    assert on_gpu.cache == 4 * 128 * 3 * 2 * 32 * 2, "two blocks of slots for a context of 100"
    assert on_gpu.working == 2 * made.working
    # An adapter is merged into float32 weights, which are then cast one by one.
    assert sampling_memory(SHAPE, role.model_copy(update={"lora": LoraConfig()}), 4, nucleus=False).loading > 0


@pytest.mark.parametrize("context", [40, 150])
def test_keys_and_values_have_the_room_that_was_estimated(context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first pass until rows are full."""
    role = RoleConfig(model="tiny", context=context)
    estimated = sampling_memory(SHAPES["tiny"], role, rows=3, nucleus=False, on_gpu=True)
    policy = load_policy(role, resolve_model("tiny").path, None, threads=1)
    monkeypatch.setattr(policy, "end_ids", frozenset())
    session = policy.open([[5] * 10, [6] * 9, [7] * 8], range(3))
    while short := [row for row in range(3) if session.length(row) < context]:
        session.sample(short, SamplingConfig(max_new_tokens=7))
        assert session.cache_bytes == estimated.cache


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_keys_and_values_take_memory_only_where_they_are_written() -> None:
    """A gigabyte of room for rows that hold little of it."""
    cache, new = RowCache(layers=1, rows=64, longest=32_768), torch.ones(1, 2, 64)
    before = psutil.Process().memory_info().rss
    keys, values = cache.room(0, new, new)
    keys[:, :, 100:102], values[:, :, 100:102] = new, new
    assert cache.nbytes > 2**30
    assert not keys[0, 0, 99].any() and not values[63, 0, 102].any()
    assert psutil.Process().memory_info().rss - before < 2**26
    assert cache.room(0, new, new)[0] is keys, "they stay where they are"


@pytest.mark.parametrize(
    ("stage", "ranks", "weights", "gradients", "optimizer"),
    [(0, 1, 4, 4, 8), (0, 2, 4, 4, 8), (1, 1, 4, 4, 12), (1, 4, 4, 4, 3), (2, 4, 4, 1, 3), (3, 4, 5, 1, 3)],
)
def test_zero_divides_what_its_stage_says(
    stage: int, ranks: int, weights: float, gradients: float, optimizer: float
) -> None:
    """Bytes a parameter of one rank; ZeRO-3 gathers all of a small model beside its quarter."""
    role = RoleConfig(context=64, deepspeed=DeepSpeedConfig.model_validate({"zero_stage": stage, "ranks": ranks}))
    made, count = update_memory(SHAPE, role, 8), 3 * LAYER + TABLE
    assert (made.weights, made.gradients, made.optimizer) == (weights * count, gradients * count, optimizer * count)
    plain = role.model_copy(update={"optimizer": OptimizerConfig(kind="sgd")})
    assert made.optimizer - update_memory(SHAPE, plain, 8).optimizer == 8 * count // (ranks if stage else 1)


@requires("erl")
@pytest.mark.parametrize(("kl", "lora", "copies"), [(0.001, None, 1), (0.0, None, 0), (0.001, {"r": 2}, 0)])
def test_a_penalty_for_leaving_the_base_model_holds_a_second_one_beside_full_weights(
    kl: float, lora: dict[str, int] | None, copies: int
) -> None:
    """On every rank, and from one update to the next: the trainer keeps it."""
    changes = {"method.recipe.objective.beta": kl, "method.roles.actor.lora": lora}
    plain, made = (
        estimate(load_experiment(tiny_run.ROOT / "conf/erl.yaml", {**changes, **more}))
        for more in ({"method.recipe.objective.beta": 0.0}, {})
    )
    shape = shape_of("smollm2-135m-instruct")
    assert shape is not None
    model = 4 * shape.parameters
    for before, update in zip(plain.updates.values(), made.updates.values(), strict=True):
        assert update.reference == update.kept - before.kept == update.peak - before.peak == copies * model
    assert (made.memory_bytes or 0) - (plain.memory_bytes or 0) == copies * model


def saved_bytes(role: RoleConfig, layers: int, directory: Path) -> tuple[int, ModelShape]:
    """What autograd keeps of a forward pass, parameters left out, each storage once; and the shape of the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=320, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    checkpointing = role.deepspeed.gradient_checkpointing
    model = load_trainable(directory, None, lora=role.lora, source="made", seed=0, gradient_checkpointing=checkpointing)
    scored = ScoredModel(model, autocast=role.deepspeed.autocast)
    known = {parameter.untyped_storage().data_ptr() for parameter in scored.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage  # held, so that no other storage gets its address
        return tensor

    ids_P, last_N = torch.randint(0, 256, (role.context,)), torch.tensor([role.context - 1])
    positions_P = torch.arange(role.context)
    paths = Paths(positions_P, [role.context], [role.context], positions_P[None])
    mask_BT = torch.zeros(1, role.context)
    mask_BT[0, -1] = 1  # one position: the head counts on its own
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scored(ids_P, torch.arange(role.context), paths, last_N, ids_P[None], mask_BT, torch.ones(1))
    shape = shape_of(str(directory))
    assert shape is not None
    return sum(storage.nbytes() for storage in kept.values()), shape


@pytest.fixture
def plain_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ZeRO-3's own linear layer, which keeps other tensors: DeepSpeed leaves it in a process behind."""
    monkeypatch.setattr(torch.nn.functional, "linear", torch._C._nn.linear)


@pytest.mark.usefixtures("plain_linear")
@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)], ids=["full", "lora"])
@pytest.mark.parametrize("autocast", sampled(["none", "bfloat16"], 2))
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_activations_are_what_autograd_keeps_of_a_layer(
    lora: LoraConfig | None, autocast: str, checkpointing: bool, tmp_path: Path
) -> None:
    settings = {"micro_batch": 1, "autocast": autocast, "gradient_checkpointing": checkpointing}
    role = RoleConfig(context=512, lora=lora, deepspeed=DeepSpeedConfig.model_validate(settings))
    (few, small), (many, large) = (saved_bytes(role, layers, tmp_path / str(layers)) for layers in (2, 6))
    expected = activations(large, role) - activations(small, role)
    if checkpointing:  # what is recomputed, and the copies of its weights, come in the backward pass
        assert expected >= 4 * 512 * 128 * 4
        assert many - few == pytest.approx(4 * 512 * 128 * 4, rel=0.1)  # layers, tokens, width, bytes
        return
    assert many - few == pytest.approx(expected, rel=0.1)


def test_the_head_is_counted_where_tokens_are_trained() -> None:
    role = RoleConfig(deepspeed=DeepSpeedConfig(micro_batch=3))
    at_work = 10 * 4 * 1000
    assert head_memory(SHAPE, role, 7) == 2 * 4 * 3 * 7 * 1000 + 3 * 7 * at_work
    half = RoleConfig(deepspeed=DeepSpeedConfig(micro_batch=3, autocast="bfloat16"))
    assert head_memory(SHAPE, half, 700) == 2 * 2 * 3 * 700 * 1000 + 64 * at_work


def test_a_7b_experiment_by_hand() -> None:
    """Of a model that is nowhere on this machine: 7.6 billion parameters, adapters of rank 16, one GPU."""
    experiment = load_experiment(H100, ALONE)
    needed = estimate(experiment)
    parameters, adapters = 7_615_283_200, 28 * 16 * (4 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18_944))
    actor, update = needed.sampling["actor"], needed.updates["actor"]
    assert actor.weights == 2 * parameters and update.weights == 2 * parameters + 4 * adapters
    assert actor.cache == 32 * 4160 * 28 * 2 * 512 * 2  # rows, slots, layers, keys and values, width, bytes
    assert (
        needed.written_bytes
        == 12 * adapters
        == checkpoint_bytes(SHAPES["Qwen/Qwen2.5-7B-Instruct"], experiment.method.role("actor"))
    )
    # The two newest, the best evaluated, and the one that is written.
    assert needed.disk_bytes(5) == 4 * 12 * adapters + 5 * 18 * 64 * (4096 + 4096)
    # Both roles play with copies of their own, beside the trainer that the last round left.
    held = 2 * actor.weights + update.kept
    assert held < (needed.memory_bytes or 0) < held + actor.loading + actor.cache + actor.working + 2 * 2**30
    [gpu] = needed.gpus
    assert sum(gpu["sampling"].values()) == held + actor.cache + actor.working == needed.device_bytes
    assert gpu["update of actor"] == {
        **dict.fromkeys(("base", "sampling weights", "kept trainer", "buffers", "reference"), 0),
        "weights": update.weights, "gradients": 4 * adapters, "optimizer": update.optimizer,
        "activations": update.activations, "head": update.head, "buffers": update.buffers,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "gibibytes", "here"), [(1, 22.03, True), (8, 23.6, True), (1, 15.8, False), (0, 22.03, False)]
)
def test_a_gpu_is_as_large_as_its_maker_counts(
    gpus: int, gibibytes: float, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 GB an L4 tells 22.03 GiB."""
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: gpus)
    monkeypatch.setattr("crl.policies.machine.device_bytes", lambda: int(gibibytes * 2**30))
    found = machine_of(load_experiment(tiny_run.ROOT / "conf/gpu/one_24gb.yaml"))
    assert found.here is here
    assert found.gpu_bytes == (int(gibibytes * 2**30) if here else 24_000_000_000)


def test_a_server_of_weights_that_the_recipe_has_under_another_name_is_told(tmp_path: Path) -> None:
    """A baseline has no extractor, and the actor may have its weights."""
    roles = {"extractor": {"model": "tiny", "engine": "vllm"}, "actor": {"weights": "extractor"}}
    changes = {"method.roles": roles, "method.recipe": {"kind": "baseline"}, "runtime.gpus": {"gigabytes": 80}}
    share = {"runtime.servers": {"extractor": {"gpu_memory_utilization": 0.25}}}
    experiment = load_experiment(tiny_run.CONFIG, {**changes, **share})
    told = {need.name: need.message for need in needs(experiment, estimate(experiment), 1, tmp_path)}
    assert told["vLLM server, extractor"].startswith("0.25 of a GPU, 20.0 GB")


def test_a_frozen_base_is_held_in_the_type_of_its_file() -> None:
    """Experts are no linear layers: they are widened; under ZeRO-3 all is float32."""
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    narrow = replace(SHAPE, size=2)
    adapter = 4 * SHAPE.adapter_parameters(lora)
    for shape, size in ((SHAPE, 4), (narrow, 2)):
        assert update_memory(shape, RoleConfig(lora=lora), 8).weights == size * SHAPE.parameters + adapter
        assert update_memory(shape, RoleConfig(), 8).weights == 4 * SHAPE.parameters
    experts = replace(narrow, experts=4, chosen=2)
    assert experts.expert_parameters == 3 * 3 * 64 * 160 * 4
    widened = update_memory(experts, RoleConfig(lora=lora), 8).weights
    assert widened == 2 * experts.parameters + 2 * experts.expert_parameters + adapter
    divided = DeepSpeedConfig(zero_stage=3, ranks=2)
    assert update_memory(narrow, RoleConfig(lora=lora, deepspeed=divided), 8).weights == 6 * SHAPE.parameters
    # Outside autocast one matrix is widened at a time, the vocabulary head at last.
    role = RoleConfig(lora=lora, context=64)
    assert activations(narrow, role) - activations(SHAPE, role) == 4 * 64 * 1000


@pytest.mark.slow
def test_the_disk_is_that_of_a_real_run(finished: Path) -> None:
    """Checkpoints of the last round to the percent; rows are fewer than those of full contexts."""
    needed = estimate(load_experiment(tiny_run.ROOT / "conf/tiny.yaml"))
    places = [finished / f"rounds/{tiny_run.ROUNDS:04d}/update_{role}/checkpoint" for role in ("actor", "extractor")]
    tensors = [path for place in places for path in place.rglob("*.safetensors")]
    assert sum(path.stat().st_size for path in tensors) == pytest.approx(needed.written_bytes, rel=0.03)
    rows = (finished / f"rounds/{tiny_run.ROUNDS:04d}").rglob("*.parquet")
    assert 0 < sum(path.stat().st_size for path in rows) < needed.round_bytes
