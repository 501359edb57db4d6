"""What an experiment will need: memory of its processes, disk of a run, from the config alone.

Made to refuse a run before it starts rather than after an hour: nothing is loaded, a checkpoint's `config.json` is all
that is read. The formulas are in `shapes` and `memory`; here they are put together as the engine does it
(`crl/engine/services.py`: which models are held at the same time).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from crl.config import Experiment, Method
from crl.config.method import JUDGE
from crl.policies.embedders import EMBEDDERS
from crl.policies.machine import all_stay, computed, gpu_count
from crl.policies.sources import takes_preparing
from crl.preflight.memory import (
    FLOAT16,
    FLOAT32,
    PROCESS,
    SamplingMemory,
    UpdateMemory,
    checkpoint_bytes,
    frozen_bytes,
    handed_over_bytes,
    sampling_memory,
    trained_parameters,
    update_memory,
)
from crl.preflight.placement import EngineLoad, engines_by_gpu, served
from crl.preflight.shapes import ModelShape, config_file, readiness, shape_of
from crl.run.files import require_free, same_disk

_TOKEN_ROW = 18
"""Bytes per token on disk: id, mask and log-probability, once as a generation and once as a sample."""
_LETTERS = 4
"""Bytes per token of a text."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run needs; None where the model is not known yet (a Hugging Face id that is not on this machine)."""

    memory_bytes: int | None
    """Peak of the process that holds most."""
    checkpoint_bytes: int | None
    """The checkpoints that retention keeps, and one more while it is written."""
    round_bytes: int
    """Rows of one round."""
    unknown: tuple[str, ...] = ()
    """Models whose size is not known."""
    device_bytes: int = 0
    """On the fullest GPU where there are any, by the engines that share it and the servers that they start: models are
    loaded, and adapters merged, in the machine's memory."""
    machine_bytes: int = 0
    """All processes that work at the same time, ranks and shards, on one machine."""
    written_bytes: int = 0
    """Checkpoints that a round writes."""
    kept_every_bytes: int = 0
    """Checkpoints that `runtime.keep_every` keeps for good, per round."""
    sampling: Mapping[str, SamplingMemory] = field(default_factory=dict)
    """By role."""
    updates: Mapping[str, UpdateMemory] = field(default_factory=dict)
    """Of one rank, by the role that owns the weights."""
    bases: Mapping[str, int] = field(default_factory=dict)
    """Frozen bases that several roles stand on, by the role whose model they are; held once by each engine."""
    servers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What the server that an engine starts for a role holds: on the GPU where there is one."""
    handed_over: Mapping[Path, int] = field(default_factory=dict)
    """Weights that servers are given, by the folder; they go with their engines."""

    def disk_bytes(self, rounds: int) -> int | None:
        """What so many rounds write in all; None where a model is unknown."""
        if self.checkpoint_bytes is None:
            return None
        return self.checkpoint_bytes + rounds * (self.round_bytes + self.kept_every_bytes)


def estimate(experiment: Experiment) -> Estimate:
    """Memory and disk of an experiment, with full contexts."""
    from crl.rounds.recipe import recipe_of

    method, recipe = experiment.method, recipe_of(experiment.method)
    compares = any(objective.reference for objective in recipe.objectives.values())
    embedder, reading = method.recipe.embedder(), 0
    outputs = method.recipe.outputs(method)
    round_bytes = _TOKEN_ROW * sum(int(_tokens(method, name) * count) for name, count in outputs.items())
    if method.judged:
        round_bytes += _LETTERS * method.role(JUDGE).context * max(outputs.values())
    shapes = {name: shape_of(method.role(name).model) for name in method.uses()}
    unknown = {method.role(name).model for name, shape in shapes.items() if shape is None}
    if embedder is not None and embedder.name not in EMBEDDERS:
        shape = shape_of(embedder.name)
        unknown |= {embedder.name} if shape is None else set()
        reading = 0 if shape is None else FLOAT32 * shape.parameters
    if unknown:
        return Estimate(None, None, round_bytes, tuple(sorted(unknown)))
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    sampling: dict[str, SamplingMemory] = {}
    updates: dict[str, UpdateMemory] = {}
    on_gpu = gpu_count() > 0
    for name, shape in known.items():
        role, rows = computed(method.role(name)), _rows(method, name)
        sampling[name] = sampling_memory(shape, role, rows, nucleus=_nucleus(method, name), on_gpu=on_gpu)
        owner = method.owner(name)
        if owner in method.trained():
            made = update_memory(shape, role, _new_tokens(method, name), compares=compares)
            updates[owner] = max(made, updates.get(owner, made), key=lambda update: update.peak)
    bases = _bases(method, known)
    for name in sampling:
        if method.base(name) is not None:
            adapter = FLOAT32 * trained_parameters(known[name], method.role(name))
            sampling[name] = replace(sampling[name], weights=adapter, loading=0)
            if name in updates and method.role(name).deepspeed.ranks == 1:
                updates[name] = replace(updates[name], weights=adapter)
    written = {owner: checkpoint_bytes(known[_first(method, owner)], method.role(owner)) for owner in method.trained()}
    every = experiment.runtime.keep_every
    best = 1 if method.evaluation.every > 0 else 0  # evaluated round
    kept = max(experiment.runtime.save_total_limit, recipe.reach()) + best
    handed = {name: handed_over_bytes(known[name], method.role(name)) for name in served(experiment)}
    # The engine itself has the weights only while it writes them for the server.
    sampling |= {
        name: SamplingMemory(weights=0, cache=0, working=0, loading=sampling[name].loading + size)
        for name, size in handed.items()
    }
    servers = _servers(experiment, handed, on_gpu=on_gpu)
    held = {
        name: replace(each, weights=each.weights + sum(servers.get(name, {}).values()))
        for name, each in sampling.items()
    }
    largest = [PROCESS + reading + _engine(method, known, sampling, updates, bases)]
    largest += [sum(parts.values()) for parts in servers.values()]
    engine = PROCESS + reading + _engine(method, known, held, updates, bases)
    player = PROCESS + reading + _playing(held) + _once(method, bases, held)
    ranks = [method.role(owner).deepspeed.ranks * (PROCESS + made.peak) for owner, made in updates.items()]
    first = engine + (experiment.runtime.shards - 1) * player
    # Beside it a second track has engines of its own.
    others = experiment.runtime.overlap_engines - 1 if method.overlap else 0
    return Estimate(
        memory_bytes=max(largest),
        checkpoint_bytes=(kept + 1) * sum(written.values()),
        round_bytes=round_bytes,
        device_bytes=_on_gpu(experiment, known, held, updates, bases, frozenset(servers) if on_gpu else frozenset()),
        machine_bytes=max([first, *ranks]) + others * first,
        written_bytes=sum(written.values()),
        kept_every_bytes=sum(written.values()) // every if every else 0,
        sampling=sampling,
        updates=updates,
        bases=bases,
        servers=servers,
        handed_over=_by_folder(experiment, handed),
    )


def check_disk(experiment: Experiment, run_path: Path, rounds: int) -> None:
    """Raise NotEnoughDisk where what a run still has to write does not fit, with `min_free_gigabytes` left over."""
    needed = estimate(experiment)
    wanted = _still_to_write(needed, run_path, rounds)
    if wanted is None:
        return
    reserve = int(experiment.runtime.min_free_gigabytes * 1e9)
    require_free(run_path, needed_bytes=wanted, reserve_bytes=reserve)
    written = [(run_path, wanted)]
    if (size := _downloads(experiment.method)) > 0:
        from huggingface_hub.constants import HF_HUB_CACHE

        written.append((Path(HF_HUB_CACHE), size))
        require_free(
            Path(HF_HUB_CACHE),
            needed_bytes=sum(size for place, size in written if same_disk(place, Path(HF_HUB_CACHE))),
            reserve_bytes=reserve,
            what="the models that are downloaded",
            next_step="free some space, or set HF_HOME to another folder",
        )
    for folder, size in needed.handed_over.items():
        written.append((folder, size))
        require_free(
            folder,
            needed_bytes=sum(size for place, size in written if same_disk(place, folder)),
            reserve_bytes=reserve,
            what="the folder for the weights of vLLM servers",
            next_step="free some space, or name another folder: runtime.servers.<role>.folder",
        )


def download_bytes(model: str) -> int | None:
    """Bytes of weights that the first use of a model downloads; None where that is unknown.

    Before they are here its config says how many they are, or the list of its files.
    """
    if readiness(model) == "ready" or takes_preparing(model):
        return 0
    config, shape = config_file(model), shape_of(model)
    index = None if config is None else config.parent / "model.safetensors.index.json"
    if index is not None and index.is_file():
        size = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
        if size:
            return int(size)
    return None if shape is None else shape.parameters * shape.size


def _downloads(method: Method) -> int:
    """Bytes of models that are not on this machine yet."""
    models = {method.role(owner).model for owner in method.owners() if not method.role(owner).engine.REMOTE}
    return sum(download_bytes(model) or 0 for model in models)


def still_to_write(experiment: Experiment, run_path: Path, rounds: int) -> int | None:
    """Bytes that so many more rounds of a run add to its directory; None where a model is unknown."""
    return _still_to_write(estimate(experiment), run_path, rounds)


def _still_to_write(needed: Estimate, run_path: Path, rounds: int) -> int | None:
    total = needed.disk_bytes(rounds)
    if total is None:
        return None
    # Checkpoints that retention replaces are there already. Rows are added, checkpoints that are kept for good, and one
    # more, which is written before one is replaced, unless all are kept.
    more = rounds * (needed.round_bytes + needed.kept_every_bytes)
    if rounds and needed.kept_every_bytes < needed.written_bytes:
        more += needed.written_bytes
    return max(total - _bytes_in(run_path), more)


def _bytes_in(directory: Path) -> int:
    """Bytes of all files below a directory. Another process may write there: what goes meanwhile counts nothing."""
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def gigabytes(count: int) -> str:
    """Bytes as people read them."""
    if count >= 5e7:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 5e4 else f"{count / 1e3:.1f} kB"


def _servers(experiment: Experiment, handed: Mapping[str, int], *, on_gpu: bool) -> dict[str, dict[str, int]]:
    """What each server that an engine starts holds, by its parts; on a GPU its share, which it takes at once."""
    from crl.policies.machine import device_bytes

    made = {}
    for name, server in served(experiment).items():
        share, cache = server.gpu_memory_utilization, server.cache_gigabytes * 2**30
        if server.address is None and on_gpu:
            made[name] = {f"{share:g} of the GPU's memory:": int(share * (device_bytes() or 0))}
        elif server.address is None:
            made[name] = {"process": PROCESS, "weights": handed[name], "cache": cache}
    return made


def _by_folder(experiment: Experiment, handed: Mapping[str, int]) -> dict[Path, int]:
    """Bytes of the weights that servers are given, by the folder that the engines write them to, each for itself."""
    found: dict[Path, int] = {}
    engines = [engine for engines in engines_by_gpu(experiment, gpu_count()) for engine in engines]
    for name, server in served(experiment).items():
        folder = server.folder or Path(tempfile.gettempdir())
        writing = sum(name in engine.sampled for engine in engines)
        found[folder] = found.get(folder, 0) + writing * handed[name]
    return found


def _on_gpu(
    experiment: Experiment,
    shapes: Mapping[str, ModelShape],
    held: Mapping[str, SamplingMemory],
    updates: Mapping[str, UpdateMemory],
    bases: Mapping[str, int],
    starting: Set[str],
) -> int:
    """What the engines that share the fullest GPU hold on it."""

    def of(engine: EngineLoad) -> int:
        here = {name: replace(each, loading=0) for name, each in held.items() if name in engine.sampled}
        learned = {owner: update for owner, update in updates.items() if owner in engine.trained}
        return _engine(experiment.method, shapes, here, learned, bases, starting)

    return max(sum(map(of, engines)) for engines in engines_by_gpu(experiment, gpu_count()))


def _playing(sampling: Mapping[str, SamplingMemory]) -> int:
    """While episodes are played or read: every role's weights, and one role at a time at work or being loaded."""
    busiest = max((max(each.cache + each.working, each.loading) for each in sampling.values()), default=0)
    return sum(each.weights for each in sampling.values()) + busiest


def _engine(
    method: Method,
    shapes: Mapping[str, ModelShape],
    sampling: Mapping[str, SamplingMemory],
    updates: Mapping[str, UpdateMemory],
    bases: Mapping[str, int],
    starting: Set[str] = frozenset(),
) -> int:
    """Peak of the models of one engine.

    A trainer stays until another is asked for, beside the models that play the next round; the sampling copies of the
    weights that it trains go. Before a server of theirs starts on a GPU (for the roles `starting`), it goes as well. An
    update over several ranks has an engine of its own. Small models all stay.
    """
    here = {owner: update for owner, update in updates.items() if method.role(owner).deepspeed.ranks == 1}
    once = _once(method, bases, {*sampling, *here})
    playing = _playing(sampling)
    several = [update.peak for owner, update in updates.items() if owner not in here]
    models = {method.role(owner).model: shapes[_first(method, owner)].parameters for owner in method.owners()}
    if all_stay(method, FLOAT32 * sum(models.values()), on_gpu=gpu_count() > 0):
        copies, stay = (sum(each.weights for each in sampling.values()), sum(each.kept for each in here.values()))
        updating = [copies + stay + update.peak - update.kept for update in here.values()]
        return max([once + max([playing + stay, *updating]), *several])
    training = [
        update.peak + sum(each.weights for name, each in sampling.items() if method.owner(name) != owner)
        for owner, update in here.items()
    ]
    kept = [
        update.kept
        + _playing({name: sampling[name] for name in sampling if name not in starting or method.owner(name) != owner})
        for owner, update in here.items()
    ]
    return max([once + max([playing, *kept, *training]), *several])


def _bases(method: Method, shapes: Mapping[str, ModelShape]) -> dict[str, int]:
    """Frozen bases that several roles stand on, which an engine holds once for all samplers and trainers."""
    found = {}
    for name, shape in shapes.items():
        role = computed(method.role(name))
        if (base := method.base(name)) is None or role.engine.REMOTE:
            continue
        narrow, size = frozen_bytes(shape), FLOAT16 if role.dtype == "bfloat16" else FLOAT32
        sampled = 0 if role.engine.SERVED else size * shape.parameters
        # Updates read no rounded numbers: of a file in float32 they have a copy beside one in bfloat16.
        found[base] = sampled + (0 if sampled and (size == FLOAT32 or shape.size == size) else narrow)
    return found


def _once(method: Method, bases: Mapping[str, int], names: Collection[str]) -> int:
    """The shared bases of these roles and weights."""
    return sum(bases.get(base, 0) for base in {method.base(name) for name in names} if base is not None)


def _first(method: Method, owner: str) -> str:
    """A role of the recipe that has these weights."""
    return next(name for name in method.uses() if method.owner(name) == owner)


def _new_tokens(method: Method, role: str) -> int:
    """Most tokens of one output that the model writes itself; a family without a turn limit may fill the context."""
    config = method.role(role)
    if not method.uses()[role].multi_turn:
        return min(config.context, config.sampling.max_new_tokens)
    return max(
        min(config.context, (family.turn_limit or config.context) * sampling.max_new_tokens)
        for family in method.families
        for sampling in method.samplings(role, family.name)
    )


def _tokens(method: Method, role: str) -> float:
    """Tokens of one output that are stored: a full context; where histories are cut, in all sequences of an episode."""
    config = method.role(role)
    if config.history == "append":
        return config.context
    turns = max(family.turn_limit or 1 for family in method.families)
    # Without thoughts each turn may have a sequence, on the average of half the turns. Else as many as what is written
    # fills, once more for what is read.
    sequences = 1 + 2 * turns * config.sampling.max_new_tokens / config.context
    return config.context * ((turns + 1) / 2 if config.history == "strip_thoughts" else sequences)


def _rows(method: Method, role: str) -> int:
    """Rows that a role samples side by side: what its recipe says, or a wave, or what `rollout.batch` lets in."""
    if (batch := method.uses()[role].batch) is not None:
        return batch
    groups = min(method.rollout.wave_groups, sum(family.groups for family in method.families))
    return min(groups * max(map(method.group_size, method.families)), method.rollout.batch or 2**31)


def _nucleus(method: Method, role: str) -> bool:
    """Whether a role samples with `top_p`, in some family where it plays."""
    if not method.uses()[role].multi_turn:
        return method.role(role).sampling.top_p < 1
    return any(sampling.top_p < 1 for family in method.families for sampling in method.samplings(role, family.name))
