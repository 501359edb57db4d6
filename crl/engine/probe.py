"""Whether a model is sampled and updated here as transformers computes it: measured before work starts, in numbers.

`python -m crl.engine.probe OUT` reads questions (:class:`Question`) as a JSON list from its standard input and appends
one line of JSON, a :class:`Verdict`, to OUT as each is answered; `crl.preflight.probe` starts it and keeps verdicts. It
is a process of its own, so that a model that ends it ends nothing else.

There are ways of sampling and of updating (`crl.config.models.Sampling`, `Update`), the fastest first; a model is
computed in the first that is exact. Two rows that begin alike and go on with unequal lengths play two short turns
(`crl.config.ways`). Their log-probabilities are compared: those of the sampler and of the update, against plain
transformers, which reads the rows whole. An update is computed twice, with its gradient once, and an adapter is written
and read back. All in float32, where computing the same thing in another way moves the last digits only; an update in
bfloat16 is computed to its end besides. One copy of the model is in memory at one time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import psutil
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from crl.config import LoraConfig
from crl.config.models import Sampling, Update, check_context, check_language_model, pretrained
from crl.config.vocabulary import absent_of
from crl.config.ways import MOST_NATS, MOST_NATS_BFLOAT16, Logprobs, check_nats, plain_logprobs, rows_to_try
from crl.engine.services import parameters
from crl.errors import CrlError, StageFailed
from crl.learn.adapters import adapted_by
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import ScoredModel, load_trainable, logprobs_of
from crl.policies.exact import Tried, exact_sampling
from crl.policies.language_model import load_model
from crl.run.guardian import end_with_parent

LEAST_COSINE = 0.999
"""Least cosine of two gradients of one loss. Right: 0.999998 or more; not: 0.985 or less."""
_SEED = 20260317
_SMALL = 500_000_000
"""Parameters below which one thread is faster: passes are short, and other checks run beside."""
_MOVED = 0.05
"""Standard deviation of what a fresh adapter, which changes nothing, is moved by."""


@dataclass(frozen=True)
class Question:
    """A set of weights, and what is done with it."""

    path: str
    """Directory of a transformers checkpoint."""
    context: int
    """Tokens that a row may have."""
    lora: dict[str, Any] | None
    """The adapter that is trained; None for full weights."""
    sampled: bool
    """Whether this project samples from it; a server of its own may."""
    trained: bool
    autocast: Literal["none", "bfloat16"] = "none"
    """What updates are computed in."""
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Verdict:
    """What was found; `problem` None: the model is computed as transformers computes it, in these ways."""

    problem: str | None = None
    expected: str | None = None
    sampling: Sampling | None = None
    update: Update | None = None
    instead: dict[str, str] = field(default_factory=dict)
    """Why sampling, or the update, is not packed."""
    nats: dict[str, float] = field(default_factory=dict)
    """Largest differences of log-probabilities, by what was compared."""
    cosine: float | None = None
    """Of the gradients of an update and of plain transformers."""
    adapter: dict[str, Any] | None = None
    """What an adapter adapts (`crl.learn.adapters.Adapted`)."""
    skipped: str | None = None
    """Why nothing was measured."""
    sure: bool = True
    """False where it may be another one next time: measured in bfloat16, or what failed may be this machine."""


def answer(question: Question) -> Verdict:
    """The verdict on one question. An exception of the model's own code is a verdict, too."""
    probe = _Probe(question)
    try:
        probe.run()
    except CrlError as error:
        return replace(probe.verdict, problem=error.found, expected=error.expected)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")[:300]
        return replace(probe.verdict, problem=f"{probe.doing} fails: {type(error).__name__}: {first}", sure=False)
    return probe.verdict


class _Probe:
    """The comparisons of one question. `verdict` has what was measured so far, also where one raises."""

    def __init__(self, question: Question) -> None:
        self._question, self._path = question, Path(question.path)
        self._dtype, self._device, self._most = torch.float32, torch.device("cpu"), MOST_NATS
        self._absent: torch.Tensor | None = None
        self.verdict, self.doing = Verdict(), "reading its config"

    def run(self) -> None:
        config = pretrained(AutoConfig, self._path)
        check_language_model(config, self._path, self._path.name)
        check_context(config, self._path.name, self._question.context)
        if not self._find_room():
            self.verdict = Verdict(skipped="not measured: memory is not enough for its weights", sure=False)
            return
        absent = absent_of(self._path, config)
        self._absent = torch.tensor(absent) if absent else None
        sampled = self._sample() if self._question.sampled else None
        rows = rows_to_try(config, self._question.context, absent)[0] if sampled is None else sampled.rows
        plain = self._plain(rows)
        if sampled is not None:
            problem = "the sampler's log-probabilities differ from transformers'"
            self._compare("sampling", problem, sampled.logprobs, plain)
        if self._question.trained:
            self._update(rows, plain)

    def _find_room(self) -> bool:
        """Choose precision and device: float32, on a GPU where it has room. False where none has."""
        count = parameters(self._path)
        if count < _SMALL:
            torch.set_num_threads(1)
        whole = self._question.trained and self._question.lora is None
        needed = count * 4 * (3 if whole else 1) * 1.2  # beside all weights two gradients
        if torch.cuda.is_available() and needed < torch.cuda.mem_get_info()[0]:
            self._device = torch.device("cuda")
            return True
        room = psutil.virtual_memory().available
        # An update holds the weights in float32 in any case, or the run cannot be made here.
        if needed < room or self._question.trained:
            return True
        self._dtype, self._most = torch.bfloat16, MOST_NATS_BFLOAT16
        self.verdict = Verdict(sure=False)
        return bool(count * 2 * 1.2 < room)

    def _sample(self) -> Tried:
        self.doing = "loading it for sampling"
        with _one_model(lambda: load_model(self._path, None, dtype=self._dtype)) as model:
            model.eval().requires_grad_(False).to(self._device)
            self.doing = "sampling"
            found = exact_sampling(model, self._question.context, self._absent)
        self.verdict = replace(self.verdict, sampling=found.way)
        self._note_instead("sampling", found.instead)
        return found

    def _note_instead(self, what: str, why: str | None) -> None:
        if why is not None:
            self.verdict = replace(self.verdict, instead={**self.verdict.instead, what: why})

    def _plain(self, rows: Sequence[Sequence[int]]) -> Logprobs:
        """Log-probabilities of plain transformers."""
        self.doing = "transformers' own forward pass"
        with _one_model(lambda: pretrained(AutoModelForCausalLM, self._path, dtype=self._dtype)) as model:
            return self._logprobs(model.eval().requires_grad_(False).to(self._device), rows)

    def _update(self, rows: Sequence[Sequence[int]], plain: Logprobs) -> None:
        lora = None if self._question.lora is None else LoraConfig(**self._question.lora)
        with tempfile.TemporaryDirectory() as folder:
            adapted = self._trained(rows, plain, lora, Path(folder))
            if lora is None:
                return
            self.doing = "reading an adapter"
            with _one_model(lambda: load_model(self._path, Path(folder), dtype=torch.float32)) as merged:
                merged.eval().requires_grad_(False).to(self._device)
                read = self._logprobs(merged, rows[1:])
        self._compare("adapter", "an adapter that is read back gives other log-probabilities", read, adapted[1:])

    def _trained(
        self, rows: Sequence[Sequence[int]], plain: Logprobs, lora: LoraConfig | None, folder: Path
    ) -> Logprobs:
        """Update, without a step; with `lora` an adapter that is not 0 is written. Log-probabilities with it."""
        question = self._question
        self.doing = "loading it for updates"
        checkpointing = question.gradient_checkpointing
        with _one_model(
            lambda: load_trainable(
                self._path, None, lora=lora, source="probe", seed=0, gradient_checkpointing=checkpointing
            )
        ) as model:
            model.to(self._device)
            own = model.config.get_text_config()._attn_implementation
            self.doing = "the forward pass of an update"
            scored = ScoredModel(model, context=question.context)
            self._note_instead("update", scored.instead)
            with torch.no_grad():
                once = _lists(logprobs_of(scored, rows))
            self._compare("update", "an update's log-probabilities differ from transformers'", once, plain)
            if lora is not None:
                _move(model, lora)
            self.doing = "transformers' own backward pass"
            model.set_attn_implementation(own)
            sum(each.sum() for each in plain_logprobs(model, rows, self._absent)).backward()
            named = dict(model.named_parameters())
            theirs = [_taken(parameter) for parameter in named.values()]
            if lora is not None:
                without = [
                    name
                    for (name, each), got in zip(named.items(), theirs, strict=True)
                    if each.requires_grad and got is None
                ]
                adapted = adapted_by(model, without)
                self.verdict = replace(self.verdict, adapter=asdict(adapted))
            self.doing = "the backward pass of an update"
            ways: tuple[Update, ...] = get_args(Update)
            for way in ways[ways.index(scored.way) :]:
                model.set_attn_implementation(own)
                scored.read_by(way)
                with torch.no_grad():
                    once = _lists(logprobs_of(scored, rows))
                found = logprobs_of(scored, rows)
                again = _lists(found)
                self._compare("repeat", "an update computed twice gives other log-probabilities", once, again)
                sum(each.sum() for each in found).backward()  # type: ignore[union-attr]
                cosine = _cosine([_taken(parameter) for parameter in model.parameters()], theirs)
                self.verdict = replace(self.verdict, update=way, cosine=cosine)
                if cosine >= LEAST_COSINE:
                    break
                self._note_instead("update", f"{way}: the cosine of its gradient and of transformers' is {cosine:.4f}")
            else:
                raise StageFailed(
                    f"an update's gradient differs from transformers': their cosine is {cosine:.4f}",
                    expected=f"at least {LEAST_COSINE}",
                )
            del theirs
            if question.autocast != "none":
                self.doing = "the backward pass of an update in bfloat16"
                scored = ScoredModel(model, autocast=question.autocast, way=scored.way)
                rounded = logprobs_of(scored, rows[:1])
                rounded[0].sum().backward()  # type: ignore[no-untyped-call]
                said = "an update in bfloat16 gives other log-probabilities"
                self._compare("bfloat16", said, _lists(rounded), again[:1], MOST_NATS_BFLOAT16)
            if lora is not None:
                self.doing = "writing an adapter"
                learned = {name: each for name, each in model.named_parameters() if each.requires_grad}
                save_weights(model, {name: each.detach().cpu() for name, each in learned.items()}, folder)
                _read_back(model, learned, folder)
            return again

    def _logprobs(self, model: Any, rows: Sequence[Sequence[int]]) -> Logprobs:
        """The rows read whole by the model as it is."""
        with torch.no_grad():
            return _lists(plain_logprobs(model, rows, self._absent))

    def _compare(self, name: str, problem: str, one: Logprobs, other: Logprobs, most: float | None = None) -> None:
        """Note the largest difference; raise where it is too large. NaN in `one` is not compared."""
        worst = check_nats(problem, one, other, self._most if most is None else most)
        self.verdict = replace(self.verdict, nats={**self.verdict.nats, name: worst})


def _lists(found: Sequence[torch.Tensor]) -> Logprobs:
    return [each.tolist() for each in found]


def _move(model: Any, lora: LoraConfig) -> None:
    """Let an adapter that changes nothing change something, about as much whatever its scale."""
    by = _MOVED * min(1.0, lora.r / lora.lora_alpha)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter.device), alpha=by)


def _read_back(model: Any, learned: Mapping[str, torch.nn.Parameter], folder: Path) -> None:
    """Raise StageFailed where peft does not find all of a written adapter: what it misses begins anew, silently."""
    from peft import set_peft_model_state_dict

    written = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        kept = {name: each.clone() for name, each in learned.items()}
        for each in learned.values():
            each.zero_()
    set_peft_model_state_dict(model, written)
    if lost := sorted(name for name, each in learned.items() if not torch.equal(each, kept[name])):
        raise StageFailed(
            f"peft reads {len(lost)} of {len(learned)} tensors of an adapter back as others: {lost[0]}",
            expected="the numbers that were written; lora.target_modules may name other modules",
        )


def _taken(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    gradient, parameter.grad = parameter.grad, None
    return gradient


def _cosine(one: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> float:
    """Of two gradients, by parameter; None is 0."""
    products = np.zeros(3)
    for a, b in zip(one, other, strict=True):
        for place, (left, right) in enumerate(((a, b), (a, a), (b, b))):
            if left is not None and right is not None:
                products[place] += float(torch.dot(left.flatten(), right.flatten()))
    return float(products[0] / np.sqrt(products[1] * products[2])) if products[1] and products[2] else float("nan")


@contextmanager
def _one_model(load: Callable[[], Any]) -> Iterator[Any]:
    """A model, which is freed at the end."""
    model = load()
    try:
        yield model
    finally:
        del model
        gc.collect()


def main() -> None:
    """See the module."""
    end_with_parent()
    questions = [Question(**each) for each in json.load(sys.stdin)]
    gc.freeze()  # what is imported stays: collecting after each model would look at all of it
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with Path(sys.argv[1]).open("a", encoding="utf-8") as out:
        for question in questions:
            out.write(json.dumps(asdict(answer(question))) + "\n")
            out.flush()
    os._exit(0)  # taking the libraries down would take half a second


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    main()
