"""What an experiment would need on this machine, in the words of `crl doctor`: memory, disk, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    for name, parts in needed.servers.items():
        yield Need(f"vLLM server, {name}", sizes(parts))
    yield from _memory(experiment, needed)
    yield _disk(needed, rounds, run_path)
    yield _time(run_path)


def _memory(experiment: Experiment, needed: Estimate) -> Iterator[Need]:
    import psutil

    from crl.policies.machine import computes_bfloat16, device_bytes, gpu_count
    from crl.preflight.estimate import gigabytes
    from crl.preflight.placement import engines_by_gpu

    settings = (
        "gradient_checkpointing, lora or dtype bfloat16" if computes_bfloat16() else "gradient_checkpointing or lora"
    )
    mend = (
        f"lower the roles' deepspeed.micro_batch or context, or method.rollout.wave_groups; set {settings}; "
        "or use a larger machine"
    )
    largest, all_of_them = needed.memory_bytes or 0, needed.machine_bytes
    device, machine = device_bytes(), psutil.virtual_memory().total
    if device is not None:
        most = max(map(len, engines_by_gpu(experiment, gpu_count())))
        whose = "the largest process" if most == 1 else f"the {most} engines that share one"
        said = f"about {gigabytes(needed.device_bytes)} for {whose}"
        if needed.servers:
            said, mend = (
                f"{said}, vLLM servers included",
                f"lower runtime.servers.<role>.gpu_memory_utilization; {mend}",
            )
        said += f"; the GPU has {gigabytes(device)}"
        yield Need("memory of the GPU", said, needed.device_bytes <= device, mend)
        return
    said = f"about {gigabytes(all_of_them)}"
    if all_of_them > largest:
        said += f" for all processes, {gigabytes(largest)} for the largest"
    yield Need("memory", f"{said}; the machine has {gigabytes(machine)}", all_of_them <= machine, mend)


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
