"""What sampling and updates hold in memory, part by part, as formulas of a model's shape and a role's settings.

Bytes of one process, at the longest sequences that the config allows: estimates are meant to be reached, not passed.
The update follows `crl/learn/trainer.py` (float32 weights, torch's AdamW, DeepSpeed's ZeRO), sampling `session.py` and
`cache.py` of `crl/policies`. What an allocator, a GPU driver or a file cache adds is left out: of a model of 32 million
parameters, whose tensors are all small, glibc kept 1.2 to 1.9 times as much as was held. No tensor is made here.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from crl.config import RoleConfig
from crl.policies.machine import PASS_TOKENS, row_slots
from crl.preflight.shapes import ModelShape

FLOAT32, FLOAT16 = 4, 2
MOMENTS = {"adamw": 2, "sgd": 0}
"""Values that the optimizer keeps per trained parameter."""
PROCESS = 800 * 2**20
"""A process with torch, transformers, DeepSpeed and a small embedder, before any model."""
_BUCKETS = 2 * 50_000_000 * FLOAT32
"""Flat buffers that ZeRO reduces gradients through (`crl/learn/trainer.py` sets their size)."""
_GATHERED = 1_000_000_000
"""Parameters that ZeRO-3 keeps gathered at most: DeepSpeed's stage3_max_live_parameters."""
_HEAD_ROWS = 64
"""Rows of logits that the update has in work at one time, at most (`crl/learn/scoring.py`)."""
_DRAWN, _DRAWN_NUCLEUS = 24, 57
"""Bytes per row and id of the vocabulary while tokens are drawn (`crl/policies/sampling.py`): float32 logits and
log-probabilities, float64 probabilities and their running sum; with `top_p`, also their order and what it leaves."""


@dataclass(frozen=True, slots=True)
class SamplingMemory:
    """A role's sampling model at work."""

    weights: int
    """In the role's dtype."""
    cache: int
    """Keys and values of every row of a wave at the full context."""
    working: int
    """One pass: masks of its tokens, its widest layer; then the draw of every row."""
    loading: int
    """Above the weights while a LoRA checkpoint is merged: one matrix at a time, in float32. Where experts have
    adapters, all of them."""


@dataclass(frozen=True, slots=True)
class UpdateMemory:
    """One rank of an update."""

    weights: int
    """Float32, a frozen base in the type of its file; a share of them under ZeRO-3, and what it gathers."""
    gradients: int
    optimizer: int
    """Moments, and ZeRO's float32 partition of the weights."""
    buffers: int
    """What ZeRO reduces through."""
    activations: int
    """What the forward pass keeps of a micro-batch, with the bfloat16 copies of weights under autocast."""
    recomputed: int
    """With checkpointing: one layer at a time in the backward pass, when the head's part is gone."""
    head: int
    """Logits of the trained positions and their gradients."""
    copies: int
    """Of the trained weights, to write them: on the first rank."""
    reference: int = 0
    """The base model in float32, for an objective that compares full weights with it (`crl/learn/scoring.py`)."""

    @property
    def kept(self) -> int:
        """Held between updates."""
        return self.weights + self.optimizer + self.buffers + self.reference

    @property
    def peak(self) -> int:
        """The larger of the backward pass and of the step with writing, which comes after it."""
        return self.kept + self.gradients + max(self.activations + max(self.recomputed, self.head), self.copies)


def sampling_memory(
    shape: ModelShape, role: RoleConfig, rows: int, *, nucleus: bool, on_gpu: bool = False
) -> SamplingMemory:
    """What a role's model takes that samples `rows` rows at once, some with `top_p` where `nucleus`.

    On a CPU slots that no token is written to take no memory (`cache.RowCache`). On a GPU what is recorded
    (`pass_graph`) holds as much as a pass.

    The cache of a layer is rows × context × 2 (keys, values) × key-value width (Pope et al. 2022, arXiv 2211.05102,
    section 3.3: grouped-query attention divides it by heads per key-value head).
    """
    size = FLOAT16 if role.dtype == "bfloat16" else FLOAT32
    slots = row_slots(role.context) if on_gpu else role.context
    layer = rows * slots * 2 * shape.key_value * size
    tokens = min(rows * role.context, PASS_TOKENS)
    widest = tokens * (2 * shape.hidden + 3 * shape.chosen * shape.intermediate) * size
    # Queries that share keys have a row of the mask each.
    masks = tokens * role.context * (shape.attention // max(1, shape.key_value)) * size
    drawn = (_DRAWN_NUCLEUS if nucleus else _DRAWN) * rows * shape.vocabulary
    return SamplingMemory(
        weights=weights_bytes(shape, role),
        cache=layer * shape.layers,
        working=max((2 if on_gpu else 1) * (masks + widest), drawn),
        loading=0 if role.lora is None else _merging(shape, size),
    )


def weights_bytes(shape: ModelShape, role: RoleConfig) -> int:
    """A sampling model in the role's dtype."""
    return shape.parameters * (FLOAT16 if role.dtype == "bfloat16" else FLOAT32)


def full_context_bytes(shape: ModelShape, role: RoleConfig) -> int:
    """Keys and values of one row of a server that is full."""
    return role.context * shape.layers * 2 * shape.key_value * (FLOAT16 if role.dtype == "bfloat16" else FLOAT32)


def _merging(shape: ModelShape, size: int) -> int:
    if shape.experts > 1:
        return shape.parameters * (FLOAT32 - size)
    matrix = shape.hidden * max(shape.intermediate, shape.attention)
    return min(2 * FLOAT32 * matrix, shape.parameters * FLOAT32)


def update_memory(
    shape: ModelShape, role: RoleConfig, trained_positions: int, *, compares: bool = False
) -> UpdateMemory:
    """What one rank holds that trains a role; `trained_positions` of a sequence's tokens are trained, by an objective
    that `compares` with the base model: of adapters that is the model itself, of full weights a second one.

    With P parameters, T of them trained, N ranks: weights 4 P (a frozen base: 4 or 2 P, as in its file), gradients 4 T,
    moments 8 T, ZeRO's partition of the weights 4 T / N. Stage 1 divides the moments by N, stage 2 also the gradients,
    stage 3 also the weights (Rajbhandari et al. 2020, arXiv 1910.02054, section 5; here everything is float32, so the
    constants are 4, 4, 8).
    """
    settings, parameters, trained = role.deepspeed, shape.parameters, trained_parameters(shape, role)
    stage, ranks = settings.zero_stage, settings.ranks
    share = trained // (ranks if stage else 1)
    weights = FLOAT32 * parameters if role.lora is None or stage == 3 else frozen_bytes(shape) + FLOAT32 * trained
    if stage == 3:
        weights = weights // ranks + FLOAT32 * min(parameters, _GATHERED)
    return UpdateMemory(
        weights=weights,
        gradients=FLOAT32 * (share if stage >= 2 else trained),
        optimizer=FLOAT32 * share * (MOMENTS[role.optimizer.kind] + (1 if stage else 0)),
        buffers=min(_BUCKETS, 2 * FLOAT32 * trained) if stage else 0,
        activations=activations(shape, role),
        recomputed=layer_activations(shape, role) if settings.gradient_checkpointing else 0,
        head=head_memory(shape, role, trained_positions),
        copies=FLOAT32 * trained,
        reference=FLOAT32 * parameters if compares and role.lora is None else 0,
    )


def trained_parameters(shape: ModelShape, role: RoleConfig) -> int:
    """Parameters that an update changes."""
    return shape.parameters if role.lora is None else shape.adapter_parameters(role.lora)


def frozen_bytes(shape: ModelShape) -> int:
    """A frozen base: linear layers and embeddings in the type of its file, experts, which are no such layers, in
    float32 (`crl/learn/frozen.py`)."""
    experts = min(shape.expert_parameters, shape.parameters)
    return shape.size * (shape.parameters - experts) + FLOAT32 * experts


def read_bytes(shape: ModelShape, role: RoleConfig) -> int:
    """What a rank has read when its model is complete: all of it, or under ZeRO-3 its share (`load_trainable`)."""
    if role.deepspeed.zero_stage == 3:
        return FLOAT32 * shape.parameters // role.deepspeed.ranks
    return FLOAT32 * shape.parameters if role.lora is None else frozen_bytes(shape)


def checkpoint_bytes(shape: ModelShape, role: RoleConfig) -> int:
    """A checkpoint on disk: float32 weights that are trained, and their moments, over all ranks."""
    return FLOAT32 * trained_parameters(shape, role) * (1 + MOMENTS[role.optimizer.kind])


def handed_over_bytes(shape: ModelShape, role: RoleConfig) -> int:
    """The weights that a server is given, in a folder: in the role's dtype, with an output head of their own."""
    head = shape.vocabulary * shape.hidden if shape.tied else 0
    return (shape.parameters + head) * (FLOAT16 if role.dtype == "bfloat16" else FLOAT32)


def activations(shape: ModelShape, role: RoleConfig) -> int:
    """What the forward pass of a micro-batch keeps for the backward pass, without the head.

    Counted per token and layer over the operations of a Llama layer (norm, attention, norm, gated feed-forward), as
    Korthikanti et al. 2022 (arXiv 2205.05198, section 4) do for GPT, with an attention that keeps no square matrix.
    In float32 the two norms keep input, normalized input and output (6 widths); attention its queries, keys, values and
    output, and the output projection its input; the feed-forward gate, activation, up and their product. Under autocast
    each linear layer keeps a bfloat16 copy of its input instead. Frozen norms keep one width less each. With
    checkpointing every layer keeps its float32 input.
    """
    tokens = role.deepspeed.micro_batch * role.context
    half, frozen = role.deepspeed.autocast == "bfloat16", role.lora is not None
    kept = role.deepspeed.gradient_checkpointing
    if frozen and shape.size == FLOAT16 and shape.experts == 1 and role.deepspeed.zero_stage < 3:
        copies = 0 if half else FLOAT32 * shape.widest  # already bfloat16; else one is widened at a time
    elif half and frozen and kept:
        copies = FLOAT16 * (shape.layer_parameters + shape.vocabulary * shape.hidden)
    else:  # autocast makes bfloat16 copies, which the graph (or, of trained weights, its cache) holds
        copies = FLOAT16 * shape.matrix_parameters if half else 0
    each = tokens * shape.hidden * FLOAT32 if kept else layer_activations(shape, role)
    return shape.layers * each + copies


def layer_activations(shape: ModelShape, role: RoleConfig) -> int:
    """What one layer keeps of a micro-batch where nothing is computed again."""
    tokens = role.deepspeed.micro_batch * role.context
    half, frozen = role.deepspeed.autocast == "bfloat16", role.lora is not None
    norms = {(False, False): 24, (False, True): 16, (True, False): 26, (True, True): 18}[half, frozen] * shape.hidden
    size = FLOAT16 if half else FLOAT32
    intermediate = shape.chosen * shape.intermediate
    return tokens * (norms + size * (3 * shape.attention + 2 * shape.key_value + 4 * intermediate))


def head_memory(shape: ModelShape, role: RoleConfig, trained_positions: int) -> int:
    """Logits of the trained positions and their gradient, in the head's precision, and some float32 rows at work."""
    size = FLOAT16 if role.deepspeed.autocast == "bfloat16" else FLOAT32
    positions = role.deepspeed.micro_batch * trained_positions
    return shape.vocabulary * (2 * size * positions + 10 * FLOAT32 * min(positions, _HEAD_ROWS))


def parts_of(memory: SamplingMemory | UpdateMemory) -> dict[str, int]:
    """The parts by name, in order."""
    return dict(zip(memory.__dataclass_fields__, astuple(memory), strict=True))
