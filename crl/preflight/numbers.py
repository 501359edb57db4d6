"""Numbers of an experiment that this machine or its models cannot take: threads, shards, ranks, top_k, LoRA modules.

They are no bounds of the config: a method is frozen, and may be read on a machine with fewer cores. Of a checkpoint
`config.json` and the headers of the weights are read; a model that is not on this machine yet is not checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crl.config import Experiment, LoraConfig, NodesConfig
from crl.config.experiment import SCHEDULER_VARIABLE
from crl.config.models import weight_files
from crl.errors import BadInput
from crl.policies.sources import is_whole
from crl.preflight.shapes import config_file, shape_of

_THREADS_A_CORE = _SHARDS_A_CORE = 4
_MOST_NAMES = 20
_ALLOW = "lower it, or allow it: crl train EXPERIMENT --set runtime.oversubscribe=true, which also continues a run"
_FEWER = "lower it (of a run that is there: crl resume RUN --shards N), or allow it: runtime.oversubscribe=true"


def machine_checks(experiment: Experiment, *, trains: bool = True) -> list[tuple[str, Callable[[], None]]]:
    """What the machine must have, by the place in the config that asks for it; to play only, unless it `trains`."""
    method, runtime = experiment.method, experiment.runtime
    nodes = runtime.nodes if trains else None
    found: list[tuple[str, Callable[[], None]]] = []
    if nodes is not None:
        most = max((method.role(owner).deepspeed.ranks for owner in method.trained()), default=1)
        found.append(("runtime.nodes.hostfile", partial(_check_hosts, nodes, most)))
        found.append(("runtime.nodes.endpoint", partial(_check_endpoint, nodes)))
        found.append(("runtime.overlap_engines", partial(_check_meetings, experiment)))
    if runtime.gpus is not None:
        found.append(("runtime.gpus", partial(_check_gpus, experiment)))
    if trains and runtime.parts_elsewhere and runtime.shards > 1:
        found.append(("runtime.task_runner", check_scheduler))
    if runtime.oversubscribe:
        return found
    found.append(("method.threads", partial(check_threads, method.threads)))
    if trains and not runtime.parts_elsewhere:
        tracks = runtime.overlap_engines if method.overlap else 1
        found.append(("runtime.shards", partial(_check_shards, runtime.shards, tracks)))
    for owner in method.trained() if trains and nodes is None else ():
        ranks, where = method.role(owner).deepspeed.ranks, f"method.roles.{owner}.deepspeed.ranks"
        found.append((where, partial(check_ranks, ranks, where)))
    return found


def model_checks(experiment: Experiment) -> list[tuple[str, Callable[[], None]]]:
    """What the models must have, by the place in the config that asks for it."""
    method = experiment.method
    found: list[tuple[str, Callable[[], None]]] = []
    for name in method.uses():
        role, where = method.role(name), f"method.roles.{name}.sampling.top_k"
        if role.sampling.top_k > 0:
            found.append((where, partial(_check_top_k, role.sampling.top_k, role.model, where)))
    changes = {f"method.families.{index}.sampling": family.sampling for index, family in enumerate(method.families)}
    for place, change in {**changes, "method.evaluation.sampling": method.evaluation.sampling}.items():
        where, top_k = f"{place}.top_k", None if change is None else change.top_k
        for name, use in method.uses().items():
            if top_k and use.multi_turn:
                found.append((where, partial(_check_top_k, top_k, method.role(name).model, where)))
    for owner in method.trained():
        role, where = method.role(owner), f"method.roles.{owner}.lora.target_modules"
        if role.lora is not None:
            found.append((where, partial(_check_target_modules, role.lora, role.model, where)))
    return found


def check_threads(threads: int, where: str = "method.threads", next_step: str = _ALLOW) -> None:
    """Raise BadInput for many more threads than this machine has cores: they would only wait for each other."""
    cores = os.cpu_count() or 1
    if threads > _THREADS_A_CORE * cores:
        raise BadInput(
            f"{where} is {threads}, and this machine has {_counted(cores, 'core')}",
            expected=f"at most {_THREADS_A_CORE * cores}: {_THREADS_A_CORE} threads a core",
            where=where,
            next_step=next_step,
        )


def check_scheduler() -> None:
    """Raise BadInput where nothing says which Dask cluster is meant."""
    if not os.environ.get(SCHEDULER_VARIABLE):
        raise BadInput(
            f"runtime.task_runner is dask, and {SCHEDULER_VARIABLE} names no cluster",
            expected="the address of its scheduler, such as tcp://scheduler:8786",
            where="runtime.task_runner",
            next_step="start a cluster and set it (docs/scale.md), or leave runtime.task_runner out: on one machine "
            "engines side by side do the same",
        )


def gpus_here() -> str:
    """The GPUs of this machine, in words."""
    from crl.policies.machine import device_bytes, gpu_count

    count = gpu_count()
    return f"{_counted(count, 'GPU')} of {(device_bytes() or 0) / 1e9:.0f} GB" if count else "no GPU"


def _check_gpus(experiment: Experiment) -> None:
    """Raise BadInput where this machine has not the GPUs that a run is made for: it would share them, or use none."""
    from crl.preflight.placement import machine_of

    if not machine_of(experiment).here:
        raise BadInput(
            f"this machine has {gpus_here()}",
            expected=f"{experiment.runtime.gpus}, which the run is made for",
            where="runtime.gpus",
            next_step="run it on such a machine, or on what is here: --set runtime.gpus=null",
        )


def _check_shards(shards: int, tracks: int) -> None:
    cores = os.cpu_count() or 1
    if shards * tracks > _SHARDS_A_CORE * cores:
        raise BadInput(
            f"runtime.shards is {shards}{' for each of two tracks' * (tracks - 1)}, and this machine has "
            f"{_counted(cores, 'core')}",
            expected=f"at most {_SHARDS_A_CORE * cores // tracks}: each is a process with models of its own",
            where="runtime.shards",
            next_step=_FEWER,
        )


def check_ranks(ranks: int, where: str, next_step: str = _ALLOW) -> None:
    """Raise BadInput for more ranks than this machine has GPUs, or cores where it has none."""
    if ranks == 1:
        return
    from crl.policies.machine import gpu_count  # torch takes seconds to import

    gpus = gpu_count()
    there = gpus or os.cpu_count() or 1
    if ranks > there:
        raise BadInput(
            f"{where} is {ranks}, and this machine has {_counted(there, 'GPU' if gpus else 'core')}",
            expected=f"at most {there}, or runtime.nodes: without it all ranks of an update run on this machine",
            where=where,
            next_step=next_step,
        )


def _check_hosts(nodes: NodesConfig, ranks: int) -> None:
    nodes.hosts_of(ranks)


def _check_endpoint(nodes: NodesConfig) -> None:
    nodes.address_here()


def _check_meetings(experiment: Experiment) -> None:
    """Raise BadInput where both tracks of rounds that overlap update over several ranks, which all meet at one port."""
    from crl.rounds.recipe import recipe_of

    method = experiment.method
    if not method.overlap or experiment.runtime.overlap_engines == 1:
        return
    wide = {owner for owner in method.trained() if method.role(owner).deepspeed.ranks > 1}
    found = {each.second_track: each.name for each in recipe_of(method).stages if each.update and each.role in wide}
    if len(found) == 2:
        raise BadInput(
            f"`{found[False]}` of a round and `{found[True]}` of the one before may run side by side, each over "
            "several ranks, and all of them would meet at runtime.nodes.endpoint",
            expected="one engine for both tracks, or several ranks in one of them only",
            where="runtime.overlap_engines",
            next_step="set runtime.overlap_engines: 1, or deepspeed.ranks: 1 for one of the roles",
        )


def _check_top_k(top_k: int, model: str, where: str) -> None:
    shape = shape_of(model)
    if shape is not None and top_k > shape.vocabulary:
        raise BadInput(
            f"{where} is {top_k}, and the model {model} has {shape.vocabulary} tokens",
            expected=f"at most {shape.vocabulary}, or 0, which keeps all",
            where=where,
            next_step="lower it",
        )


def _check_target_modules(lora: LoraConfig, model: str, where: str) -> None:
    config = config_file(model)
    if config is None or isinstance(lora.target_modules, str) or not is_whole(config.parent):
        return
    modules = _modules(config)
    # As peft looks for them: the whole name of a module, or its end.
    missing = [each for each in lora.target_modules if not any(f".{name}".endswith(f".{each}") for name in modules)]
    if missing or not lora.target_modules:
        names = sorted({name.rpartition(".")[2] for name in modules})
        raise BadInput(
            f"the model {model} has no module {', '.join(map(repr, missing))}" if missing else f"{where} is empty",
            expected=f"all-linear, or some of {', '.join(names[:_MOST_NAMES])}",
            where=where,
            next_step="correct the names",
        )


def _modules(config: Path) -> set[str]:
    """Names of a checkpoint's modules with a matrix of weights, by the headers of its files."""
    from safetensors import safe_open

    found = set()
    for path in weight_files(config.parent):
        with safe_open(path, "numpy") as weights:
            names = weights.keys()
            matrices = (name for name in names if len(weights.get_slice(name).get_shape()) > 1)
            found |= {name.removesuffix(".weight") for name in matrices}
    if json.loads(config.read_text(encoding="utf-8")).get("tie_word_embeddings", True):
        found.add("lm_head")  # it is in no file: its weights are those of the embeddings
    return found


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
