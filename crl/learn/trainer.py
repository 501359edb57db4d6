"""The update: one optimizer step over a batch of samples, on the DeepSpeed engine (ZeRO 0 to 3).

:class:`Trainer` holds a role's model, optimizer and engine. It reads samples and writes a checkpoint directory (layout
in `checkpoint`); it knows nothing of rounds or of the record. Several may live in one process, one after another or
side by side; :meth:`Trainer.dispose` frees what one holds.
"""

from __future__ import annotations

import functools
import gc
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import compress
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from safetensors import safe_open

from crl.config import RoleConfig
from crl.config.models import Update, check_context, weight_files
from crl.errors import BadInput, NotDeepSpeed, StageFailed
from crl.learn import checkpoint as checkpoints
from crl.learn.adapters import add_to_base
from crl.learn.batches import MicroBatch, check_sample, collate, cut, has_gradient, trained_tokens
from crl.learn.mismatch import mismatch
from crl.learn.objectives import Statistics
from crl.learn.optimizers import Moved, learning_rate, make_optimizer
from crl.learn.process_group import import_deepspeed, join
from crl.learn.scoring import Reference, ScoredModel, deterministic, inputs_of, load_trainable
from crl.learn.terms import Objective
from crl.protocols import Factors, Reading
from crl.records import Sample

_BUCKET_ELEMENTS = 50_000_000
"""Elements that ZeRO reduces at once: DeepSpeed's default of 5e8 reserves 2 GB, too much for a laptop."""

_KEPT_ELEMENTS = _BUCKET_ELEMENTS
"""Trained numbers up to which a measured gradient is kept for the step: adapters, not whole large models."""

Gradients = dict[str, torch.Tensor]


@dataclass
class _Measured:
    """What passes over a batch gave that took each objective alone."""

    reached: list[torch.nn.Parameter]
    """Parameters that had a gradient on any rank."""
    gradients: dict[str, list[torch.Tensor]]
    """By objective: of each of these, over all ranks."""
    sums: dict[str, tuple[float, Statistics]]
    """By objective: loss and statistics of this rank."""


class Trainer:
    """A role's model on a DeepSpeed engine, ready to update. Construct it on every rank with the same arguments.

    Args:
        role: model, LoRA, optimizer and DeepSpeed settings.
        model_path: directory of the base model (transformers layout).
        checkpoint: weights to start from; with optimizer state it resumes bit by bit, without (a supervised start) the
            optimizer starts fresh. None starts from the base model.
        threads: CPU threads of this process.
        seed: of a fresh adapter's random part.
        way: how samples are read (`ScoredModel`).
        base: makes the frozen base of a type where it is in memory for several roles (`crl.engine.frozen_base`). Where
            these sample in float32, updates take it so, too: widening changes no number and takes time.

    Raises:
        BadInput: the model cannot be loaded, has no positions for the context, or is computed exactly in no way, or the
            number of processes is not the configured one.
        FrozenMethodChanged: the optimizer state was made with other engine settings.
        NotDeepSpeed: what DeepSpeed returned is not its engine.
    """

    def __init__(
        self,
        role: RoleConfig,
        *,
        model_path: Path,
        checkpoint: Path | None,
        threads: int,
        seed: int = 0,
        way: Update | None = None,
        base: Callable[[Any], Any] | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.role = role
        self._ranks = join()
        settings = role.deepspeed
        if self._ranks.size != settings.ranks:
            raise BadInput(
                f"this engine has {self._ranks.size} processes",
                expected=f"{settings.ranks}, the role's deepspeed.ranks",
                next_step="start as many processes under the launcher as the config says",
            )
        model = load_trainable(
            model_path,
            checkpoint,
            lora=role.lora,
            source=role.model,
            seed=seed,
            gradient_checkpointing=settings.gradient_checkpointing,
            # ZeRO-3 takes weights away between passes, and a narrow product holds on to its own.
            narrow=settings.zero_stage < 3 and (base is None or role.engine.SERVED or role.dtype != "float32"),
            divided=_engine_config(role) if loads_divided(role, checkpoint or model_path) else None,
            base=base,
        )
        if role.lora is not None and settings.zero_stage < 3:
            add_to_base(model)
        check_context(model.config, role.model, role.context)
        scored = ScoredModel(model, autocast=settings.autocast, way=way, context=role.context)
        trainable = [parameter for parameter in scored.parameters() if parameter.requires_grad]
        self._optimizer = make_optimizer(role.optimizer, trainable)
        self._moved = Moved(self._optimizer)
        engine, *_ = import_deepspeed().initialize(
            model=scored,
            optimizer=self._optimizer,
            model_parameters=trainable,
            config=_engine_config(role, sum(getattr(each, "ds_numel", each.numel()) for each in trainable)),
            dist_init_required=False,
        )
        self._engine = require_deepspeed(engine)
        self._parts = self._stepped_tensors(trainable)
        self._model_path = model_path
        self._shares_base = base is not None
        self._rests = False
        self._reference: Reference | None = None
        self._signature = {"zero_stage": settings.zero_stage, "ranks": settings.ranks, "kind": role.optimizer.kind}
        self._updates = 0
        """Steps that the optimizer has taken, in this process or before: the warm-up goes by them."""
        updates = None if checkpoint is None else checkpoints.optimizer_updates(checkpoint, self._signature)
        if checkpoint is not None and updates is not None:
            checkpoints.load_optimizer(self._optimizer, self._parts, checkpoint, self._state_rank)
            self._updates = updates

    @property
    def way(self) -> Update:
        """How samples are read."""
        return self._engine.module.way  # type: ignore[no-any-return]

    # -- the update ------------------------------------------------------------------------------------------------

    @deterministic()
    def update(
        self,
        samples: Sequence[Sample],
        objectives: Mapping[str, Objective],
        *,
        stale: Set[str] = frozenset(),
        proximal: Mapping[str, torch.Tensor] | None = None,
        factors: Factors | None = None,
        inspect: Callable[[Gradients], None] | None = None,
    ) -> dict[str, float]:
        """One optimizer step that minimizes the sum of the samples' objectives, each by its name and times its factor;
        the same metrics on every rank.

        Every rank gets all samples and works on its share. Gradients equal those of one process in one batch: each
        objective's normalizer is taken over all samples, and DeepSpeed's mean over ranks is undone. Samples that cannot
        change the weights (advantage or weight 0) are not run. When none can, **no step is taken** (`stepped` 0):
        momentum from earlier rounds must not move the weights when this round says nothing.

        `stale` are ids of samples of the round that older weights wrote than those it begins with: `mismatch_kl` leaves
        them out, as it does samples of earlier rounds.
        `proximal` is of :meth:`proximal`, where this is not the only step of an update.
        `factors` multiply the weights of samples by their objective. A function gets the norm of each objective's
        gradient, alone and unscaled, and says them; small gradients are kept, so that the samples are read once.
        `inspect` is called on every rank with the whole gradients by parameter name, before clipping and stepping.
        Raises RecordDamaged for a sample that cannot have been sampled, StageFailed when the loss or the gradient is
        not finite (nothing is saved then).
        """
        for sample in samples:
            check_sample(sample)
        active = _active(samples, objectives)
        measured = None
        if callable(factors):
            norms: dict[str, float] = {}
            if active:
                norms, measured = self._measure(samples, active, objectives, stale, proximal or {})
            factors = factors(norms)
        metrics = {
            "samples": float(len(samples)),
            "samples_without_gradient": float(len(samples) - len(active)),
            "stepped": float(bool(active)),
        }
        if not active:
            return metrics
        if measured is not None:
            sums = self._take(measured, factors or {})
        else:
            if factors:
                active = [replace(each, weight=each.weight * factors.get(each.objective, 1.0)) for each in active]
            sums = self._accumulate(samples, active, objectives, stale, proximal or {})
        loss = sum(each for each, _ in sums.values())
        if not math.isfinite(loss):
            raise self._not_finite("loss", loss)
        if inspect is not None:
            inspect(self._gradients())
        norm = self._plain_gradient_norm()
        self._moved.squared = 0.0
        rate = learning_rate(self.role.optimizer, self._updates + 1)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        self._updates += 1
        if norm is None:
            norm = float(self._engine.get_global_grad_norm() or 0.0)
        if not math.isfinite(norm):
            raise self._not_finite("gradient norm", norm)
        # Ratios are those of the policy objectives: next-token samples beside them have none.
        on_policy = [kind for kind in sums if objectives[kind].on_policy] or list(sums)
        statistics = functools.reduce(operator.add, (sums[kind][1] for kind in on_policy))
        for kind in sums.keys() - set(on_policy):
            metrics |= {f"{kind}_loss": sums[kind][0], f"{kind}_tokens": sums[kind][1].tokens}
        tokens = max(statistics.tokens, 1.0)
        metrics |= {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "update_norm": self._update_norm(),
            "tokens": statistics.tokens,
            "ratio_mean": statistics.ratio_sum / tokens,
            "ratio_max": statistics.ratio_max,
            "clipped_low": statistics.clipped_low / tokens,
            "clipped_high": statistics.clipped_high / tokens,
            "logprob_mismatch": statistics.mismatch_sum / tokens,
            "entropy": statistics.entropy_sum / tokens,
        }
        if any(objectives[kind].reference for kind in sums):
            metrics["reference_kl"] = statistics.reference_sum / tokens
        if statistics.fresh_tokens:
            metrics["mismatch_kl"] = statistics.kl_sum / statistics.fresh_tokens
        return metrics

    @deterministic()
    def proximal(self, samples: Sequence[Sample], objectives: Mapping[str, Objective]) -> dict[str, torch.Tensor]:
        """Log-probabilities [T] under the weights as they are, by sample id: of the samples of this rank that
        objectives with a correction train in a step over `samples` (`mismatch`). Read as the step reads them, so that
        before the first one each ratio is exactly 1."""
        active = _active(samples, objectives)
        found: dict[str, torch.Tensor] = {}
        if not any(objectives[sample.objective].corrects for sample in active):
            return found
        for share, batch in self._micro_batches(active, frozenset()):
            with torch.no_grad():
                logprobs_BT, *_ = self._engine.module(*inputs_of(batch))
            for sample, row_T in zip(share, logprobs_BT, strict=False):
                found[sample.sample_id] = row_T[: len(sample.token_ids) - 1]
        return found

    @deterministic()
    def read(self, samples: Sequence[Sample], *, likeliest: int = 0) -> dict[str, Reading]:
        """What the weights as they are give to the trained tokens of each sample, by sample id, on every rank; and to
        so many of the `likeliest` ids in place of each. Computed as an update computes it; log-probabilities that the
        samples bring are not used."""
        for sample in samples:
            check_sample(sample)
        own: dict[str, Reading] = {}
        for share, batch in self._micro_batches(samples, frozenset()) if samples else ():
            with torch.no_grad():
                logprobs_BT, _, *more = self._engine.module(*inputs_of(batch), likeliest=likeliest)
            tops = [each.split([trained_tokens(sample) for sample in share]) for each in more] if share else []
            for place, (sample, row_T) in enumerate(zip(share, logprobs_BT.tolist(), strict=False)):
                values, ids = (each[place].tolist() for each in tops) if tops else ([], [])
                own[sample.sample_id] = Reading(list(compress(row_T, sample.loss_mask[1:])), ids, values)
        if self._ranks.size == 1:
            return own
        shares: list[Any] = [None] * self._ranks.size
        dist.all_gather_object(shares, own)
        return {name: reading for share in shares for name, reading in share.items()}

    def _measure(
        self,
        samples: Sequence[Sample],
        active: Sequence[Sample],
        objectives: Mapping[str, Objective],
        stale: Set[str],
        proximal: Mapping[str, torch.Tensor],
    ) -> tuple[dict[str, float], _Measured | None]:
        """Norm of the gradient of each objective alone, on every rank, and the gradients where they are small: backward
        passes that leave the optimizer and the engine as they were."""
        trainable = self._trainable()
        kinds = sorted({sample.objective for sample in active})
        shapes = [getattr(each, "ds_shape", each.shape) for each in trainable]
        sums = {kind: [torch.zeros(each, device=self._ranks.device) for each in shapes] for kind in kinds}
        reached = torch.zeros(len(trainable), device=self._ranks.device)

        def backward(kind: str, loss: torch.Tensor, *, last: bool) -> None:
            parts = torch.autograd.grad(loss, trainable, allow_unused=True)
            for place, part in enumerate(parts):
                if part is not None:
                    sums[kind][place] += part
                    reached[place] = 1

        of_rank = self._passes(self._engine.module, samples, active, objectives, stale, proximal, backward)
        if self._ranks.size > 1:
            for total in (*(each for kind in kinds for each in sums[kind]), reached):
                dist.all_reduce(total)
        norms = {kind: float(torch.nn.utils.get_total_norm(sums[kind])) for kind in kinds}
        if sum(map(math.prod, shapes)) > _KEPT_ELEMENTS or self.role.deepspeed.zero_stage == 3:
            return norms, None
        kept = {kind: list(compress(sums[kind], reached.tolist())) for kind in kinds}
        return norms, _Measured(list(compress(trainable, reached.tolist())), kept, of_rank)

    def _take(self, measured: _Measured, factors: Mapping[str, float]) -> dict[str, tuple[float, Statistics]]:
        """Give the engine the gradients that were measured, each times its objective's factor: those of a loss that is
        linear in the parameters. Every rank has the whole, and DeepSpeed's mean over ranks leaves it."""
        scales = [factors.get(kind, 1.0) for kind in measured.gradients]
        loss = torch.zeros((), device=self._ranks.device)
        for parameter, *parts in zip(measured.reached, *measured.gradients.values(), strict=True):
            total = sum(scale * part for scale, part in zip(scales, parts, strict=True))
            loss = loss + (parameter * total).sum()
        self._engine.set_gradient_accumulation_boundary(True)
        self._engine.backward(loss, scale_wrt_gas=False)
        return {
            kind: self._over_ranks(factors.get(kind, 1.0) * total, counted)
            for kind, (total, counted) in measured.sums.items()
        }

    def _trainable(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self._engine.module.parameters() if parameter.requires_grad]

    def _loss(
        self,
        model: Any,
        share: Sequence[Sample],
        batch: MicroBatch,
        term: Callable[..., tuple[torch.Tensor, Statistics]],
        objective: Objective,
        normalizer: float,
        proximal: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor, Statistics]:
        """Of a micro-batch: its part of the loss, and what is counted of it."""
        inputs = inputs_of(batch)
        if objective.reference:
            batch = replace(batch, reference_BT=self._base().logprobs(inputs))
        if proximal and objective.corrects:
            batch = replace(batch, proximal_BT=_padded(share, proximal, batch))
        logprobs_BT, entropy_BT, *more = model(*inputs)
        if objective.entropy:
            batch = replace(batch, entropy_BT=entropy_BT)
        if more:
            batch = replace(batch, logprobs_NK=more[0])
        loss, counted = term(batch, logprobs_BT, objective.config, normalizer)
        if objective.on_policy and share:
            fresh, divergence = mismatch(logprobs_BT, batch)
            entropy = float(entropy_BT.detach().sum())
            counted = replace(counted, fresh_tokens=fresh, kl_sum=divergence, entropy_sum=entropy)
        return loss, counted

    def _micro_batches(self, active: Sequence[Sample], stale: Set[str]) -> Iterator[tuple[list[Sample], MicroBatch]]:
        """The micro-batches of this rank: as many as every rank has, the last ones maybe without samples. Then the
        tensors are a dummy's, for a rank that has run out still takes part in every collective operation."""
        shares = cut(active, self.role.deepspeed.micro_batch, self._ranks.size, way=self.way)
        for share in shares[self._ranks.rank]:
            rows = share or [min(active, key=lambda sample: len(sample.token_ids))]
            yield share, collate(rows, stale).to(self._ranks.device)

    def _accumulate(
        self,
        samples: Sequence[Sample],
        active: Sequence[Sample],
        objectives: Mapping[str, Objective],
        stale: Set[str],
        proximal: Mapping[str, torch.Tensor],
    ) -> dict[str, tuple[float, Statistics]]:
        """Backward passes over this rank's micro-batches; loss and statistics of each objective over all ranks."""

        def backward(kind: str, loss: torch.Tensor, *, last: bool) -> None:
            self._engine.set_gradient_accumulation_boundary(last)
            self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

        sums = self._passes(self._engine, samples, active, objectives, stale, proximal, backward)
        return {kind: self._over_ranks(*each) for kind, each in sums.items()}

    def _passes(
        self,
        model: Any,
        samples: Sequence[Sample],
        active: Sequence[Sample],
        objectives: Mapping[str, Objective],
        stale: Set[str],
        proximal: Mapping[str, torch.Tensor],
        backward: Callable[..., None],
    ) -> dict[str, tuple[float, Statistics]]:
        """Go over this rank's micro-batches, `backward` with each; loss and statistics of each objective here."""
        kinds = sorted({sample.objective for sample in active})
        terms = {kind: self._term(kind, objectives) for kind in kinds}
        normalizers = {kind: _normalizer(samples, kind) for kind in kinds}
        # The same objectives in the same order on every rank, whatever micro-batches it got.
        sums = {kind: (0.0, Statistics()) for kind in kinds}
        steps = list(self._micro_batches(active, stale))
        for step, (share, batch) in enumerate(steps):
            kind = batch.objective
            loss, counted = self._loss(model, share, batch, terms[kind], objectives[kind], normalizers[kind], proximal)
            if share:
                total, statistics = sums[kind]
                sums[kind] = total + float(loss.detach()), statistics + counted
            else:  # a rank that has run out goes backward, too: ZeRO-3 gathers weights on the way
                loss = loss * 0.0
            backward(kind, loss, last=step == len(steps) - 1)
        return sums

    def _base(self) -> Reference:
        if self._reference is None:
            self._reference = Reference(self.role, self._model_path, self._engine.module, self._ranks.device)
        return self._reference

    def _term(self, kind: str, objectives: Mapping[str, Objective]) -> Callable[..., tuple[torch.Tensor, Statistics]]:
        if kind not in objectives:
            raise BadInput(
                f"a sample has the objective {kind!r}",
                expected=f"one of {', '.join(sorted(objectives))}, the objectives of the recipe",
                where=f"role {self.role.model}",
            )
        return objectives[kind].load()

    def _over_ranks(self, loss: float, statistics: Statistics) -> tuple[float, Statistics]:
        if self._ranks.size == 1:
            return loss, statistics
        names = [field.name for field in fields(Statistics)]
        values = [loss, *(getattr(statistics, name) for name in names)]
        sums = torch.tensor(values, dtype=torch.float64, device=self._ranks.device)
        largest = torch.tensor(statistics.ratio_max, dtype=torch.float64, device=self._ranks.device)
        dist.all_reduce(sums)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        loss, *counts = sums.tolist()
        return loss, Statistics(**{**dict(zip(names, counts, strict=True)), "ratio_max": float(largest)})

    def _gradients(self) -> Gradients:
        from deepspeed.utils import safe_get_full_grad

        found: Gradients = {}
        for name, parameter in self._engine.module.named_parameters():
            gradient = safe_get_full_grad(parameter) if parameter.requires_grad else None
            if gradient is not None:
                found[name.removeprefix("model.")] = gradient.detach().float().cpu().clone()
        return found

    def _plain_gradient_norm(self) -> float | None:
        """Norm of the whole gradient without ZeRO, before clipping; ZeRO reports its own after the step."""
        if self.role.deepspeed.zero_stage > 0:
            return None
        gradients = [part.grad for part in self._parts if part.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _update_norm(self) -> float:
        """Norm of the step just taken, over all ranks."""
        squared = self._moved.squared
        if self.role.deepspeed.zero_stage > 0 and self._ranks.size > 1:
            shared = torch.tensor(squared, dtype=torch.float64, device=self._ranks.device)
            dist.all_reduce(shared)
            squared = float(shared)
        return math.sqrt(squared)

    def _not_finite(self, what: str, value: float) -> StageFailed:
        return StageFailed(
            f"the {what} of the update is {value}",
            expected="a finite number",
            where=f"role {self.role.model}",
            next_step="the weights before this update are intact on disk; lower "
            "method.roles.ROLE.optimizer.learning_rate, or clip gradients",
        )

    # -- weights and state -----------------------------------------------------------------------------------------

    def _stepped_tensors(self, trainable: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        """The float32 tensors that the optimizer steps on this rank: parameters, or ZeRO's flat partitions of them."""
        stage, zero = self.role.deepspeed.zero_stage, self._engine.optimizer
        if stage == 0:
            return list(trainable)
        parts: list[torch.Tensor] = (
            zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        )
        return list(parts)

    @property
    def _state_rank(self) -> int:
        """Whose optimizer state this rank reads: without ZeRO all ranks have the same, and rank 0 writes it."""
        return self._ranks.rank if self.role.deepspeed.zero_stage > 0 else 0

    def weights(self, *, copied: bool = True) -> Gradients:
        """Whole tensors of a checkpoint by name, on the CPU: the trainable ones; without LoRA all, with persistent
        buffers. Every rank must call it (ZeRO-3 gathers); one that needs none says so, and copies none."""
        deepspeed = import_deepspeed()
        whole = {}
        for name, parameter in self._engine.module.named_parameters():
            if not parameter.requires_grad and self.role.lora is not None:
                continue
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.role.deepspeed.zero_stage == 3):
                if copied:
                    whole[name.removeprefix("model.")] = parameter.detach().to("cpu", copy=True)
        if copied and self.role.lora is None:
            for name, buffer in checkpoints.persistent_buffers(self._engine.module).items():
                whole[name.removeprefix("model.")] = buffer.detach().to("cpu", copy=True)
        return whole

    def save(self, directory: Path) -> None:
        """Write the checkpoint (layout in `checkpoint`). Every rank must call it, with one directory they all see.

        Equal updates write equal bytes. Returns when all ranks have written.
        """
        whole = self.weights(copied=self._ranks.rank == 0)
        if self._ranks.rank == 0:
            checkpoints.save_weights(self._engine.module.model, whole, directory)
            checkpoints.write_engine(directory, self._signature, self._updates)
        if self._ranks.rank == self._state_rank:
            checkpoints.save_optimizer(self._optimizer, self._parts, directory, self._ranks.rank)
        if self._ranks.size > 1:
            dist.barrier()

    def rest(self) -> bool:
        """Move everything that it holds into the machine's memory, pinned, until :meth:`wake`; on every rank.

        False, and nothing is moved, where it can only be disposed of: DeepSpeed moves what ZeRO 1 and 2 step (of stage
        3 it does so for optimizers of its own), a base that others stand on is not this trainer's to move, and there
        has to be room for twice as much.
        """
        if self._rests:
            return True
        module, states = self._engine.module, self._optimizer.state.values()
        tensors = [*module.parameters(), *module.buffers(), *self._parts]
        tensors += [each for state in states for each in state.values() if isinstance(each, torch.Tensor)]
        room = psutil.virtual_memory().available > 2 * sum(each.nbytes for each in tensors)
        if self.role.deepspeed.zero_stage not in (1, 2) or self._shares_base or not self._agree(room):
            return False
        if self._reference is not None:
            self._reference.dispose()
            self._reference = None
        self._engine.offload_states()
        self._move_frozen("cpu")
        self._rests = True
        return True

    def wake(self) -> None:
        """Move everything back."""
        if self._rests:
            self._engine.reload_states()
            self._move_frozen(self._ranks.device)
            self._rests = False

    def _move_frozen(self, device: torch.device | str) -> None:
        module = self._engine.module
        for each in (*module.parameters(), *module.buffers()):
            if not each.requires_grad:
                each.data = each.data.to(device)

    def _agree(self, here: bool) -> bool:
        """Whether something is so on every rank."""
        if self._ranks.size == 1:
            return here
        everywhere = torch.tensor(int(here), device=self._ranks.device)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        return bool(everywhere)

    def from_first(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        told = [text]
        if self._ranks.size > 1:
            dist.broadcast_object_list(told, src=0, device=self._ranks.device)
        return told[0]

    def dispose(self) -> None:
        """Free the model, the optimizer and the engine. The trainer may not be used afterward."""
        zero, module = self._engine.optimizer, self._engine.module
        if self._reference is not None:
            self._reference.dispose()
        self._engine.destroy()
        # Hooks inside autograd hold the engine in cycles that the collector cannot see: empty what they hold.
        for parameter in module.parameters():
            parameter.data = torch.empty(0)
            parameter.grad = None
            vars(parameter).clear()
        module.model = None
        for holder in (zero, self._engine, self._optimizer):
            vars(holder).clear()
        self._engine = None
        self._parts = []
        gc.collect()


def _normalizer(samples: Sequence[Sample], kind: str) -> float:
    """Trained tokens of all samples of an objective."""
    return float(sum(trained_tokens(sample) for sample in samples if sample.objective == kind))


def _active(samples: Sequence[Sample], objectives: Mapping[str, Objective]) -> list[Sample]:
    """The samples to run, in their order: those that can change the weights. A penalty for leaving the base model and a
    bonus for entropy act on samples without an advantage as well, but do not make a step alone."""
    if not any(has_gradient(sample) for sample in samples):
        return []
    compared = {name for name, objective in objectives.items() if objective.reference or objective.entropy}
    return [
        sample
        for sample in samples
        if has_gradient(sample) or (sample.objective in compared and sample.weight and trained_tokens(sample))
    ]


def _padded(samples: Sequence[Sample], proximal: Mapping[str, torch.Tensor], batch: MicroBatch) -> torch.Tensor:
    """The samples' proximal log-probabilities [B, T]; 0 where there is no token, and in a dummy."""
    found_BT = torch.zeros_like(batch.behavior_BT)
    for row_T, sample in zip(found_BT, samples, strict=False):
        row_T[: len(sample.token_ids) - 1] = proximal[sample.sample_id]
    return found_BT


def require_deepspeed(engine: Any) -> Any:
    """The engine, if it is DeepSpeed's; a silent fallback to plain training is an error."""
    deepspeed = import_deepspeed()
    if not isinstance(engine, deepspeed.DeepSpeedEngine):
        raise NotDeepSpeed(
            f"the engine of this update is {type(engine).__module__}.{type(engine).__qualname__}",
            expected="a deepspeed.DeepSpeedEngine",
            next_step="check the installation with `crl doctor`",
        )
    return engine


def loads_divided(role: RoleConfig, weights: Path) -> bool:
    """Whether each rank keeps its share only, from the moment that weights are read from a directory.

    Ranks map float32 files and share what is mapped, which takes less memory than shares of their own and what they are
    gathered in. Of narrow files each rank would have a float32 copy. Packed ones (fp8) are not divided while they are
    unpacked. A frozen base is loaded whole: peft wraps what is there.
    """
    settings = role.deepspeed
    if settings.zero_stage < 3 or settings.ranks == 1 or role.lora is not None:
        return False
    with safe_open(weight_files(weights)[0], "pt") as file:
        types = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return bool(types & {"BF16", "F16"}) and types <= {"BF16", "F16", "F32"}


def _engine_config(role: RoleConfig, trained: int = _BUCKET_ELEMENTS) -> dict[str, Any]:
    """Settings of an engine that trains so many parameters."""
    settings, bucket = role.deepspeed, min(trained, _BUCKET_ELEMENTS)
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.zero_stage > 0:
        zero |= {"overlap_comm": False, "contiguous_gradients": True, "reduce_bucket_size": bucket}
        zero["allgather_bucket_size"] = bucket
    return {
        "train_micro_batch_size_per_gpu": settings.micro_batch,
        # Accumulation is driven by explicit boundaries; 1 keeps DeepSpeed from dividing by it.
        "gradient_accumulation_steps": 1,
        "gradient_clipping": role.optimizer.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
    }
