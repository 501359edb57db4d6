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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from crl.config import Experiment, Method
from crl.config.method import JUDGE
from crl.policies.embedders import EMBEDDERS
from crl.policies.machine import all_stay
from crl.policies.sources import takes_preparing
from crl.preflight.memory import (
    FLOAT16,
    FLOAT32,
    PROCESS,
    SamplingMemory,
    UpdateMemory,
    checkpoint_bytes,
    frozen_bytes,
    full_context_bytes,
    handed_over_bytes,
    read_bytes,
    sampling_memory,
    trained_parameters,
    update_memory,
    weights_bytes,
)
from crl.preflight.moments import KEPT, PLAYING, Engines, Moments, peak
from crl.preflight.placement import Machine, engines_by_gpu, machine_of, served, serving
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
    """On the fullest GPU where there are any, by the engines that share it and the servers that they start."""
    gpus: tuple[Moments, ...] = ()
    """What each GPU of a machine holds and when; where a server spreads over several, each group of so many."""
    host: Mapping[str, int] = field(default_factory=dict)
    """Of a machine with GPUs, its own memory at most: models are loaded, and adapters merged, in it."""
    machine: Machine = field(default_factory=lambda: Machine(0, 0))
    """What it is reckoned for."""
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
    """What a server that an engine starts holds, by the role whose weights or base it has: on the GPU where there is
    one."""
    cache_of_row: Mapping[str, int] = field(default_factory=dict)
    """Keys and values of the longest context of a server, by the same role."""
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
    machine = machine_of(experiment)
    on_gpu = machine.gpus > 0
    for name, shape in known.items():
        role, rows = machine.computed(method.role(name)), _rows(method, name)
        sampling[name] = sampling_memory(shape, role, rows, nucleus=_nucleus(method, name), on_gpu=on_gpu)
        owner = method.owner(name)
        if owner in method.trained():
            made = update_memory(shape, role, _new_tokens(method, name), compares=compares)
            updates[owner] = max(made, updates.get(owner, made), key=lambda update: update.peak)
    bases = _bases(method, known, machine)
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
    # The engine itself has the weights of a server only while it writes them for one elsewhere, or reads them to check.
    sampling |= {
        name: SamplingMemory(weights=0, cache=0, working=0, loading=sampling[name].loading + size)
        for name, size in handed.items()
    }
    models = {method.role(owner).model: known[_first(method, owner)].parameters for owner in method.owners()}
    servers, whose = _servers(experiment, handed, machine), serving(experiment, on_gpu=on_gpu)
    small = all_stay(method, FLOAT32 * sum(models.values()), on_gpu=on_gpu)
    engines = Engines(method, sampling, updates, bases, small, whose)
    of_servers = {name: sum(parts.values()) for name, parts in servers.items()}
    alone, process = engines.everywhere(), PROCESS + reading
    largest = [process + max([peak(alone), *engines.of_ranks()]), *of_servers.values()]
    engine = process + max([peak(alone) + sum(of_servers.values()), *engines.of_ranks()])
    player = process + peak({PLAYING: alone[PLAYING]}, without=KEPT) + sum(of_servers.values())
    ranks = [method.role(owner).deepspeed.ranks * (PROCESS + made.peak) for owner, made in updates.items()]
    first = engine + (experiment.runtime.shards - 1) * player
    # Beside it a second track has engines of its own.
    others = experiment.runtime.overlap_engines - 1 if method.overlap else 0
    gpus = tuple(
        engines.sharing(loads, of_servers) for loads in (engines_by_gpu(experiment, machine.gpus) if on_gpu else ())
    )
    return Estimate(
        memory_bytes=max(largest),
        checkpoint_bytes=(kept + 1) * sum(written.values()),
        round_bytes=round_bytes,
        device_bytes=max(map(peak, gpus), default=0),
        gpus=gpus,
        host=_host(experiment, known, engines, handed, machine, reading) if on_gpu else {},
        machine=machine,
        machine_bytes=max([first, *ranks]) + others * first,
        written_bytes=sum(written.values()),
        kept_every_bytes=sum(written.values()) // every if every else 0,
        sampling=sampling,
        updates=updates,
        bases=bases,
        servers=servers,
        cache_of_row={
            owner: max(full_context_bytes(known[name], method.role(name)) for name in handed if whose[name] == owner)
            for owner in servers
        },
        handed_over=_by_folder(experiment, handed, machine),
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


def _servers(experiment: Experiment, handed: Mapping[str, int], machine: Machine) -> dict[str, dict[str, int]]:
    """What each server that an engine starts holds, by its parts; on a GPU its share, which it takes at once."""
    made: dict[str, dict[str, int]] = {}
    whose = serving(experiment, on_gpu=machine.gpus > 0)
    for name, server in served(experiment).items():
        if server.address is not None or (owner := whose[name]) in made:
            continue
        if machine.gpus:
            share, weights = int(server.gpu_memory_utilization * machine.gpu_bytes), handed[name]
            weights //= server.tensor_parallel_size
            made[owner] = {"weights": min(weights, share), "cache": max(0, share - weights)}
        else:
            made[owner] = {"process": PROCESS, "weights": handed[name], "cache": server.cache_gigabytes * 2**30}
    return made


def _by_folder(experiment: Experiment, handed: Mapping[str, int], machine: Machine) -> dict[Path, int]:
    """Bytes of the weights that servers are given, by the folder that the engines write them to, each for itself."""
    found: dict[Path, int] = {}
    engines = [engine for engines in engines_by_gpu(experiment, machine.gpus) for engine in engines]
    for name, server in served(experiment).items():
        if server.address is None:
            continue  # one that is started here reads the checkpoint where it is
        folder = server.folder or Path(tempfile.gettempdir())
        writing = sum(name in engine.sampled for engine in engines)
        found[folder] = found.get(folder, 0) + writing * handed[name]
    return found


def _host(
    experiment: Experiment,
    shapes: Mapping[str, ModelShape],
    engines: Engines,
    handed: Mapping[str, int],
    machine: Machine,
    embedder: int,
) -> dict[str, int]:
    """The memory of a machine with GPUs beside them: every process, and the models of all engines while they are
    loaded, or the trained weights while they are written, whatever is more."""
    method, servers = experiment.method, served(experiment)
    loads = [engine for engines in engines_by_gpu(experiment, machine.gpus) for engine in engines]
    playing = sum(bool(engine.sampled) for engine in loads)
    ranks = {
        owner: min(method.role(owner).deepspeed.ranks, machine.gpus)
        for owner in engines.updates
        if engines.several(owner)
    }
    sampled = [
        playing * weights_bytes(shapes[name], machine.computed(method.role(name)))
        for name in engines.sampling
        if name not in handed
    ]
    read = [count * read_bytes(shapes[_first(method, owner)], method.role(owner)) for owner, count in ranks.items()]
    written = [update.copies for update in engines.updates.values()]
    asleep = {engines.servers[name]: handed[name] for name, server in servers.items() if server.address is None}
    return {
        "processes": (playing * (1 + len(asleep)) + max(ranks.values(), default=0)) * PROCESS + playing * embedder,
        "loading and writing": max([0, *sampled, *read, *written]),
        "servers that sleep": playing * sum(asleep.values()),
    }


def _bases(method: Method, shapes: Mapping[str, ModelShape], machine: Machine) -> dict[str, int]:
    """Frozen bases that several roles stand on, which an engine holds once for all samplers and trainers."""
    found = {}
    for name, shape in shapes.items():
        role = machine.computed(method.role(name))
        if (base := method.base(name)) is None or role.engine.REMOTE:
            continue
        narrow, size = frozen_bytes(shape), FLOAT16 if role.dtype == "bfloat16" else FLOAT32
        sampled = 0 if role.engine.SERVED else size * shape.parameters
        # Updates read no rounded numbers: of a file in float32 they have a copy beside one in bfloat16.
        found[base] = sampled + (0 if sampled and (size == FLOAT32 or shape.size == size) else narrow)
    return found


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
