"""The process that validates rounds: `python -m crl.validation.process`, started by the subscriber only.

It lives as long as the run, so that Great Expectations is imported once. Its priority is a little lower than that of
the run, which waits for it in the end: with the lowest one it would wait for every other program as well. Its jobs come
as those of an engine do, and it ends as an engine ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crl.engine.jobs import Job
from crl.engine.worker import Worker, main

_NICENESS = 5
"""A third of the processor's time that another process gets on the same core."""


class Validator(Worker):
    """Does the jobs `validate`; it holds no model and plays nothing."""

    def work_of(self, job: Job) -> Callable[[], Any]:
        """What a job asks for, ready to be called."""
        return partial(_validate, job)


def _validate(job: Job) -> dict[str, Any]:
    from crl.validation.round import validate_round

    return validate_round(Path(job.run_path), job.round, job.expectations).model_dump(mode="json")


def give_way() -> None:
    """Lower the priority of this process a little."""
    with contextlib.suppress(OSError):  # where that may not be chosen
        os.nice(_NICENESS)


if __name__ == "__main__":
    give_way()
    main(Validator)
