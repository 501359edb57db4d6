"""From any exception of a stage to the error that the flow sees, and whether the engine can go on after it."""

from __future__ import annotations

import errno
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

from crl.errors import CrlError, EngineDied, StageFailed
from crl.paths import quoted
from crl.run.files import disk_error
from crl.run.manifest import StageKey

ROLE = "ROLE"
"""Stands in an advice for the role of the stage."""
LESS_MEMORY = (
    f"give it less to hold: a smaller method.roles.{ROLE}.deepspeed.micro_batch, method.rollout.batch or "
    f"method.rollout.wave_groups, a shorter method.roles.{ROLE}.context, "
    f"method.roles.{ROLE}.deepspeed.gradient_checkpointing=true, or method.roles.{ROLE}.dtype=bfloat16"
)
_SETTING = re.compile(r"\bmethod(?:\.\w+)+")


def advised(error: CrlError, run_path: Path, key: StageKey, role: str | None, attempts: tuple[int, int]) -> None:
    """Complete what an error of a stage tells people: which attempt this was of how many, and, where its advice names a
    setting of the method, which is frozen, the command that goes on with a changed one."""
    attempt, most = attempts
    if error.transient and most > 1:
        error.found += f" (attempt {attempt} of {most})"
        error.args = (error.found,)
    if error.next_step is None:
        return
    error.next_step = error.next_step.replace(f"roles.{ROLE}.", f"roles.{role or 'actor'}.")
    if (setting := _SETTING.search(error.next_step)) is None:
        return
    other, changed = f"{run_path.absolute().name}-2", quoted(f"{setting[0]}=VALUE")
    if number := key[0]:
        at = quoted(str(number - 1))
        step = f"crl fork {quoted(run_path)} --round {at} --name {quoted(other)} --set {changed}"
    else:
        step = f"crl train, with its file, --set {quoted(f'name={other}')} and --set {changed}"
    error.next_step += f". The method of a run cannot change. To go on with another one: {step}"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is reported of an exception."""

    error: CrlError
    traceback: str
    """Text for the log; empty for the project's own errors, which speak for themselves."""
    fatal: bool
    """Whether the engine must be ended: its memory is exhausted or its state cannot be trusted."""


def failure_of(error: BaseException, where: str) -> Failure:
    """Classify: own errors pass unchanged; what a disk refuses and exhausted memory have classes, the rest has not."""
    if isinstance(error, StageFailed) and error.__cause__ is not None:
        # It only carried its cause past code that makes rows of what it catches (a model that is an environment).
        return failure_of(error.__cause__, where)
    if isinstance(error, CrlError):
        return Failure(error, "", fatal=False)
    text = "".join(traceback.format_exception(error))
    # What a stage may not read is shown with its traceback.
    known = None if isinstance(error, PermissionError) else disk_error(error, where)
    if known is not None:
        return Failure(known, "", fatal=False)
    if any(_is_out_of_memory(cause) for cause in _causes(error)):
        died = EngineDied(
            f"the engine ran out of memory ({_last_line(error)})",
            where=where,
            next_step=LESS_MEMORY,
        )
        return Failure(died, text, fatal=True)
    failed = StageFailed(
        _last_line(error),
        where=f"{where}, {_place(error)}",
        next_step="read the traceback in the log; nothing of the stage was kept, and `crl resume` runs it again",
    )
    return Failure(failed, text, fatal=False)


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _is_out_of_memory(error: BaseException) -> bool:
    # torch.OutOfMemoryError by name: this file must not import torch. Its CPU allocator raises a plain RuntimeError.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # mmap (`policies/cache.py`), and starting a process
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def _last_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "before it began"
    return f"{Path(frames[-1].filename).name} line {frames[-1].lineno} in {frames[-1].name}"
