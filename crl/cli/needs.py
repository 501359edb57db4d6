"""What an experiment would need on this machine, in the words of `crl doctor`: memory, disk, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from crl.report.cells import seconds_text

if TYPE_CHECKING:
    from crl.config import Experiment
    from crl.preflight.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Need:
    """One line: what is needed, how much, whether this machine has it, what helps where it has not."""

    name: str
    message: str
    fits: bool = True
    mend: str = ""


def needs(experiment: Experiment, needed: Estimate, rounds: int, run_path: Path) -> Iterator[Need]:
    """Every need of an experiment whose models are known."""
    yield from _servers(experiment, needed)
    yield from _on_gpus(experiment, needed) if needed.machine.gpus else _on_cpu(needed)
    yield _disk(needed, rounds, run_path)
    yield _time(run_path)


def _servers(experiment: Experiment, needed: Estimate) -> Iterator[Need]:
    """What each vLLM server holds; on a GPU its cache is what its share leaves, and must hold one row at least."""
    from crl.config.engines import ServerConfig
    from crl.preflight.estimate import gigabytes

    for name, parts in needed.servers.items():
        told, fits = sizes(parts), True
        if needed.machine.gpus:
            share = experiment.runtime.servers.get(name, ServerConfig()).gpu_memory_utilization
            contexts = parts["cache"] // max(1, needed.cache_of_row[name])
            fits = contexts > 0
            told = f"{share:g} of a GPU, {gigabytes(sum(parts.values()))}: {told}, which holds {contexts} full contexts"
        yield Need(f"vLLM server, {name}", told, fits, "raise runtime.servers.<role>.gpu_memory_utilization")


def _on_gpus(experiment: Experiment, needed: Estimate) -> Iterator[Need]:
    """A line for each moment of a round on each GPU; those that hold the same have one line."""
    import psutil

    from crl.preflight.estimate import gigabytes
    from crl.preflight.placement import engines_by_gpu

    machine, wide = needed.machine, experiment.runtime.engine_gpus
    for same, group in groupby(enumerate(needed.gpus), key=lambda each: each[1]):
        numbers = [number for number, _ in group]
        first, last = numbers[0] * wide, numbers[-1] * wide + wide - 1
        which = f"GPU {first}" if first == last else f"GPUs {first} to {last}"
        for moment, parts in same.items():
            yield Need(f"{which}, {moment}", f"{gigabytes(sum(parts.values()))}: {sizes(parts)}")
    most = max(map(len, engines_by_gpu(experiment, machine.gpus)))
    shared = "" if most == 1 else f" for the {most} engines that share one"
    said = f"at most {gigabytes(needed.device_bytes)}{shared}; each has {gigabytes(machine.gpu_bytes)}"
    mend = _less(bfloat16=True)
    if needed.servers:
        mend = f"lower runtime.servers.<role>.gpu_memory_utilization; {mend}"
    yield Need("memory of a GPU", said, needed.device_bytes <= machine.gpu_bytes, mend)
    host, total = sum(needed.host.values()), psutil.virtual_memory().total
    said = f"at most {gigabytes(host)} beside the GPUs: {sizes(needed.host)}"
    fits = not machine.here or host <= total
    yield Need("memory of the machine", said + (f"; it has {gigabytes(total)}" if machine.here else ""), fits, mend)


def _on_cpu(needed: Estimate) -> Iterator[Need]:
    import psutil

    from crl.policies.machine import computes_bfloat16
    from crl.preflight.estimate import gigabytes

    largest, all_of_them = needed.memory_bytes or 0, needed.machine_bytes
    machine = psutil.virtual_memory().total
    said = f"about {gigabytes(all_of_them)}"
    if all_of_them > largest:
        said += f" for all processes, {gigabytes(largest)} for the largest"
    fits, mend = all_of_them <= machine, _less(bfloat16=computes_bfloat16())
    yield Need("memory", f"{said}; the machine has {gigabytes(machine)}", fits, mend)


def _less(*, bfloat16: bool) -> str:
    """What lowers the memory of a run."""
    settings = "gradient_checkpointing, lora or dtype bfloat16" if bfloat16 else "gradient_checkpointing or lora"
    return (
        f"lower the roles' deepspeed.micro_batch or context, or method.rollout.wave_groups; set {settings}; "
        "or use a larger machine"
    )


def _disk(needed: Estimate, rounds: int, run_path: Path) -> Need:
    from crl.preflight.estimate import gigabytes

    written, rows = gigabytes(needed.written_bytes), gigabytes(needed.round_bytes)
    kept = gigabytes(needed.disk_bytes(rounds) or 0)
    counted = f"{rounds} round{'' if rounds == 1 else 's'}"
    given = "".join(f"; {gigabytes(size)} in {folder} for vLLM servers" for folder, size in needed.handed_over.items())
    return Need(
        "disk",
        f"about {gigabytes(needed.written_bytes + needed.round_bytes)} per round (checkpoints {written}, rows {rows}); "
        f"{kept} for {counted} under {run_path}, after pruning older checkpoints{given}",
    )


def _time(run_path: Path) -> Need:
    from crl.run.directory import stage_seconds

    taken = stage_seconds(run_path)
    if not taken:
        return Need("time", "not known before the first round")
    longest = max(taken, key=taken.__getitem__)
    return Need(
        "time",
        f"the stages of a round last took {seconds_text(sum(taken.values()))} in {run_path}; "
        f"the longest: {longest.replace('_', ' ')}, {seconds_text(taken[longest])}",
    )


def sizes(parts: Mapping[str, int]) -> str:
    """Parts of memory that are not 0, in words."""
    from crl.preflight.estimate import gigabytes

    return ", ".join(f"{name} {gigabytes(count)}" for name, count in parts.items() if count)
