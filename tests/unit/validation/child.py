"""A process that validates nothing and has mishaps on order: `$CRL_VALIDATION` holds JSON, round to mishap."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crl.engine.jobs import Job
from crl.engine.worker import Worker, main
from crl.run.validations import Verdict, keep_verdict, stage_digests

ORDERS = "CRL_VALIDATION"


class Child(Worker):
    """As `crl.validation.process`, without Great Expectations."""

    def work_of(self, job: Job) -> Callable[[], Any]:
        return partial(validate, job)


def validate(job: Job) -> dict[str, Any]:
    match json.loads(os.environ.get(ORDERS, "{}")).get(str(job.round)):
        case "dies":
            print("segmentation fault, or so", flush=True)
            os._exit(3)
        case "hangs":
            time.sleep(3600)
        case "raises":
            raise ValueError("this is no frame")
    path = Path(job.run_path)
    sys.stderr.write(f"{os.getpid()}\n")
    verdict = Verdict(round=job.round, outcome="passed", stages=stage_digests(path, job.round), megabytes=os.getpid())
    keep_verdict(path, verdict)
    return verdict.model_dump(mode="json")


if __name__ == "__main__":
    main(Child)
