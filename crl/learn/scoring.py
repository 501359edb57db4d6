"""Log-probabilities of given tokens under a causal language model, the loading of such a model for training, the base
model beside it, and equal gradients for equal inputs.

The vocabulary head is the larger part of the work for a small model, and most tokens of an episode are observations:
it is computed only where a token is trained. That is done by narrowing the head's input just before it runs, so any
transformers model takes part, wrapped by peft or not, and ZeRO-3's own hooks around every module stay in place.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from crl.config import LoraConfig, RoleConfig
from crl.config.models import EveryLayerOnce, Update, logits_at, pretrained
from crl.config.vocabulary import absent_of, generation_config, hide
from crl.config.ways import (
    MOST_NATS,
    NEAR_NATS,
    check_nats,
    check_same_positions,
    check_sees_all,
    first_exact,
    longest_row,
    plain_logprobs,
    rows_to_try,
)
from crl.errors import BadInput, RecordDamaged, StageFailed
from crl.learn.adapters import with_adapter
from crl.learn.batches import MicroBatch, collate
from crl.learn.frozen import compute_wide, restore, wide_in, widen
from crl.learn.process_group import import_deepspeed
from crl.learn.tree_attention import KEYWORD, Paths, use_tree_attention
from crl.records import Sample

_ROWS = 32
"""Rows of logits that are in work at one time, at least."""
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What products on a GPU need for equal results."""


class ScoredModel(nn.Module):
    """A causal language model whose forward pass returns log-probabilities of given targets, among the ids that are
    tokens: one of :func:`load_trainable` says which are not (`absent`, :mod:`crl.config.vocabulary`).

    It stays in evaluation mode: a ratio of old and new probabilities means nothing when neurons drop out at random, or
    experts are chosen with noise.
    """

    absent: torch.Tensor | None

    def __init__(
        self,
        model: Any,
        *,
        autocast: Literal["none", "bfloat16"] = "none",
        way: Update | None = None,
        context: int | None = None,
    ) -> None:
        """
        Args:
            model: one of :func:`load_trainable`, whole, with its own attention.
            autocast: what it computes in.
            way: how samples are read; None: the fastest way that is exact, tried here.
            context: longest sample in tokens, for that; default as many as the model has positions for.

        Raises BadInput where no way is exact, or where the model cannot take the way.
        """
        super().__init__()
        self.model = model
        self.autocast: Literal["none", "bfloat16"] = "none"
        self.config = model.config
        self.register_buffer("absent", getattr(model, "absent", None), persistent=False)
        self.instead: str | None = None
        """Why a faster way is not exact."""
        self.way: Update = "rows"
        if way is None:
            with whole(model):
                way = _exact_update(self, context or longest_row(model.config))
        self.read_by(way)
        self.autocast = autocast

    def read_by(self, way: Update) -> None:
        """Read samples in another way. The model has its own attention. Raises BadInput where it cannot."""
        if way == "packed" and not use_tree_attention(self.model):
            raise BadInput(
                f"{type(self.model).__name__} cannot be given paths in place of a mask",
                expected="a model whose attention follows transformers' interface",
                where="the `model` of a role",
                next_step="`crl doctor` says which way of updating is exact",
            )
        self.way = way

    def forward(
        self,
        input_ids_P: torch.Tensor,
        depths_P: torch.Tensor,
        paths: Paths,
        positions_N: torch.Tensor,
        targets_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        temperature_B: torch.Tensor,
        choices_NC: torch.Tensor | None = None,
        some_NK: torch.Tensor | None = None,
        *,
        likeliest: int = 0,
    ) -> tuple[torch.Tensor, ...]:
        """Log-probabilities [B, T] (float32) of the targets where the mask is not 0, exactly 0 elsewhere; and the
        entropies [B, T], in nats, of the distributions that they were drawn from. Where K ids of each are given
        (`some_NK`), their log-probabilities [N, K], too; or those of the `likeliest`, and these ids [N, K].

        They are those of the distribution over the tokens of the vocabulary after dividing the logits by the
        temperature, as when sampling, so a ratio to the stored ones is that of two policies over the same ids; where a
        target was chosen among a few ids (`choices_NC`) it is renormalized over them. Arguments as in `MicroBatch`;
        several samples need another way than `rows`. Raises BadInput where a packed pass would compute something else
        (`EveryLayerOnce`).
        """
        chosen_BT = mask_BT != 0
        inputs: dict[str, Any] = {"input_ids": input_ids_P[None], "use_cache": False}
        guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.way == "packed":
            inputs |= {"position_ids": depths_P[None], KEYWORD: paths}
            guard = EveryLayerOnce(self.model)
        else:  # padded on the right, where causal attention never looks: no mask
            inputs["input_ids"] = input_ids_P[paths.rows_BT]
            positions_N = chosen_BT.flatten().nonzero()[:, 0]
        with self._precision(input_ids_P.device), guard:
            logits_NV, _ = logits_at(self.model, positions_N, **inputs)
        temperature_N = temperature_B[:, None].expand_as(mask_BT)[chosen_BT]
        more: tuple[torch.Tensor, ...] = ()
        if likeliest:
            parts = [_likeliest(self.absent, likeliest, *part) for part in _parts(logits_NV, temperature_N)]
            more = tuple(map(torch.cat, zip(*parts, strict=True)))
        chosen_N, entropy_N, logprobs_NK = _Chosen.apply(  # type: ignore[no-untyped-call]
            self.absent, logits_NV, temperature_N, targets_BT[chosen_BT], choices_NC, some_NK
        )
        if logprobs_NK is not None:
            more = (logprobs_NK,)
        empty_BT = torch.zeros(mask_BT.shape, dtype=chosen_N.dtype, device=chosen_N.device)
        return empty_BT.masked_scatter(chosen_BT, chosen_N), empty_BT.masked_scatter(chosen_BT, entropy_N), *more

    def train(self, mode: bool = True) -> ScoredModel:
        """Nothing changes, whatever the mode; see the class."""
        return self

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.autocast == "none":
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


@torch.no_grad()
def _exact_update(scored: ScoredModel, context: int) -> Update:
    """The fastest way in which a model that keeps its own attention gives the log-probabilities of transformers."""
    model, own = scored.model, scored.model.config.get_text_config()._attn_implementation
    rows, _ = rows_to_try(model.config, context, [] if scored.absent is None else scored.absent.tolist())

    def gap_of(way: Update) -> float:
        try:
            if way == "packed":
                check_sees_all(model, context)
            if way != "rows":
                check_same_positions(model, context)
            plain = [each.tolist() for each in plain_logprobs(model, rows, scored.absent)]
            scored.read_by(way)
            found = [each.tolist() for each in logprobs_of(scored, rows)]
        finally:
            model.set_attn_implementation(own)
        return check_nats("log-probabilities differ from transformers'", found, plain, MOST_NATS)

    ways: tuple[Update, ...] = get_args(Update)
    way, problems = first_exact(ways, gap_of, NEAR_NATS)
    scored.instead = "; ".join(problems.values()) or None
    if way is not None:
        return way
    raise BadInput(
        f"no way of updating computes what transformers computes ({scored.instead})",
        expected="a causal language model whose log-probabilities are those of its own forward pass",
        where="the `model` of a role",
        next_step="name another model for this role",
    )


def logprobs_of(scored: ScoredModel, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Log-probabilities of each row's tokens but the first, as an update computes them."""
    samples = [
        Sample(
            sample_id=str(number), round=0, role="probe", objective="nll", source="probe", generation_id="probe",
            reward=1.0, advantage=1.0, weight=1.0, temperature=1.0, token_ids=list(row),
            loss_mask=[0, *[1] * (len(row) - 1)], logprobs=[0.0] * len(row),
        )
        for number, row in enumerate(rows)
    ]  # fmt: skip
    found: list[torch.Tensor] = []
    for part in [[sample] for sample in samples] if scored.way == "rows" else [samples]:
        logprobs_BT, *_ = scored(*inputs_of(collate(part).to(scored.model.device)))
        found += logprobs_BT.unbind()
    return [each[: len(row) - 1] for each, row in zip(found, rows, strict=True)]


def inputs_of(batch: MicroBatch) -> tuple[Any, ...]:
    """What :meth:`ScoredModel.forward` takes of a micro-batch, on the device where the batch is."""
    return (
        batch.input_ids_P,
        batch.depths_P,
        Paths.of(batch.tree, batch.input_ids_P.device),
        batch.positions_N,
        batch.targets_BT,
        batch.mask_BT,
        batch.temperature_B,
        batch.choices_NC,
        batch.some_NK,
    )


class _Chosen(torch.autograd.Function):
    """:func:`_chosen`, some rows at a time: beside the logits, only their gradient has their size. The backward pass
    computes each part again; the numbers are those of all rows at once."""

    @staticmethod
    def forward(ctx: Any, absent: torch.Tensor | None, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.absent = absent
        chosen, entropies, some = zip(*(_chosen(absent, *part) for part in _parts(*inputs)), strict=True)
        return torch.cat(chosen), torch.cat(entropies), None if some[0] is None else torch.cat(some)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        grad_NV = torch.empty_like(ctx.saved_tensors[0])
        for logits_RV, *others, grad_R, entropy_grad_R, some_grad_RK, out_RV in _parts(
            *ctx.saved_tensors, *grads, grad_NV
        ):
            found_RV = _chosen_gradient(ctx.absent, (grad_R, entropy_grad_R, some_grad_RK), logits_RV, *others)
            out_RV.copy_(found_RV)
        return None, grad_NV, None, None, None, None


def _likeliest(
    absent: torch.Tensor | None, count: int, logits_NV: torch.Tensor, temperature_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the likeliest ids of each row, and these ids, both [N, K]; without a gradient. K is `count`,
    or all tokens of a smaller vocabulary."""
    scaled_NV = hide(logits_NV.detach().float() / temperature_N[:, None], absent)
    tokens = scaled_NV.shape[1] - (0 if absent is None else len(absent))
    values_NK, ids_NK = scaled_NV.topk(min(count, tokens), dim=1)
    return values_NK - scaled_NV.logsumexp(1, keepdim=True), ids_NK


def _chosen(
    absent: torch.Tensor | None,
    logits_NV: torch.Tensor,
    temperature_N: torch.Tensor,
    targets_N: torch.Tensor,
    choices_NC: torch.Tensor | None,
    some_NK: torch.Tensor | None,
    *,
    entropies: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Log-probabilities [N] of the targets, one of each row, the entropies [N] of the rows, and log-probabilities
    [N, K] of some ids; float32."""
    scaled_NV = hide(logits_NV.float() / temperature_N[:, None], absent)
    normalizer_N = log_normalizer(scaled_NV, choices_NC)
    chosen_N = scaled_NV.gather(1, targets_N[:, None])[:, 0] - normalizer_N
    # Entropies overwrite logits of absent ids.
    logprobs_NK = None if some_NK is None else scaled_NV.gather(1, some_NK) - normalizer_N[:, None]
    entropy_N = entropy_of(scaled_NV, normalizer_N, choices_NC, absent) if entropies else None
    return chosen_N, entropy_N, logprobs_NK


def _chosen_gradient(
    absent: torch.Tensor | None,
    grads: tuple[torch.Tensor | None, ...],
    logits_NV: torch.Tensor,
    *others: Any,
) -> torch.Tensor:
    """The gradient [N, V] of the logits, from those of :func:`_chosen`; None: of what nothing depends on."""
    with torch.enable_grad():
        logits_NV = logits_NV.detach().requires_grad_()
        found = _chosen(absent, logits_NV, *others, entropies=grads[1] is not None)
    given = [(out, grad) for out, grad in zip(found, grads, strict=True) if out is not None and grad is not None]
    return torch.autograd.grad([out for out, _ in given], logits_NV, [grad for _, grad in given])[0]


def _parts(*tensors: torch.Tensor | None) -> list[tuple[Any, ...]]:
    """Tensors with equally many rows in parts of some rows; None stays None.

    No part has one row, unless there is no other: threads would share the sum over it, with other last digits.
    """
    assert tensors[0] is not None
    count = max(1, len(tensors[0]) // _ROWS)
    parts = [[None] * count if each is None else each.tensor_split(count) for each in tensors]
    return list(zip(*parts, strict=True))


def log_normalizer(logits_NV: torch.Tensor, choices_NC: torch.Tensor | None) -> torch.Tensor:
    """log sum exp [N] over each row's choices, padded with -1; over the whole row where it has none."""
    if choices_NC is None:
        return logits_NV.logsumexp(1)
    absent_NC = choices_NC < 0
    free_N1 = absent_NC.all(1, keepdim=True)
    # A row without choices must not be all -inf: its gradient, though unused, would be NaN.
    hidden_NC = absent_NC & ~free_N1
    restricted_N = logits_NV.gather(1, choices_NC.clamp(min=0)).masked_fill(hidden_NC, float("-inf")).logsumexp(1)
    if not bool(free_N1.any()):
        return restricted_N
    return torch.where(free_N1[:, 0], logits_NV.logsumexp(1), restricted_N)


def entropy_of(
    logits_NV: torch.Tensor,
    normalizer_N: torch.Tensor,
    choices_NC: torch.Tensor | None,
    absent: torch.Tensor | None,
) -> torch.Tensor:
    """Entropy [N], in nats, of each row's distribution over its choices (:func:`log_normalizer`): log Z - sum p z.

    Without a gradient the logits of absent ids are overwritten: they must not be needed otherwise.
    """
    if choices_NC is not None:
        padding_NC = choices_NC < 0
        free_N1 = padding_NC.all(1, keepdim=True)
        few_NC = logits_NV.gather(1, choices_NC.clamp(min=0)).masked_fill(padding_NC & ~free_N1, float("-inf"))
        shares_NC = few_NC.softmax(1)
        entropy_N = normalizer_N - (shares_NC * few_NC.masked_fill(few_NC.isneginf(), 0.0)).sum(1)
        if not bool(free_N1.any()):
            return entropy_N
        return torch.where(free_N1[:, 0], entropy_of(logits_NV, normalizer_N, None, absent), entropy_N)
    shares_NV = logits_NV.softmax(1)
    if absent is not None:  # they have no share, and 0 times minus infinity is no number
        fill = logits_NV.index_fill if torch.is_grad_enabled() else logits_NV.index_fill_
        logits_NV = fill(1, absent, 0.0)
    mean_N: torch.Tensor = torch.linalg.vecdot(shares_NV, logits_NV)
    return normalizer_N - mean_N


def load_trainable(
    model_path: Path,
    checkpoint: Path | None,
    *,
    lora: LoraConfig | None,
    source: str,
    seed: int,
    gradient_checkpointing: bool = False,
    narrow: bool = True,
    divided: Mapping[str, Any] | None = None,
    base: Callable[[Any], Any] | None = None,
) -> Any:
    """A float32 transformers model ready to train, as it is in `checkpoint` (the base model when None).

    With `lora` the base stays frozen and only the adapter trains: the one of the checkpoint, or a fresh one whose
    random part comes from `seed` (it changes nothing until it is trained). A frozen base is kept as narrow as its file,
    unless `narrow` is off, and computes the same (:mod:`crl.learn.frozen`); `base` makes it, of a type, where it is in
    memory for several roles (`crl.engine.frozen_base`). With `divided`, the config of a DeepSpeed engine of stage 3,
    every rank keeps its share of each weight, from the moment it is read (:func:`whole` gathers them). Its `absent` are
    the ids that are no tokens (:mod:`crl.config.vocabulary`; None: there are none). `source` is the configured name of
    the model; it is written into adapters instead of a path of this machine. Raises BadInput for files that are not
    such a model, RecordDamaged where weights are missing.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    full = checkpoint if checkpoint is not None and lora is None else model_path
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: Any
            read = base or functools.partial(_read, full)
            wide = wide_in(full) if narrow and lora is not None else None
            with _divided(divided):
                model = read(torch.float32 if wide is None else "auto")
            if wide is not None and not restore(model, wide):
                model = read(torch.float32)
            # That of a checkpoint has a role's sampling.
            model.generation_config = generation_config(model_path, model.config)
            if lora is not None:
                widen(model)
                model = with_adapter(model, checkpoint, lora, source)
                compute_wide(model)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"the model of this role cannot be loaded: {error}",
                expected="a directory of a transformers causal language model"
                + (" and of a peft adapter" if lora is not None and checkpoint is not None else ""),
                where=str(checkpoint or model_path),
                next_step="check the role's `model` and `lora`, then `crl doctor`",
            ) from error
    model.eval()
    absent = absent_of(model_path, model.config)
    model.absent = torch.tensor(absent) if absent else None
    if gradient_checkpointing:
        if lora is not None:
            # The frozen embeddings give no gradient, and a checkpointed segment needs an input that has one.
            model.enable_input_require_grads()
        _checkpoint_layers(model)
    return model


def _read(directory: Path, dtype: torch.dtype | Literal["auto"]) -> Any:
    from transformers import AutoModelForCausalLM

    model, report = pretrained(AutoModelForCausalLM, directory, dtype=dtype, output_loading_info=True)
    if report["missing_keys"]:  # transformers would fill these with random numbers and only warn
        raise RecordDamaged(
            f"Weights are missing: {sorted(map(str, report['missing_keys']))}.",
            expected="every weight of the model",
            where=str(directory),
            next_step="`crl verify` names the damaged file and the command that mends it.",
        )
    return model


@contextmanager
def _divided(config: Mapping[str, Any] | None) -> Iterator[None]:
    """Inside, models that transformers loads are divided over the ranks, as this config of an engine says; None: not.

    transformers asks a config that it keeps no hold of: it ends with this block.
    """
    if config is None:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    kept = HfDeepSpeedConfig(dict(config))
    try:
        yield
    finally:
        del kept
        unset_hf_deepspeed_config()


def whole(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Inside, every rank has all of a model that is divided over them. Nothing happens to one that is not."""
    parameters = [each for each in model.parameters() if hasattr(each, "ds_id")]
    if not parameters:
        return contextlib.nullcontext()
    return import_deepspeed().zero.GatheredParameters(parameters)  # type: ignore[no-any-return]


def _checkpoint_layers(model: Any) -> None:
    """Have layers keep no activations. Transformers does so in training mode only, in which a layer may draw noise: it
    is in that mode around its forward pass, and in evaluation mode inside."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
            checkpoint = layer._gradient_checkpointing_func
            layer._gradient_checkpointing_func = functools.partial(_kept_quiet, layer, checkpoint)


def _kept_quiet(layer: Any, checkpoint: Callable[..., Any], forward: Callable[..., Any], *inputs: Any) -> Any:
    """`checkpoint(forward, *inputs)` of a layer, which computes it without noise, now and once more going backward."""

    def computed(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return checkpoint(computed, *inputs)


class Reference:
    """Log-probabilities under the base model of a role, for objectives that penalize leaving it.

    With adapters it is the same model with its adapter off, which takes no memory; full weights have a frozen copy of
    the base model beside them. The copy is whole on every rank: under ZeRO-3, whose point is that no rank holds a whole
    model, such an objective is refused.
    """

    def __init__(self, role: RoleConfig, model_path: Path, trained: ScoredModel, device: torch.device) -> None:
        """`trained` is the model under training, on `device`. Raises BadInput under ZeRO-3."""
        if role.deepspeed.zero_stage == 3:
            raise BadInput(
                "the objective compares with the base model, which ZeRO-3 would have to hold whole on every rank",
                expected="zero_stage 0, 1 or 2, or no penalty",
                where="deepspeed.zero_stage",
                next_step="lower zero_stage, or set the coefficient of the divergence (kl) to 0",
            )
        self._trained: ScoredModel | None = trained
        self._copy: ScoredModel | None = None
        if role.lora is None:
            base = load_trainable(model_path, None, lora=None, source=role.model, seed=0).requires_grad_(False)
            self._copy = ScoredModel(base, autocast=trained.autocast, way=trained.way).to(device)

    def logprobs(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Log-probabilities [B, T] of the targets; `inputs` are those of :meth:`ScoredModel.forward`."""
        with torch.no_grad():
            if self._copy is not None:
                return self._copy(*inputs)[0]  # type: ignore[no-any-return]
            assert self._trained is not None
            with self._trained.model.disable_adapter():
                return self._trained(*inputs)[0]  # type: ignore[no-any-return]

    def dispose(self) -> None:
        """Free what it holds."""
        self._trained = self._copy = None


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, equal inputs give equal gradients on a GPU, too; on a CPU nothing changes.

    Being warned only of what is not deterministic is not enough: then the backward pass of fused attention adds in any
    order, and two runs with one seed part at their first update.

    Raises:
        StageFailed: the model has an operation that torch has no deterministic algorithm for.
    """
    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault(*_CUBLAS)
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # with NaN: for finding bugs in torch, and it takes long
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise StageFailed(
            f"an operation of the model would give other gradients each time on this GPU: {error}",
            expected="operations that torch has a deterministic algorithm for, so that equal seeds give equal weights",
            where="the model of the role that is trained",
            next_step=f"set {'='.join(_CUBLAS)} before the process starts"
            if _CUBLAS[0] in str(error)
            else "train it on the CPU (CUDA_VISIBLE_DEVICES=''), or name a model of another architecture",
        ) from error
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        settings.fill_uninitialized_memory = filled
