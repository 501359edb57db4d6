"""What the engines of a run hold while episodes are played, and in each update: as `crl/engine/services.py` does it.

Bytes by part. Which engines share a GPU is in `placement`, what a model takes by itself in `memory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crl.config import Method
from crl.preflight.memory import SamplingMemory, UpdateMemory, parts_of
from crl.preflight.placement import EngineLoad

PLAYING = "sampling"
"""The moment in which episodes are played and read; all others are updates."""
KEPT = "kept trainer"
"""The part that a trainer keeps from one update to the next."""
Moments = dict[str, dict[str, int]]
"""Bytes by part, in each moment."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a method: what they hold depends on the roles that they sample for and the weights they update.

    A trainer stays until another is asked for, and on a base that others stand on as long as the engine, beside the
    models that play the next round. The sampling copies of the weights that it trains go. Servers stay; on a GPU they
    sleep while weights are updated, and before they wake trainers and bases go. An update over several ranks has an
    engine of its own, and all models of others are freed for it. Where models are `small` they all stay.
    """

    method: Method
    sampling: Mapping[str, SamplingMemory]
    """By role."""
    updates: Mapping[str, UpdateMemory]
    """Of one rank, by the role that owns the weights."""
    bases: Mapping[str, int]
    """Frozen bases that several roles stand on, by the role whose model they are."""
    small: bool
    servers: Mapping[str, str]
    """By role, whose server samples for it (`placement.serving`)."""

    def everywhere(self) -> Moments:
        """Of an engine that samples for every role, and updates what has one rank."""
        return self.of(EngineLoad({*self.sampling}, {owner for owner in self.updates if not self.several(owner)}))

    def several(self, owner: str) -> bool:
        """Whether several ranks update these weights."""
        return self.method.role(owner).deepspeed.ranks > 1

    def of_ranks(self) -> list[int]:
        """Peaks of one rank, of each such update."""
        return [update.peak for owner, update in self.updates.items() if self.several(owner)]

    def of(self, load: EngineLoad, started_here: Mapping[str, int] | None = None, *, on_gpu: bool = False) -> Moments:
        """Of an engine with this load, and of the servers that it starts on a GPU, by whose they are. Nothing is loaded
        on a GPU: that is done in the machine's memory."""
        sampled = {name: each for name, each in self.sampling.items() if name in load.sampled}
        trained = {owner: each for owner, each in self.updates.items() if owner in load.trained}
        here = {owner: each for owner, each in trained.items() if not self.several(owner)}
        owners = {self.servers.get(name) for name in sampled}
        started = {f"server of {owner}": size for owner, size in (started_here or {}).items() if owner in owners}
        standing = {self.method.base(name) for name in (*sampled, *here)}
        base = {"base": sum(self.bases.get(each, 0) for each in standing if each is not None)}
        staying = {
            owner: each.kept for owner, each in here.items() if self.small or self.method.base(owner) is not None
        }
        going = [each.kept for owner, each in here.items() if owner not in staying]
        moments: Moments = {}
        if sampled:
            alone = not started or self.small
            moments[PLAYING] = {
                **started,
                **(base if alone else {}),
                "weights": sum(each.weights for each in sampled.values()),
                KEPT: sum(staying.values()) + max(going, default=0) if alone else 0,
                # One role at a time is at work, or is being loaded.
                **_largest(_at_work(each, on_gpu) for each in sampled.values()),
            }
        for owner, update in trained.items():
            beside = {}
            if owner in here:
                others = [name for name in sampled if self.small or self.method.owner(name) != owner]
                beside = {
                    **base,
                    "sampling weights": sum(sampled[name].weights for name in others),
                    KEPT: sum(size for each, size in staying.items() if each != owner),
                }
            awake = started if self.small else {}
            moments[f"update of {owner}"] = {**awake, **beside, **_at_update(update, on_gpu)}
        return moments

    def sharing(self, loads: Sequence[EngineLoad], servers: Mapping[str, int]) -> Moments:
        """Of the engines that share a GPU: each at its peak where it has not this moment."""
        found = [self.of(load, servers, on_gpu=True) for load in loads]
        moments: Moments = {}
        for moment in dict.fromkeys(name for each in found for name in each):
            parts: Counter[str] = Counter()
            for each in found:
                parts.update(each.get(moment) or _largest(each.values()))
            moments[moment] = dict(parts)
        return moments


def peak(moments: Moments, *, without: str = "") -> int:
    """Bytes of the largest moment, without a part."""
    return max((sum(parts.values()) - parts.get(without, 0) for parts in moments.values()), default=0)


def _largest(found: Iterable[dict[str, int]]) -> dict[str, int]:
    return max(found, key=lambda parts: sum(parts.values()), default={})


def _at_work(role: SamplingMemory, on_gpu: bool) -> dict[str, int]:
    if not on_gpu and role.loading > role.cache + role.working:
        return {"loading": role.loading}
    return {"cache": role.cache, "working": role.working}


def _at_update(update: UpdateMemory, on_gpu: bool) -> dict[str, int]:
    """The parts of an update at its peak: in the backward pass, or in the step with writing, which comes after it. What
    is written is copied to the machine's memory."""
    parts = parts_of(update)
    ends = [{name: parts.pop(name)} for name in ("recomputed", "head")]
    passes = {"activations": parts.pop("activations"), **_largest(ends)}
    writes = {"copies": parts.pop("copies")}
    if on_gpu:
        return {**parts, **passes}
    return {**parts, **_largest((passes, writes))}
