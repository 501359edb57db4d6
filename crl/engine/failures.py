"""From any exception of a stage to the error that the flow sees, and whether the engine can go on after it."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from pathlib import Path

from crl.errors import CrlError, EngineDied, StageFailed
from crl.run.files import disk_error


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
            next_step="it is tried again in a new engine; if it fails again use a smaller method.rollout.batch or"
            " wave_groups, a shorter context of the roles, a smaller deepspeed.micro_batch, gradient_checkpointing,"
            " or bfloat16",
        )
        return Failure(died, text, fatal=True)
    failed = StageFailed(
        _last_line(error),
        where=f"{where}, {_place(error)}",
        next_step="the log holds the traceback; the stage was not committed, resume runs it again",
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
