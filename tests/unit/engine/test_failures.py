"""What an exception of a stage means for the engine and for the attempt."""

from __future__ import annotations

import errno
import os

import pytest

from crl.engine.failures import failure_of
from crl.errors import EngineDied, StageFailed


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
