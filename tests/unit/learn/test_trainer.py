"""The DeepSpeed update: real engine, exact accumulation, equal bytes, bit-exact resume."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crl.config import ActorObjective, DeepSpeedConfig, ExtractorObjective, LoraConfig, OptimizerConfig, RoleConfig
from crl.errors import BadInput, FrozenMethodChanged, NotDeepSpeed, RecordDamaged
from crl.learn.terms import objectives
from crl.learn.trainer import Gradients, Trainer, require_deepspeed
from crl.records import Sample
from tests.architectures import write_small
from tests.marks import sampled
from tests.windowed import write_windowed

MakeSamples = Callable[..., list[Sample]]


def role(*, stage: int = 0, micro_batch: int = 2, lora: bool = False, **optimizer: Any) -> RoleConfig:
    settings: dict[str, Any] = {"learning_rate": 1e-2, **optimizer}
    return RoleConfig(
        model="miniature",
        lora=LoraConfig(r=4) if lora else None,
        optimizer=OptimizerConfig(**settings),
        deepspeed=DeepSpeedConfig(zero_stage=stage, micro_batch=micro_batch),  # type: ignore[arg-type]
    )


def trainer(config: RoleConfig, base: Path, checkpoint: Path | None = None, seed: int = 0) -> Trainer:
    return Trainer(config, model_path=base, checkpoint=checkpoint, threads=1, seed=seed)


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def first_gradients(config: RoleConfig, base: Path, samples: list[Sample]) -> Gradients:
    caught: list[Gradients] = []
    one = trainer(config, base)
    one.update(samples, objectives(ActorObjective()), inspect=caught.append)
    one.dispose()
    return caught[0]


@pytest.mark.parametrize(
    ("stage", "lora"),
    sampled([(0, False), (0, True), (1, False), (2, True), (3, False)], 3),
    ids=lambda value: str(value),
)
def test_equal_updates_write_equal_bytes_and_resume_is_bit_exact(
    base_model: Path, random_samples: MakeSamples, tmp_path: Path, stage: int, lora: bool
) -> None:
    samples = random_samples(5)
    config = role(stage=stage, lora=lora)
    for name in ("one", "two"):
        first = trainer(config, base_model)
        metrics = first.update(samples, objectives(ActorObjective()))
        first.save(tmp_path / name)
        assert metrics["update_norm"] > 0
        if name == "two":
            assert first.rest() is first.rest() is (stage in (1, 2)), "in the machine's memory, and back"
            first.wake()
            straight = first.update(samples, objectives(ActorObjective()))
            first.save(tmp_path / "straight")
        first.dispose()
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    text = b"".join(path.read_bytes() for path in (tmp_path / "one").rglob("*.json"))
    assert str(base_model).encode() not in text and str(tmp_path).encode() not in text
    resumed = trainer(config, base_model, tmp_path / "one", seed=99)
    assert resumed.update(samples, objectives(ActorObjective())) == straight
    resumed.save(tmp_path / "resumed")
    resumed.dispose()
    assert digests(tmp_path / "resumed") == digests(tmp_path / "straight")
    assert digests(tmp_path / "resumed") != digests(tmp_path / "one")


def test_a_rank_that_writes_no_weights_copies_none(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes part in the gathers of ZeRO-3; the bytes that two ranks write are tested in `test_ranks`."""
    one = trainer(role(), base_model)
    assert one.weights() and not one.weights(copied=False)
    asked: list[bool] = []
    monkeypatch.setattr(Trainer, "weights", lambda _self, *, copied=True: asked.append(copied) or {})
    one._ranks = dataclasses.replace(one._ranks, rank=1)
    one.save(tmp_path / "checkpoint")
    one.dispose()
    assert asked == [False] and not (tmp_path / "checkpoint").exists()


def test_resume_without_the_optimizer_state_differs(
    base_model: Path, random_samples: MakeSamples, tmp_path: Path
) -> None:
    samples = random_samples(4)
    first = trainer(role(), base_model)
    first.update(samples, objectives(ActorObjective()))
    first.save(tmp_path / "one")
    straight = first.update(samples, objectives(ActorObjective()))
    first.dispose()
    (tmp_path / "one" / "deepspeed" / "engine.json").unlink()
    fresh = trainer(role(), base_model, tmp_path / "one")
    assert fresh.update(samples, objectives(ActorObjective()))["update_norm"] != straight["update_norm"]
    fresh.dispose()


def test_the_saved_weights_load_in_transformers_and_are_the_trained_ones(
    base_model: Path, random_samples: MakeSamples, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    one = trainer(role(stage=3), base_model)
    one.update(random_samples(4), objectives(ActorObjective()))
    one.save(tmp_path / "c")
    trained = one.weights()
    one.dispose()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert all(torch.equal(value, trained[name]) for name, value in loaded.named_parameters())
    assert loaded.dtype == torch.float32
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_accumulation_gives_the_gradient_of_one_batch(
    base_model: Path, random_samples: MakeSamples, stage: int
) -> None:
    samples = random_samples(7)
    whole = first_gradients(role(micro_batch=16, max_grad_norm=0), base_model, samples)
    cut = first_gradients(role(stage=stage, micro_batch=2, max_grad_norm=0), base_model, samples)
    assert whole.keys() == cut.keys() and len(whole) > 10
    for name, expected in whole.items():
        assert (cut[name] - expected).norm() <= 1e-5 * expected.norm() + 1e-9, name


def test_cispo_normalizes_over_the_whole_batch_however_it_is_cut(base_model: Path, random_samples: MakeSamples) -> None:
    samples = random_samples(6, "cispo")
    losses = []
    for size in (1, 6):
        one = trainer(role(micro_batch=size), base_model)
        losses.append(one.update(samples, objectives(ExtractorObjective()))["loss"])
        one.dispose()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    one = trainer(role(), base_model)
    more = one.update(
        [*samples, dataclasses.replace(samples[0], sample_id="zero", advantage=0.0)], objectives(ExtractorObjective())
    )
    one.dispose()
    tokens = sum(sum(sample.loss_mask) for sample in samples)
    assert more["loss"] == pytest.approx(losses[1] * tokens / (tokens + sum(samples[0].loss_mask)), rel=1e-5), (
        "a sample at the baseline counts in the normalizer"
    )


def test_plain_sgd_moves_by_the_learning_rate_times_the_clipped_gradient(
    base_model: Path, random_samples: MakeSamples
) -> None:
    samples = random_samples(4)
    for stage in (0, 2):
        one = trainer(role(stage=stage, kind="sgd", learning_rate=0.5, max_grad_norm=0), base_model)
        metrics = one.update(samples, objectives(ActorObjective()))
        one.dispose()
        assert metrics["update_norm"] == pytest.approx(0.5 * metrics["grad_norm"], rel=1e-4)
        clip = metrics["grad_norm"] / 4
        one = trainer(role(stage=stage, kind="sgd", learning_rate=0.5, max_grad_norm=clip), base_model)
        clipped = one.update(samples, objectives(ActorObjective()))
        one.dispose()
        assert clipped["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5), "the norm before clipping"
        assert clipped["update_norm"] == pytest.approx(0.5 * clip, rel=1e-3)


@pytest.mark.parametrize("stage", sampled([0, 1, 2, 3], 4))
def test_the_learning_rate_rises_over_the_first_updates_and_a_resumed_run_goes_on_from_there(
    base_model: Path, random_samples: MakeSamples, tmp_path: Path, stage: int
) -> None:
    samples = random_samples(4)
    rising = {"warmup_steps": 3, "lr_scheduler_type": "constant_with_warmup"}
    config = role(stage=stage, kind="sgd", learning_rate=0.5, max_grad_norm=0, **rising)
    one = trainer(config, base_model)
    straight = []
    for number in range(1, 5):
        straight.append(one.update(samples, objectives(ActorObjective())))
        one.save(tmp_path / str(number))
        one.update(
            [dataclasses.replace(sample, advantage=0.0) for sample in samples], objectives(ActorObjective())
        )  # no step
    one.dispose()
    assert [each["learning_rate"] for each in straight] == pytest.approx([0.5 / 3, 1.0 / 3, 0.5, 0.5])
    for each in straight:  # the rate that is told is the one that moved the weights
        assert each["update_norm"] == pytest.approx(each["learning_rate"] * each["grad_norm"], rel=1e-3)
    for number in range(1, 4):
        resumed = trainer(config, base_model, tmp_path / str(number))
        assert resumed.update(samples, objectives(ActorObjective())) == straight[number]
        resumed.save(tmp_path / f"resumed{number}")
        resumed.dispose()
        assert digests(tmp_path / f"resumed{number}") == digests(tmp_path / str(number + 1))


def test_without_warm_up_the_rate_is_the_configured_one(base_model: Path, random_samples: MakeSamples) -> None:
    assert OptimizerConfig().warmup_steps == 0
    one = trainer(role(), base_model)
    metrics = one.update(random_samples(4), objectives(ActorObjective()))
    one.dispose()
    assert metrics["learning_rate"] == 1e-2


def test_log_probabilities_are_those_of_a_plain_forward_pass(base_model: Path, random_samples: MakeSamples) -> None:
    """Narrowing the vocabulary head changes nothing: stored values taken from full logits give ratio 1."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base_model).eval()
    samples = []
    for sample in random_samples(5):
        with torch.no_grad():
            logits = model(torch.tensor([sample.token_ids])).logits[0].double() / sample.temperature
        scores = logits.log_softmax(-1)
        stored = [0.0] + [
            float(scores[position - 1, token]) * sample.loss_mask[position]
            for position, token in enumerate(sample.token_ids)
            if position > 0
        ]
        samples.append(dataclasses.replace(sample, logprobs=stored))
    one = trainer(role(), base_model)
    metrics = one.update(samples, objectives(ActorObjective()))
    one.dispose()
    assert metrics["logprob_mismatch"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clipped_low"] == metrics["clipped_high"] == 0.0


def test_a_round_that_says_nothing_takes_no_step(base_model: Path, random_samples: MakeSamples) -> None:
    samples = random_samples(3)
    one = trainer(role(), base_model)
    one.update(samples, objectives(ActorObjective()))
    before = one.weights()
    metrics = one.update(
        [dataclasses.replace(sample, advantage=0.0) for sample in samples], objectives(ActorObjective())
    )
    assert metrics == {"samples": 3.0, "samples_without_gradient": 3.0, "stepped": 0.0}
    after = one.weights()
    one.dispose()
    assert all(torch.equal(before[name], after[name]) for name in before), "momentum must not move the weights"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_what_samples_share_is_computed_once_and_gives_the_gradients_of_samples_alone(
    base_model: Path, random_samples: MakeSamples, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap, samples = [0] * 12, random_samples(6)
    grouped = [
        dataclasses.replace(
            each,
            token_ids=[*range(3, 15), *each.token_ids],
            loss_mask=[*gap, *each.loss_mask],
            logprobs=[*gap, *each.logprobs],
        )
        for each in samples
    ]
    # One turn in, two go on alike; and one is as another begins.
    twin = dataclasses.replace(grouped[0], sample_id="twin", token_ids=[*grouped[0].token_ids[:-1], 1], advantage=-0.7)
    cut = len(grouped[1].token_ids) - 1
    short = {name: getattr(grouped[1], name)[:cut] for name in ("token_ids", "loss_mask", "logprobs")}
    grouped += [twin, dataclasses.replace(grouped[1], sample_id="short", **short)]
    config = role(lora=lora, micro_batch=8)
    computed: list[int] = []

    def count(module: Any, args: Any, _: Any) -> None:
        computed.append(args[0].numel())

    def gradients() -> torch.Tensor:
        computed.clear()
        one = trainer(config, base_model)
        one._engine.module.model.get_input_embeddings().register_forward_hook(count)
        caught: list[Gradients] = []
        one.update(grouped, objectives(ActorObjective()), inspect=caught.append)
        one.dispose()
        return torch.cat([caught[0][name].flatten().double() for name in sorted(caught[0])])

    shared, positions = gradients(), sum(computed)
    monkeypatch.setattr("crl.learn.scoring._exact_update", lambda *about: "rows")
    alone = gradients()
    assert sum(computed) == sum(len(each.token_ids) - 1 for each in grouped) and len(computed) == len(grouped)
    assert positions <= sum(computed) - 12 * (len(grouped) - 1)
    assert float(shared @ alone / shared.norm() / alone.norm()) > 1 - 1e-9
    assert float(shared.norm() / alone.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_checkpointing_and_autocast_give_nearly_the_same_step(
    base_model: Path, random_samples: MakeSamples, lora: bool
) -> None:
    samples = random_samples(4)
    plain = role(lora=lora)
    expected = first_gradients(plain, base_model, samples)

    def cosine(settings: dict[str, Any]) -> float:
        config = plain.model_copy(update={"deepspeed": plain.deepspeed.model_copy(update=settings)})
        found = first_gradients(config, base_model, samples)
        a = np.concatenate([expected[name].numpy().ravel() for name in expected])
        b = np.concatenate([found[name].numpy().ravel() for name in expected])
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine({"gradient_checkpointing": True}) > 1 - 1e-5
    assert cosine({"autocast": "bfloat16"}) > 0.98


def test_layers_that_keep_no_activations_draw_no_noise(
    base_model: Path, random_samples: MakeSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers recomputes layers in training mode only, in which they would drop neurons out."""
    from transformers.models.starcoder2.modeling_starcoder2 import Starcoder2Attention

    noise = {"attention_dropout": 0.3, "residual_dropout": 0.3, "embedding_dropout": 0.3}
    write_small("starcoder2", tmp_path, base_model, 512, **noise)
    attended, forward = list[bool](), Starcoder2Attention.forward

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        attended.append(self.training)
        return forward(self, *args, **more)

    monkeypatch.setattr(Starcoder2Attention, "forward", counted)
    monkeypatch.setattr("crl.learn.scoring._exact_update", lambda *about: "packed")
    samples, plain = random_samples(2), role()
    expected = first_gradients(plain, tmp_path, samples)
    assert attended and not any(attended)
    once = len(attended)
    settings = plain.deepspeed.model_copy(update={"gradient_checkpointing": True})
    found = first_gradients(plain.model_copy(update={"deepspeed": settings}), tmp_path, samples)
    assert len(attended) == 3 * once and not any(attended)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_trainers_live_side_by_side_and_dispose_frees(base_model: Path, random_samples: MakeSamples) -> None:
    samples = random_samples(3)
    alone = trainer(role(stage=2), base_model)
    expected = alone.update(samples, objectives(ActorObjective()))
    alone.dispose()
    actor, extractor = trainer(role(stage=2), base_model), trainer(role(lora=True), base_model)
    extractor.update(random_samples(3, "cispo"), objectives(ExtractorObjective()))
    assert actor.update(samples, objectives(ActorObjective())) == expected
    actor.dispose()
    extractor.dispose()
    del alone, actor, extractor

    def living() -> int:
        """Numbers held by all tensors of the process."""
        gc.collect()
        return sum(value.numel() for value in gc.get_objects() if isinstance(value, torch.Tensor))

    for stage in (0, 3):
        counts = []
        for _ in range(2):
            one = trainer(role(stage=stage), base_model)
            one.update(samples, objectives(ActorObjective()))
            one.dispose()
            del one
            counts.append(living())
        assert counts[1] <= counts[0] + 100, f"ZeRO {stage} leaves tensors behind: {counts}"


def test_a_fresh_adapter_comes_from_the_seed_alone(base_model: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(name) + seed * 7)
        one = trainer(role(lora=True), base_model, seed=seed)
        one.save(tmp_path / name)
        one.dispose()
    files = {name: digests(tmp_path / name)["adapter_model.safetensors"] for name in "abc"}
    assert files["a"] == files["b"] != files["c"]
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["base_model_name_or_path"] == "miniature"
    assert not (tmp_path / "a" / "README.md").exists()


def test_a_silent_fallback_is_an_error() -> None:
    with pytest.raises(NotDeepSpeed, match="Linear"):
        require_deepspeed(torch.nn.Linear(1, 1))


def test_what_does_not_fit_is_refused(base_model: Path, random_samples: MakeSamples, tmp_path: Path) -> None:
    samples = random_samples(2)
    one = trainer(role(), base_model)
    with pytest.raises(BadInput, match="grpo"):
        one.update(samples, objectives(ExtractorObjective()))
    with pytest.raises(RecordDamaged):
        one.update([dataclasses.replace(samples[0], logprobs=[])], objectives(ActorObjective()))
    one.dispose()
    one = trainer(role(), base_model)
    one.update(samples, objectives(ActorObjective()))
    one.save(tmp_path / "c")
    one.dispose()
    with pytest.raises(FrozenMethodChanged, match="zero_stage"):
        trainer(role(stage=1), base_model, tmp_path / "c")
    state = tmp_path / "c" / "deepspeed" / "optimizer-rank00000.safetensors"
    state.write_bytes(state.read_bytes()[:-8])
    with pytest.raises(RecordDamaged, match="optimizer state"):
        trainer(role(), base_model, tmp_path / "c")
    with pytest.raises(BadInput, match="processes"):
        trainer(RoleConfig(deepspeed=DeepSpeedConfig(ranks=2)), base_model)
    with pytest.raises(BadInput, match="cannot open the model"):
        trainer(role(), tmp_path)


@pytest.mark.parametrize(("context", "way"), [(65, "padded"), (64, "packed")])
def test_a_model_that_does_not_see_the_whole_context_is_not_packed(tmp_path: Path, context: int, way: str) -> None:
    write_windowed(tmp_path, 64)
    made = trainer(role().model_copy(update={"context": context}), tmp_path)
    assert made._engine.module.way == way
    made.dispose()


@pytest.mark.parametrize("way", ["padded", "rows"])
def test_gradients_are_the_same_in_every_way(
    base_model: Path, random_samples: MakeSamples, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(5)
    expected = first_gradients(role(), base_model, samples)
    monkeypatch.setattr("crl.learn.scoring._exact_update", lambda *about: way)
    found = first_gradients(role(), base_model, samples)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
