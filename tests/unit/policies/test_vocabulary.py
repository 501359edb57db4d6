"""Embeddings with more rows than the tokenizer has tokens, and with fewer: sampler and update compute one policy over
the tokens of the vocabulary, and what has no row is refused by name."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig, SamplingConfig
from crl.config.vocabulary import absent_ids, load_tokenizer
from crl.errors import BadInput
from crl.learn.scoring import ScoredModel, load_trainable
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.policies import load_chat
from crl.policies.language_model import load_policy
from crl.policies.sampling import draw
from crl.policies.sources import ModelSource
from crl.protocols import Sampled
from crl.records import Sample
from tests.marks import sampled

PADDING, HOLE = 96, 300
"""Rows behind the last token, and a token that is taken out of the middle."""
PROMPTS = [[1, 20, 30, 40, 4, 2, 50, 4, 3], [1, 20, 30, 4, 3], [2, 60, 61, 62, 4, 3]]
SAMPLING = SamplingConfig(max_new_tokens=24, temperature=1.3)


def _model(directory: Path, rows: int) -> None:
    """Random weights whose head likes the last rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, vocab_size=rows, tie_word_embeddings=False, initializer_range=0.2,
            bos_token_id=None, eos_token_id=4, pad_token_id=0,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(directory)


@pytest.fixture(scope="module")
def padded(tiny: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with rows that no token has, behind the last token and in the middle."""
    directory = tmp_path_factory.mktemp("padded")
    shutil.copytree(tiny.path, directory, dirs_exist_ok=True)
    content = json.loads((directory / "tokenizer.json").read_text())
    gone = next(token for token, index in content["model"]["vocab"].items() if index == HOLE)
    del content["model"]["vocab"][gone]
    content["model"]["merges"] = [each for each in content["model"]["merges"] if gone not in ("".join(each), *each)]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    _model(directory, 512 + PADDING)
    return directory


def _role(path: Path) -> RoleConfig:
    deepspeed = DeepSpeedConfig(micro_batch=2)
    return RoleConfig(model=str(path), context=256, optimizer=OptimizerConfig(learning_rate=1e-2), deepspeed=deepspeed)


def _sampled(path: Path, sampling: SamplingConfig = SAMPLING, answers: Any = None) -> list[tuple[list[int], Sampled]]:
    """Two turns of each row, as (ids before, the turn)."""
    policy = load_policy(_role(path), path, None, threads=1)
    session = policy.open(PROMPTS, [7, 8, 9])
    rows, found = [list(prompt) for prompt in PROMPTS], []
    for _ in range(2):
        for row, turn in session.sample(range(3), sampling, answers).items():
            found.append((list(rows[row]), turn))
            rows[row] += [*turn.token_ids, 2, 70, 4, 3]
            session.extend({row: [2, 70, 4, 3]})
    session.close()
    return found


def _expected(path: Path, before: list[int], turn: Sampled, temperature: float, kept: list[int]) -> list[float]:
    """Plain transformers, in float64, renormalized over the ids that are tokens."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    with torch.inference_mode():
        logits = model(torch.tensor([[*before, *turn.token_ids]])).logits[0] / temperature
    places = range(len(before) - 1, len(before) + len(turn.token_ids) - 1)
    return [
        float(logits[place][index] - logits[place][kept].logsumexp(0))
        for place, index in zip(places, turn.token_ids, strict=True)
    ]


def test_ids_without_a_token_are_found_wherever_they_are(padded: Path, tiny: ModelSource) -> None:
    assert absent_ids(load_tokenizer(padded), 512 + PADDING) == [HOLE, *range(512, 512 + PADDING)]
    assert absent_ids(load_tokenizer(tiny.path), 512) == []
    assert load_policy(_role(tiny.path), tiny.path, None, threads=1).absent is None
    assert load_trainable(tiny.path, None, lora=None, source="x", seed=0).absent is None


@pytest.mark.parametrize(
    "more", sampled([{}, {"top_k": 400, "top_p": 0.99}, {"top_k": 500}, {"top_p": 0.999}], 2), ids=str
)
def test_no_padding_row_is_drawn_and_log_probabilities_are_those_of_what_is_drawn_from(
    padded: Path, more: dict[str, Any]
) -> None:
    absent = {HOLE, *range(512, 512 + PADDING)}
    kept = [index for index in range(512 + PADDING) if index not in absent]
    drawn = 0
    for before, turn in _sampled(padded, SAMPLING.model_copy(update=more)):
        assert not absent & set(turn.token_ids)
        assert turn.logprobs == pytest.approx(_expected(padded, before, turn, 1.3, kept), abs=2e-5)
        drawn += len(turn.token_ids)
    assert drawn > 60, "with so many draws, a sixth of them at an even chance, some would be padding"


def test_an_update_scores_what_was_sampled_as_it_was_sampled(padded: Path) -> None:
    """Ratios are 1 before the step. Padding rows get no gradient, and their logits are pushed nowhere."""
    samples = [
        Sample(
            sample_id=f"s{number}", round=1, role="actor", objective="grpo", source="0001/collect",
            generation_id=f"g{number}", reward=0.0, advantage=(-1.0) ** number, weight=1.0, temperature=1.3,
            token_ids=[*before, *turn.token_ids], loss_mask=[0] * len(before) + [1] * len(turn.token_ids),
            logprobs=[0.0] * len(before) + list(turn.logprobs),
        )
        for number, (before, turn) in enumerate(_sampled(padded))
    ]  # fmt: skip
    trainer = Trainer(_role(padded), model_path=padded, checkpoint=None, threads=1)
    gradients: dict[str, Any] = {}
    try:
        metrics = trainer.update(samples, objectives(ActorObjective()), inspect=gradients.update)
        after = trainer.weights()["lm_head.weight"]
    finally:
        trainer.dispose()
    assert metrics["stepped"] == 1 and metrics["logprob_mismatch"] < 1e-5 and metrics["mismatch_kl"] < 1e-8
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    head = gradients["lm_head.weight"]
    assert float(head[:HOLE].abs().max()) > 0
    assert float(head[512:].abs().max()) == 0 == float(head[HOLE].abs().max())
    before = AutoModelForCausalLM.from_pretrained(padded).lm_head.weight
    assert torch.equal(after[512:], before[512:].detach()) and not torch.equal(after[:HOLE], before[:HOLE].detach())


def test_the_mask_in_the_sampler_alone_would_bias_every_ratio(padded: Path) -> None:
    """What plain training (without the mask) would make of these tokens: ratios below 1 by the mass of absent ids."""
    masked = ScoredModel(load_trainable(padded, None, lora=None, source="x", seed=0).eval())
    assert masked.absent is not None and "absent" not in masked.state_dict(), "no part of a checkpoint"
    everything = list(range(512 + PADDING))
    for before, turn in _sampled(padded)[:2]:
        unmasked = np.array(_expected(padded, before, turn, 1.3, everything))
        assert np.all(np.exp(unmasked - np.array(turn.logprobs)) < 0.98)


def test_choices_are_renormalized_over_themselves_with_or_without_padding(padded: Path) -> None:
    tree = {20: {4: {}}, 21: {22: {4: {}}, 23: {4: {}}}}
    for before, turn in _sampled(padded, SAMPLING, dict.fromkeys(range(3), tree)):
        first = _expected(padded, before, turn, 1.3, [20, 21])[0]
        assert turn.choices[0] == [20, 21] and turn.logprobs[0] == pytest.approx(first, abs=2e-5)


def test_without_padding_rows_no_bit_changes() -> None:
    torch.manual_seed(0)
    logits, uniforms = 4 * torch.randn(50, 97), torch.rand(50, dtype=torch.float64)
    ids, logprobs = draw(logits, uniforms, SAMPLING)
    assert torch.equal(logprobs, torch.log_softmax(logits / 1.3, -1).gather(1, ids[:, None])[:, 0])
    hidden, hidden_logprobs = draw(
        torch.cat([logits, torch.full((50, 5), 9.0)], 1), uniforms, SAMPLING, torch.arange(97, 102)
    )
    assert torch.equal(hidden, ids) and torch.allclose(hidden_logprobs, logprobs, atol=1e-6)


def _longer(tiny: ModelSource, directory: Path, *, used: bool) -> ModelSource:
    """The miniature with one token more than it has rows, which its template uses or not."""
    shutil.copytree(tiny.path, directory, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path)
    tokenizer.add_tokens([AddedToken("<|turn_end|>", special=True)])
    if used:
        tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|turn_end|>")
    tokenizer.save_pretrained(directory)
    return dataclasses.replace(tiny, path=directory)


def test_a_chat_whose_ids_the_model_has_no_row_for_is_refused_before_work(tiny: ModelSource, tmp_path: Path) -> None:
    source = _longer(tiny, tmp_path, used=True)
    with pytest.raises(BadInput, match=r"513 tokens and its embeddings have 512 rows; '<\|turn_end\|>', the id 512"):
        load_chat(source)
    with pytest.raises(BadInput, match="has none"):
        load_policy(_role(source.path), source.path, None, threads=1)


def test_a_token_that_no_chat_has_needs_no_row(tiny: ModelSource, tmp_path: Path) -> None:
    """Gemma 3 1B's tokenizer ends with the token of an image, for which the model has no row."""
    source = _longer(tiny, tmp_path, used=False)
    assert load_chat(source).opening([{"role": "user", "content": "<|turn_end|>"}])
    assert load_policy(_role(source.path), source.path, None, threads=1).absent is None


def test_a_word_without_a_row_is_refused_even_where_no_probe_has_it(tiny: ModelSource, tmp_path: Path) -> None:
    shutil.copytree(tiny.path, tmp_path, dirs_exist_ok=True)
    _model(tmp_path, 400)
    with pytest.raises(BadInput, match=r"512 tokens and its embeddings have 400 rows; .*the id 4\d\d, has none"):
        load_chat(dataclasses.replace(tiny, path=tmp_path))
