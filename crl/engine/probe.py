"""Whether a model is sampled and updated here as transformers computes it: measured before work starts, in numbers.

`python -m crl.engine.probe OUT` reads questions (:class:`Question`) as a JSON list from its standard input and appends
one line of JSON, a :class:`Verdict`, to OUT as each is answered; `crl.preflight.probe` starts it and keeps verdicts. It
is a process of its own, so that a model that ends it ends nothing else.

Two rows that begin alike and go on with unequal lengths play two short turns. Their log-probabilities are compared:
those of the sampler and of the update, against plain transformers, which reads each row whole and alone. An update is
computed twice, with its gradient once, and an adapter is written and read back. All in float32, where computing the
same thing in another way moves the last digits only; one copy of the model is in memory at one time.
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
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from crl.config import LoraConfig, SamplingConfig
from crl.config.attention import check_attention, noting
from crl.config.pretrained import pretrained
from crl.errors import CrlError, StageFailed
from crl.learn.batches import collate
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import ScoredModel, load_trainable
from crl.learn.tree_attention import Paths
from crl.policies.language_model import load_model
from crl.policies.session import BatchSession
from crl.policies.turn import StopStrings
from crl.policies.vocabulary import absent_of, rows_of_model
from crl.records import Sample

MOST_NATS = 0.002
"""Most that a log-probability may differ in float32. Of small random models the worst of what is right differs by 3e-5,
the least of what is not by 0.04."""
MOST_NATS_BFLOAT16 = 0.5
"""The same in bfloat16, where memory is not enough for float32."""
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


def answer(question: Question) -> Verdict:
    """The verdict on one question. An exception of the model's own code is a verdict, too."""
    dtype, device = _room(Path(question.path), trained=question.trained)
    if dtype is None:
        return Verdict(skipped="not measured: memory is not enough for the weights in bfloat16")
    probe = _Probe(question, dtype, device)
    try:
        probe.run()
    except CrlError as error:
        return replace(probe.verdict, problem=error.found, expected=error.expected)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")[:300]
        return replace(probe.verdict, problem=f"{probe.doing} fails: {type(error).__name__}: {first}")
    return probe.verdict


class _Probe:
    """The comparisons of one question. `verdict` has what was measured so far, also where one raises."""

    def __init__(self, question: Question, dtype: torch.dtype, device: torch.device) -> None:
        self._question, self._path, self._device, self._dtype = question, Path(question.path), device, dtype
        self._most = MOST_NATS if dtype == torch.float32 else MOST_NATS_BFLOAT16
        self._absent: torch.Tensor | None = None
        self.verdict, self.doing = Verdict(), "reading its config"

    def run(self) -> None:
        config = pretrained(AutoConfig, self._path)
        check_attention(config, self._path.name, self._question.context)
        self._absent = absent_of(self._path, config)
        tokens = np.setdiff1d(np.arange(rows_of_model(config)), [] if self._absent is None else self._absent.numpy())
        ids = iter(np.random.default_rng(_SEED).choice(tokens, 100).tolist())
        alike, *pieces = ([next(ids) for _ in range(count)] for count in (_ALIKE, *_APART, *_TOLD))
        rows, told = [alike + pieces[0], alike + pieces[1]], pieces[2:]
        with noting() as notes:
            try:
                sampled = self._sample(rows, told) if self._question.sampled else None
            except Exception:
                if notes:
                    raise notes[0] from None
                raise
        self.doing = "transformers' own forward pass"
        with _one_model(self._plain_model) as model, _masks_seen(model, self._question.context) as seen:
            plain = self._logprobs(model, rows)
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

    def _plain_model(self) -> Any:
        model = pretrained(AutoModelForCausalLM, self._path, dtype=self._dtype)
        return model.eval().requires_grad_(False).to(self._device)

    def _update(self, rows: Sequence[Sequence[int]], plain: Logprobs) -> None:
        question = self._question
        lora = None if question.lora is None else LoraConfig(**question.lora)
        self.doing = "loading it for updates"
        with _one_model(lambda: load_trainable(self._path, None, lora=lora, source="probe", seed=0)) as model:
            model.to(self._device)
            own = model.config.get_text_config()._attn_implementation
            scored = ScoredModel(model)
            self.doing = "the forward pass of an update"
            with torch.no_grad():
                once = _lists(self._updated(scored, rows))
            self._compare("update", "an update's log-probabilities differ from transformers'", once, plain)
            if lora is not None:
                _move(model)
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
            for row in rows:
                self._row_logprobs(model, row).sum().backward()  # type: ignore[no-untyped-call]
            cosine = _cosine(ours, [_taken(parameter) for parameter in model.parameters()])
            self.verdict = replace(self.verdict, cosine=cosine)
            if not cosine >= LEAST_COSINE:
                raise StageFailed(
                    f"an update's gradient differs from transformers': their cosine is {cosine:.4f}",
                    expected=f"at least {LEAST_COSINE}",
                )
            if lora is None:
                return
            with tempfile.TemporaryDirectory() as folder:
                self.doing = "writing an adapter"
                learned = {name: each for name, each in model.named_parameters() if each.requires_grad}
                save_weights(model, {name: each.detach().cpu() for name, each in learned.items()}, Path(folder))
                del scored, model, learned, ours, found
                self.doing = "reading an adapter"
                with _one_model(lambda: load_model(self._path, Path(folder), dtype=torch.float32)) as merged:
                    merged.eval().requires_grad_(False).to(self._device)
                    read = self._logprobs(merged, rows[1:])
            self._compare("adapter", "an adapter that is read back gives other log-probabilities", read, again[1:])

    def _updated(self, scored: ScoredModel, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Log-probabilities of the rows as an update computes them."""
        samples = [_sample_of(row) for row in rows]
        found = []
        for part in [samples] if scored.packed else [[sample] for sample in samples]:
            batch = collate(part).to(self._device)
            found += scored(
                batch.input_ids_P,
                batch.depths_P,
                Paths.of(batch.tree, self._device),
                batch.places_N,
                batch.targets_BT,
                batch.mask_BT,
                batch.temperature_B,
            ).unbind()
        return [each[: len(row) - 1] for each, row in zip(found, rows, strict=True)]

    def _logprobs(self, model: Any, rows: Sequence[Sequence[int]]) -> Logprobs:
        """Each row read whole, alone, by the model as it is."""
        with torch.no_grad():
            return _lists([self._row_logprobs(model, row) for row in rows])

    def _row_logprobs(self, model: Any, row: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([row], device=model.device)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1].float()
        if self._absent is not None:
            hidden = torch.zeros_like(logits, dtype=torch.bool)
            hidden[:, self._absent] = True
            logits = logits.masked_fill(hidden, float("-inf"))
        return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]

    def _compare(self, name: str, problem: str, one: Logprobs, other: Logprobs) -> None:
        """Note the largest difference; raise where it is too large. NaN in `one` is not compared."""
        pairs = [pair for row in zip(one, other, strict=True) for pair in zip(*row, strict=True)]
        first, second = np.array([pair for pair in pairs if not np.isnan(pair[0])]).T
        apart = np.abs(first - second)
        worst = float(apart.max()) if np.isfinite(apart).all() else float("inf")
        self.verdict = replace(self.verdict, nats={**self.verdict.nats, name: worst})
        if worst > self._most:
            mean = float(apart.mean())
            raise StageFailed(
                f"{problem}: by {worst:.3g} nats at most, {mean:.3g} on average, over {len(apart)} tokens",
                expected=f"at most {self._most} nats",
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


def _move(model: Any) -> None:
    """Let an adapter that changes nothing change something."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter.device), alpha=_MOVED)


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


def _elements(path: Path) -> int:
    """Numbers in a model's files of weights, by their headers."""
    from safetensors import safe_open

    count = 0
    for file in path.glob("*.safetensors"):
        with safe_open(file, "numpy") as weights:
            count += sum(int(np.prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    return count


def _room(path: Path, *, trained: bool) -> tuple[torch.dtype | None, torch.device]:
    """In what precision and where a model is compared: in float32, on a GPU where it has room."""
    count = _elements(path)
    if count < _SMALL:
        torch.set_num_threads(1)
    needed = count * 4 * (3 if trained else 1)  # beside the weights two gradients
    if torch.cuda.is_available() and needed * 1.2 < torch.cuda.mem_get_info()[0]:
        return torch.float32, torch.device("cuda")
    room = psutil.virtual_memory().available / 1.2
    # An update holds the weights in float32 in any case, or the run cannot be made here.
    if needed < room or trained:
        return torch.float32, torch.device("cpu")
    return (torch.bfloat16 if count * 2 < room else None), torch.device("cpu")


def main() -> None:
    """See the module."""
    questions = [Question(**each) for each in json.load(sys.stdin)]
    gc.freeze()  # what is imported stays: collecting after each model would look at all of it
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with Path(sys.argv[1]).open("a", encoding="utf-8") as out:
        for question in questions:
            out.write(json.dumps(asdict(answer(question))) + "\n")
            out.flush()


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    main()
