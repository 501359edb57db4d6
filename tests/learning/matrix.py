"""What every small text architecture of the installed transformers can do here, tried from sampling to resuming.

A model is sampled from for three turns in a batch of unequal rows, and updated twice, with a checkpoint between. What
is drawn, the gradient, and what is read back are held against transformers and peft alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from crl.config import ActorObjective, LoraConfig, OptimizerConfig, RoleConfig, SamplingConfig
from crl.config.ways import plain_logprobs
from crl.engine.probe import Question, answer
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.policies import resolve_model
from crl.policies.language_model import load_model, load_policy
from crl.records import Sample
from tests.architectures import write_small

CONTEXT, MOST_NATS, LEAST_COSINE = 128, 1e-4, 1 - 1e-6
LORA = LoraConfig(r=4)
WINDOWS = {"sliding_window": 8, "window_size": 8, "attention_window_size": 8, "local_attention": 8}
NOISE = {
    "attention_dropout": 0.2, "residual_dropout": 0.2, "embedding_dropout": 0.2, "attn_pdrop": 0.2, "resid_pdrop": 0.2,
    "embd_pdrop": 0.2, "dropout": 0.2, "hidden_dropout": 0.2, "layerdrop": 0.2, "router_jitter_noise": 0.2,
    "input_jitter_noise": 0.2, "activation_dropout": 0.2, "hidden_dropout_prob": 0.2,
}  # fmt: skip
PROMPTS = [[7, 9, 30, 41, 5, 77, 80, 12, 60], [7, 9, 30, 41, 6, 90, 14, 15, 70, 3, 8, 21, 22, 23], [7, 9, 30], [11, 12]]
TOLD = [[[31, 33], [40, 41, 42]], [[34], [43]], [[35, 36, 37, 38], [44, 45]], [[39], [46, 47]]]
COLUMNS = "family", "class", "sampling", "update", "full weights", "lora", "lora in bfloat16", "note"


@dataclass(frozen=True)
class Outcome:
    """What became of an update with full weights or LoRA: `right`, or why it is refused."""

    said: str
    way: str = ""


def written(kind: str, folder: Path, dtype: torch.dtype = torch.float32) -> str:
    """Write the small model of an architecture, with noise and narrow windows. Returns the name of its class."""
    return write_small(kind, folder, resolve_model("tiny").path, 512, dtype, **NOISE, **WINDOWS)


def sampled(base: Path) -> tuple[str, list[list[int]], float]:
    """Play three turns. The way, the rows, and the largest difference from teacher forcing by transformers alone."""
    role = RoleConfig(model=str(base), context=CONTEXT)
    policy = load_policy(role, base, None, threads=1)
    sampling = SamplingConfig(temperature=0.9, max_new_tokens=5)
    rows, logprobs = [list(row) for row in PROMPTS], [[np.nan] * len(row) for row in PROMPTS]
    session = policy.open(PROMPTS, range(len(PROMPTS)), limit=3)
    going = set(range(len(rows)))
    for turn in range(3):
        session.begin(sorted(going), sampling)
        going = set()
        while ended := session.advance():
            for row, drawn in ended.items():
                rows[row] += drawn.token_ids
                logprobs[row] += drawn.logprobs
                if turn < 2 and row != 2 - turn:  # rows end at different times
                    piece = TOLD[row][turn]
                    session.extend({row: piece})
                    rows[row] += piece
                    logprobs[row] += [np.nan] * len(piece)
                    going.add(row)
                else:
                    session.drop([row])
    model = plain(base)
    apart = [0.0]
    for ids, own in zip(rows, logprobs, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
        expected = torch.log_softmax(logits / 0.9, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        apart.append(float(np.nanmax(np.abs(np.array(own[1:]) - expected))))
    return policy.way, rows, max(apart)


def updated(base: Path, folder: Path, rows: list[list[int]], lora: LoraConfig | None) -> str:
    """Update, save, resume, and update again; the way. Raises AssertionError where a number is not transformers'."""
    role = RoleConfig(model=str(base), context=CONTEXT, lora=lora, optimizer=OptimizerConfig(learning_rate=1e-3))
    used = {"threads": 1, "model_path": base}
    first = Trainer(role, checkpoint=None, **used)
    try:
        assert first.update(samples(rows), objectives(ActorObjective()))["update_norm"] > 0
        first.save(folder)
    finally:
        first.dispose()
    alone = plain(folder) if lora is None else PeftModel.from_pretrained(plain(base), folder, is_trainable=True).eval()
    expected = plain_logprobs(alone, rows)
    read = plain_logprobs(load_model(base, folder, dtype=torch.float32).eval().requires_grad_(False), rows)
    assert max(float((a - b).abs().max()) for a, b in zip(expected, read, strict=True)) < MOST_NATS, "as it was saved"
    sum(-weight * logprobs.sum() for weight, logprobs in zip(weights(rows), expected, strict=True)).backward()
    again = Trainer(role, checkpoint=folder, **used)
    found: dict[str, torch.Tensor] = {}
    try:
        again.update(samples(rows), objectives(ActorObjective()), inspect=found.update)
        way = again.way
    finally:
        again.dispose()
    gradients = {name: each.grad for name, each in alone.named_parameters() if each.grad is not None}
    assert cosine(found, gradients) >= LEAST_COSINE, cosine(found, gradients)
    return way


def weights(rows: list[list[int]]) -> list[float]:
    """Of each row as a sample."""
    return [1.0 - 0.2 * number for number in range(len(rows))]


def samples(rows: list[list[int]]) -> list[Sample]:
    """The rows, all of which but the first token is learned."""
    return [
        Sample(
            sample_id=str(number), round=1, role="actor", objective="nll", source="0001/collect",
            generation_id=str(number), reward=1.0, advantage=1.0, weight=weight, temperature=1.0,
            token_ids=row, loss_mask=[0, *[1] * (len(row) - 1)], logprobs=[0.0] * len(row),
        )
        for number, (row, weight) in enumerate(zip(rows, weights(rows), strict=True))
    ]  # fmt: skip


def cosine(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Of two gradients by parameter; what only one of them names is 0 in the other."""
    products = np.zeros(3)
    for name in {**one, **other}:
        a, b = (each[name].double().flatten() if name in each else None for each in (one, other))
        products += [0.0 if x is None or y is None else float(x @ y) for x, y in ((a, b), (a, a), (b, b))]
    return float(products[0] / np.sqrt(products[1] * products[2]))


def plain(path: Path) -> Any:
    """A model as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def tried(kind: str, folder: Path) -> dict[str, str]:
    """One line of the table. Raises AssertionError where a number is wrong that the probe lets pass."""
    warnings.filterwarnings("ignore")
    name = written(kind, folder / "base")
    line = dict.fromkeys(COLUMNS, "") | {"family": kind, "class": name}
    verdict = answer(Question(str(folder / "base"), CONTEXT, None, sampled=True, trained=False))
    if verdict.problem is not None:
        return line | {"sampling": "refused", "note": verdict.problem}
    line["sampling"], rows, apart = sampled(folder / "base")
    assert line["sampling"] == verdict.sampling and apart < MOST_NATS, f"sampled {line['sampling']}: {apart:.1e} nats"
    notes = []
    written(kind, folder / "narrow", torch.bfloat16)
    cases = (("full weights", None, "base"), ("lora", LORA, "base"), ("lora in bfloat16", LORA, "narrow"))
    for what, lora, base in cases:
        told = None if lora is None else lora.model_dump(mode="json")
        verdict = answer(Question(str(folder / base), CONTEXT, told, sampled=False, trained=True))
        if verdict.problem is not None:
            line[what] = "refused"
            notes.append(f"{what}: {verdict.problem}")
            continue
        assert verdict.update == updated(folder / base, folder / what, rows, lora)
        line[what], line["update"] = "right", str(verdict.update)
    return line | {"note": "; ".join(notes)}
