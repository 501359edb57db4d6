"""What an exception of a stage means for the engine and for the attempt."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from crl.config.keys import field_schema
from crl.engine.failures import LESS_MEMORY, advised, failure_of
from crl.errors import BadInput, CrlError, EngineDied, StageFailed, StageTimedOut


@pytest.mark.parametrize(
    ("error", "died"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), False),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_memory_that_is_refused_ends_the_engine_and_is_tried_again(error: Exception, died: bool) -> None:
    """By Python, by mmap under a limit of address space (keys and values), by torch."""
    failure = failure_of(error, "round 1, collect")
    assert failure.fatal is died
    assert isinstance(failure.error, EngineDied if died else StageFailed)
    assert failure.error.transient is died
    assert ("method.rollout.batch" in str(failure.error)) is died


def advice_of(error: CrlError, place: tuple[int, str], attempts: tuple[int, int] = (1, 1)) -> str:
    advised(error, Path("runs/mine"), place, "extractor", attempts)
    return str(error)


def test_what_is_advised_can_be_followed() -> None:
    """No promise of another attempt after the last one; a frozen setting comes with the command that changes it."""
    died = failure_of(MemoryError(), "round 3, distill").error
    told = advice_of(died, (3, "distill"), (3, 3))
    assert "(attempt 3 of 3)" in told and "again in a new engine" not in told
    assert "method.roles.extractor.deepspeed.micro_batch" in told and "ROLE" not in told
    command = "crl fork runs/mine --round 2 --name mine-2 --set method.roles.extractor.deepspeed.micro_batch=VALUE"
    assert command in told
    first = advice_of(failure_of(MemoryError(), "round 0, warm_start").error, (0, "warm_start"))
    assert "crl fork" not in first and "--set name=mine-2" in first, "before round 1 there is no round to fork at"

    plain = advice_of(StageTimedOut("too long", next_step="raise runtime.stage_time_limit_seconds"), (3, "distill"))
    assert plain == "too long\nWhat to do: raise runtime.stage_time_limit_seconds", "the runtime is not frozen"
    assert advice_of(BadInput("no"), (1, "plan"), (2, 3)) == "no", "what is not tried again has one attempt"


def test_every_setting_that_an_advice_names_is_one() -> None:
    for setting in re.findall(r"method(?:\.\w+)+", LESS_MEMORY.replace("ROLE", "actor")):
        field_schema(setting)
