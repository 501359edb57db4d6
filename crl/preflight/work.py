"""How much there is to compute in a round, and how long that takes at a pace that was measured: formulas only.

Lengths are those of full contexts (`longest`), which only the longest episodes reach, or what the recipe found in a few
games (`crl/rounds/lengths.py`). Environments, the bank and the checks of the data are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crl.config import RoleConfig, RoundOutputs
from crl.policies.pace import Pace, learning_passes
from crl.preflight.memory import FLOAT16, FLOAT32
from crl.preflight.shapes import ModelShape
from crl.rounds.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Work:
    """What a role has to do in a round."""

    read_and_sampled: int
    """Tokens read and sampled, but for evaluations."""
    sampling_flops: int
    """Of all these tokens but what several outputs share, which is read once."""
    reading_flops: int
    """Of those that the model does not write itself, and of attention by all of them."""
    weight_bytes: int
    """Read by the passes that add one token to each row: all weights, every time."""
    update_flops: int
    ranks: int
    evaluation: float = 0.0
    """What one evaluation plays, as a multiple of what is sampled in a round."""
    evaluations: float = 0.0
    """How many a round has, on average."""
    shards: int = 1
    """Engines that have parts of what is sampled."""
    engine_gpus: int = 1
    """How many each of them uses."""

    @property
    def _times_sampled(self) -> float:
        """All that a round samples, evaluations on average, as a multiple of what it samples without them."""
        return 1 + self.evaluation * self.evaluations

    @property
    def tokens(self) -> int:
        """Tokens read and sampled in a round, those of evaluations on average."""
        return round(self.read_and_sampled * self._times_sampled)

    @property
    def flops(self) -> int:
        """Floating-point operations of a round, those of evaluations on average."""
        return round(self.sampling_flops * self._times_sampled) + self.update_flops

    def seconds(self, pace: Pace) -> float:
        """Of a round, those of evaluations on average."""
        return self.sampling(pace) * self._times_sampled + self.update(pace)

    def sampling(self, pace: Pace) -> float:
        """Seconds to sample what a round does, without evaluations.

        Reading tokens is bound by arithmetic, the passes of one token by reading the weights. Shards go side by side as
        far as there are GPUs for them.
        """
        alone = self.reading_flops / pace.reading + self.weight_bytes / pace.sampling
        return alone / max(1, min(self.shards, pace.devices // self.engine_gpus))

    def update(self, pace: Pace) -> float:
        """Seconds to learn what a round does."""
        return self.update_flops / (pace.learning * min(self.ranks, pace.devices))


def work_of(
    shape: ModelShape,
    role: RoleConfig,
    lengths: Lengths,
    outputs: RoundOutputs,
    *,
    rows: int,
    evaluated: tuple[int, int] = (0, 0),
    shared: tuple[int, int] = (1, 1),
) -> Work:
    """The work of a role that makes and learns so many outputs of such lengths, `rows` side by side in each engine.

    `evaluated`: (episodes that it plays in an evaluation, rounds from one to the next). They cost what others cost;
    where an evaluation has many short waves, their passes take longer than this says. `shared`: (shards that have a
    part, GPUs that each uses).

    A forward pass costs 2 FLOPs a parameter and token, and 2 × 2 × width a layer, token and token attended to; half of
    an output is attended to on average (Kaplan et al. 2020, arXiv 2001.08361, section 2.1); a backward pass:
    `learning_passes`. The vocabulary head runs where a token is sampled or trained.
    """
    written = 2 * shape.layers * shape.layer_parameters * lengths.sampled
    body = 2 * shape.layers * (shape.layer_parameters + shape.attention * lengths.tokens)
    head = lengths.sampled * 2 * shape.vocabulary * shape.hidden
    passes = learning_passes(role) * role.optimizer.passes
    size = FLOAT16 if role.dtype == "bfloat16" else FLOAT32
    return Work(
        read_and_sampled=round(outputs.sampled * lengths.tokens),
        sampling_flops=round(outputs.sampled * (lengths.read * body + head)),
        reading_flops=round(outputs.sampled * (lengths.read * body - written)),
        weight_bytes=round(-(-outputs.sampled // rows) * lengths.sampled * shape.matrix_parameters * size),
        update_flops=round(passes * outputs.trained * (lengths.computed * body + head)),
        ranks=role.deepspeed.ranks,
        evaluation=evaluated[0] / outputs.sampled if outputs.sampled else 0.0,
        evaluations=1 / evaluated[1] if evaluated[1] else 0.0,
        shards=shared[0],
        engine_gpus=shared[1],
    )


def longest(role: RoleConfig, new: int) -> Lengths:
    """Outputs that fill the context, `new` tokens of it written by the model, of which none shares anything."""
    return Lengths(role.context, new, role.context, role.context)


def seconds_of(work: Mapping[str, Work], paces: Mapping[str, Pace]) -> float:
    """Seconds of a round: what its roles do is done one after the other. Both by role."""
    return sum(each.seconds(paces[name]) for name, each in work.items())


def longest_stage(work: Mapping[str, Work], owners: Mapping[str, str], paces: Mapping[str, Pace]) -> float:
    """Seconds of the longest stage, at most: a role samples or is evaluated, or weights learn from all roles that have
    them (`owners`)."""
    updates: dict[str, float] = {}
    sampling = [each.sampling(paces[name]) * max(1.0, each.evaluation) for name, each in work.items()]
    for name, each in work.items():
        updates[owners[name]] = updates.get(owners[name], 0.0) + each.update(paces[name])
    return max(*sampling, *updates.values())
