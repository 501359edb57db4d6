"""Whether a model is sampled and updated here as transformers computes it: measured before work starts, in numbers.

`python -m crl.engine.probe OUT` reads questions (:class:`Question`) as a JSON list from its standard input and appends
one line of JSON, a :class:`Verdict`, to OUT as each is answered; `crl.preflight.probe` starts it and keeps verdicts. It
is a process of its own, so that a model that ends it ends nothing else.

Two rows that begin alike and go on with unequal lengths play two short turns. Their log-probabilities are compared:
those of the sampler and of the update, against plain transformers, which reads the rows whole. An update is computed
twice, with its gradient once, and an adapter is written and read back. All in float32, where computing the same thing
in another way moves the last digits only; an update in bfloat16 is computed to its end besides. One copy of the model
is in memory at one time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from crl.config import LoraConfig, SamplingConfig
from crl.config.models import check_attention, noting, pretrained
from crl.config.vocabulary import absent_of, rows_of_model
from crl.engine.services import parameters
from crl.errors import CrlError, StageFailed
from crl.learn.batches import collate
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import ScoredModel, inputs_of, load_trainable
from crl.policies.language_model import load_model
from crl.policies.session import BatchSession
from crl.policies.turn import StopStrings
from crl.records import Sample
from crl.run.guardian import end_with_parent

MOST_NATS = 0.002
"""Most that a log-probability may differ in float32. Of small random models the worst of what is right differs by 3e-5,
the least of what is not by 0.04."""
MOST_NATS_BFLOAT16 = 2.0
"""The same in bfloat16, in which models that are right differ by 0.6 (experts are chosen by what was rounded)."""
LEAST_COSINE = 0.999
"""Least cosine of two gradients of one loss. Right: 0.999998 or more; not: 0.985 or less."""
_SEED = 20260317
_ALIKE, _APART, _TOLD, _TURN = 18, (2, 7), (2, 5), 2
"""Tokens that both rows begin with, that each has to itself, that it is told between its turns, and of a turn."""
_SMALL = 500_000_000
"""Parameters below which one thread is faster: passes are short, and other checks run beside."""
_MOVED = 0.05
"""Standard deviation of what a fresh adapter, which changes nothing, is moved by."""

Logprobs = list[list[float]]
"""Of two rows, of each token but the first."""


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
    """What was found; `problem` None: the model is computed as transformers computes it."""

    problem: str | None = None
    expected: str | None = None
    nats: dict[str, float] = field(default_factory=dict)
    """Largest differences of log-probabilities, by what was compared."""
    cosine: float | None = None
    """Of the gradients of an update and of plain transformers."""
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
        check_attention(config, self._path.name, self._question.context)
        if not self._find_room():
            self.verdict = Verdict(skipped="not measured: memory is not enough for its weights", sure=False)
            return
        absent = absent_of(self._path, config)
        self._absent = torch.tensor(absent) if absent else None
        tokens = np.setdiff1d(np.arange(rows_of_model(config)), absent)
        ids = iter(np.random.default_rng(_SEED).choice(tokens, 100).tolist())
        longest = _APART[1] + _TOLD[1] + 2 * _TURN
        counts = min(_ALIKE, self._question.context - 1 - longest), *_APART, *_TOLD
        alike, *pieces = ([next(ids) for _ in range(count)] for count in counts)
        rows, told = [alike + pieces[0], alike + pieces[1]], pieces[2:]
        with noting() as notes:
            try:
                sampled = self._sample(rows, told) if self._question.sampled else None
            except Exception:
                if notes:
                    raise notes[0] from None
                raise
        plain, seen = self._plain(rows)
        if (least := min(seen, default=self._question.context)) < self._question.context:
            raise StageFailed(
                f"it has layers that see {least} tokens of a row",
                expected=f"attention over all of the role's context of {self._question.context} tokens",
            )
        if sampled is not None:
            problem = "the sampler's log-probabilities differ from transformers'"
            try:
                self._compare("sampling", problem, sampled, plain)
            except StageFailed as error:
                if notes:
                    raise StageFailed(f"{notes[0].found} Here {error.found}", expected=error.expected) from None
                raise
            if notes:
                raise notes[0]
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

    def _sample(self, rows: list[list[int]], told: Sequence[Sequence[int]]) -> Logprobs:
        """Let the rows, which grow, play two turns; NaN for what was not drawn."""
        self.doing = "loading it for sampling"
        with _one_model(lambda: load_model(self._path, None, dtype=self._dtype)) as model:
            model.eval().requires_grad_(False).to(self._device)
            self.doing = "sampling"
            logprobs = [[float("nan")] * (len(row) - 1) for row in rows]
            longest = len(rows[1]) + len(told[1]) + 2 * _TURN + 1
            session = BatchSession(
                model,
                frozenset(),
                longest,
                rows,
                [1, 2],
                stops=lambda each: StopStrings(each, str),
                absent=self._absent,
            )
            for pieces in (told, ([], [])):
                session.begin([0, 1], SamplingConfig(max_new_tokens=_TURN))
                ended = session.advance()
                while len(ended) < len(rows):
                    ended |= session.advance()
                for row, piece in enumerate(pieces):
                    rows[row] += [*ended[row].token_ids, *piece]
                    logprobs[row] += [*ended[row].logprobs, *[float("nan")] * len(piece)]
                session.extend(dict(enumerate(pieces)))
            session.close()
        return logprobs

    def _plain(self, rows: Sequence[Sequence[int]]) -> tuple[Logprobs, list[int]]:
        """Log-probabilities of plain transformers, and what its masks show of a row of the whole context."""
        self.doing = "transformers' own forward pass"
        with _one_model(lambda: pretrained(AutoModelForCausalLM, self._path, dtype=self._dtype)) as model:
            model.eval().requires_grad_(False).to(self._device)
            with _masks_seen(model, self._question.context) as seen:
                return self._logprobs(model, rows), seen

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
            scored = ScoredModel(model)
            self.doing = "the forward pass of an update"
            with torch.no_grad():
                once = _lists(self._updated(scored, rows))
            self._compare("update", "an update's log-probabilities differ from transformers'", once, plain)
            if lora is not None:
                _move(model, lora)
                with torch.no_grad():
                    once = _lists(self._updated(scored, rows))
            found = self._updated(scored, rows)
            again = _lists(found)
            self._compare("repeat", "an update computed twice gives other log-probabilities", once, again)
            self.doing = "the backward pass of an update"
            sum(each.sum() for each in found).backward()  # type: ignore[union-attr]
            ours = [_taken(parameter) for parameter in model.parameters()]
            self.doing = "transformers' own backward pass"
            model.set_attn_implementation(own)
            sum(each.sum() for each in self._whole(model, rows)).backward()  # type: ignore[union-attr]
            cosine = _cosine(ours, [_taken(parameter) for parameter in model.parameters()])
            self.verdict = replace(self.verdict, cosine=cosine)
            if not cosine >= LEAST_COSINE:
                raise StageFailed(
                    f"an update's gradient differs from transformers': their cosine is {cosine:.4f}",
                    expected=f"at least {LEAST_COSINE}",
                )
            if question.autocast != "none":
                self.doing = "the backward pass of an update in bfloat16"
                scored = ScoredModel(model, autocast=question.autocast)
                rounded = self._updated(scored, rows[:1])
                rounded[0].sum().backward()  # type: ignore[no-untyped-call]
                said = "an update in bfloat16 gives other log-probabilities"
                self._compare("bfloat16", said, _lists(rounded), again[:1], MOST_NATS_BFLOAT16)
            if lora is not None:
                self.doing = "writing an adapter"
                learned = {name: each for name, each in model.named_parameters() if each.requires_grad}
                save_weights(model, {name: each.detach().cpu() for name, each in learned.items()}, folder)
            return again

    def _updated(self, scored: ScoredModel, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Log-probabilities of the rows as an update computes them."""
        samples = [_sample_of(row) for row in rows]
        found = []
        for part in [samples] if scored.packed else [[sample] for sample in samples]:
            found += scored(*inputs_of(collate(part).to(self._device))).unbind()
        return [each[: len(row) - 1] for each, row in zip(found, rows, strict=True)]

    def _logprobs(self, model: Any, rows: Sequence[Sequence[int]]) -> Logprobs:
        """The rows read whole by the model as it is."""
        with torch.no_grad():
            return _lists(self._whole(model, rows))

    def _whole(self, model: Any, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """As :meth:`_logprobs`, with a gradient. Padded on the right, where causal attention never looks: no mask."""
        width = max(map(len, rows))
        ids_BT = torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], device=model.device)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].float()
        if self._absent is not None:
            hidden_V = torch.zeros(logits_BTV.shape[-1], dtype=torch.bool, device=model.device)
            hidden_V[self._absent] = True
            logits_BTV = logits_BTV.masked_fill(hidden_V, float("-inf"))
        found_BT = torch.log_softmax(logits_BTV, -1).gather(2, ids_BT[:, 1:, None])[..., 0]
        return [found[: len(row) - 1] for found, row in zip(found_BT, rows, strict=True)]

    def _compare(self, name: str, problem: str, one: Logprobs, other: Logprobs, most: float | None = None) -> None:
        """Note the largest difference; raise where it is too large. NaN in `one` is not compared."""
        most = self._most if most is None else most
        pairs = [pair for row in zip(one, other, strict=True) for pair in zip(*row, strict=True)]
        first, second = np.array([pair for pair in pairs if not np.isnan(pair[0])]).T
        apart = np.abs(first - second)
        worst = float(apart.max()) if np.isfinite(apart).all() else float("inf")
        self.verdict = replace(self.verdict, nats={**self.verdict.nats, name: worst})
        if not worst <= most:
            mean = float(apart.mean())
            raise StageFailed(
                f"{problem}: by {worst:.3g} nats at most, {mean:.3g} on average, over {len(apart)} tokens",
                expected=f"at most {most} nats",
            )


def _sample_of(row: Sequence[int]) -> Sample:
    """A row, all of which but its first token is trained."""
    return Sample(
        sample_id=str(len(row)), round=0, role="probe", objective="nll", source="probe", generation_id="probe",
        reward=1.0, advantage=1.0, weight=1.0, temperature=1.0, token_ids=list(row),
        loss_mask=[0, *[1] * (len(row) - 1)], logprobs=[0.0] * len(row),
    )  # fmt: skip


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
def _masks_seen(model: Any, context: int) -> Iterator[list[int]]:
    """Inside, of every mask that a layer attends with: how many tokens the last of a whole context sees."""
    kind = model.config.get_text_config()._attn_implementation
    if kind not in ALL_MASK_ATTENTION_FUNCTIONS or kind not in ALL_ATTENTION_FUNCTIONS:
        yield []  # an older architecture, whose own attention is no other than that of sampling, or differs from it
        return
    make, attend = ALL_MASK_ATTENTION_FUNCTIONS[kind], ALL_ATTENTION_FUNCTIONS[kind]
    made, seen = list[tuple[torch.Tensor, int]](), list[int]()

    def making(*args: Any, mask_function: Callable[..., Any], **more: Any) -> Any:
        keys = torch.arange(context, device=model.device)
        count = int(torch.as_tensor(mask_function(0, 0, keys[-1], keys)).expand(context).sum())
        more |= {"allow_is_causal_skip": False}
        made.append((make(*args, mask_function=mask_function, **more), count))
        return made[-1][0]

    def attending(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **more: Any) -> Any:
        seen.extend(count for mask, count in made if mask is attention_mask)
        return attend(module, query, key, value, attention_mask, *args, **more)

    AttentionMaskInterface.register(kind, making)
    AttentionInterface.register(kind, attending)
    try:
        yield seen
    finally:
        AttentionMaskInterface.register(kind, make)
        AttentionInterface.register(kind, attend)


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
