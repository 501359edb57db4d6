"""The engine process: `python -m crl.engine.worker`, started by the supervisor only.

It connects to the supervisor, then executes one job after the other and reports progress. Its state (models,
environments) is only a cache: it may be killed at any moment, and a new one starts from the record. When the supervisor
(or the launcher) is killed, this process ends, in the middle of a stage too. Under a launcher there are several such
processes (ranks); all take part in updates, rank 0 alone writes the record.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from crl.engine.execute import Attempt, execute_part, execute_stage, missing_parts
from crl.engine.failures import failure_of
from crl.engine.jobs import Job, JobKind, decode, encode
from crl.engine.listener import ADDRESS_VARIABLE, connect
from crl.engine.process import mark_end
from crl.engine.services import EngineServices
from crl.errors import EngineDied
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.guardian import end_with_parent

_PROGRESS_INTERVAL_SECONDS = 0.2


class Worker:
    """Executes jobs for one rank."""

    def __init__(self, connection: Connection, rank: int, world_size: int) -> None:
        self._connection, self._rank, self._world_size = connection, rank, world_size
        self._opened: dict[str, tuple[RunDirectory, EngineServices]] = {}
        self._sending = threading.Lock()
        self._last_progress = 0.0
        self._jobs = 0

    def serve(self) -> None:
        """Answer jobs until asked to stop. Raises EOFError or OSError where the supervisor is gone."""
        self._send(type="hello", rank=self._rank, pid=os.getpid())
        while (message := decode(self._connection.recv_bytes()))["type"] == "job":
            job = Job.from_json(message["job"])
            answer: dict[str, Any]
            try:
                work = self.work_of(job)
                answer = {"type": "result", "result": work()}
            except BaseException as error:
                # Also SystemExit: a library that exits must not take the engine down without a word.
                answer = _failure(job, error)
            if self._rank == 0:  # whose lines alone are waited for: the output of all ranks is one
                self._jobs += 1
                mark_end(self._jobs)
            self._send(jobs=self._jobs, **answer)
        for _, services in self._opened.values():
            services.close()

    def work_of(self, job: Job) -> Callable[[], Any]:
        """What a job asks for, ready to be called."""
        if job.kind is JobKind.release:
            return self._release
        run, services = self._open(job.run_path)
        recipe = recipe_in(run)
        if job.kind is JobKind.count_parts:
            return partial(_count_parts, run, recipe, job, services)
        services.begin(job.round, job.stage, job.part, attempt=job.attempt)
        self._last_progress = 0.0  # the beginning of a stage is reported
        if self._rank > 0:
            return partial(_take_part, run, recipe, job, services)
        attempt = Attempt(
            token=job.token,
            progress=self._progress,
            number=job.attempt,
            command=job.command,
            expectations=job.expectations,
            broken_episodes_limit=job.broken_episodes_limit,
            begun=lambda directory: self._send(type="begun", directory=str(directory)),
            before_commit=self._wait_for_ranks,
            chat_templates=services.chat_templates,
            ways=services.ways,
        )
        if job.kind is JobKind.part:
            part = cast(int, job.part)
            return partial(execute_part, run, recipe, job.round, job.stage, part, attempt=attempt, services=services)
        return partial(execute_stage, run, recipe, job.round, job.stage, attempt=attempt, services=services)

    def _release(self) -> dict[str, Any]:
        for _, services in self._opened.values():
            services.release()
        return {}

    def _open(self, run_path: str) -> tuple[RunDirectory, EngineServices]:
        if run_path not in self._opened:
            run = RunDirectory.open(Path(run_path))
            self._opened[run_path] = (run, EngineServices(run, rank=self._rank, world_size=self._world_size))
        return self._opened[run_path]

    def _progress(self, metrics: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_INTERVAL_SECONDS or metrics["done"] >= metrics["total"]:
            self._last_progress = now
            self._send(type="progress", metrics=metrics)

    def _wait_for_ranks(self) -> None:
        """Commit only when every rank has written its part of the checkpoint."""
        if self._world_size == 1:
            return
        self._send(type="ready")
        message = decode(self._connection.recv_bytes())
        if message["type"] != "commit":
            raise EngineDied(f"the supervisor sent {message['type']} in place of the permission to commit")

    def _send(self, **message: Any) -> None:
        with self._sending:
            self._connection.send_bytes(encode(message))


def _count_parts(run: RunDirectory, recipe: Recipe, job: Job, services: EngineServices) -> dict[str, Any]:
    if run.is_complete(job.round, job.stage):
        return {"count": 0, "missing": []}
    count, missing = missing_parts(run, recipe, job.round, job.stage, services)
    return {"count": count, "missing": missing}


def _take_part(run: RunDirectory, recipe: Recipe, job: Job, services: EngineServices) -> None:
    """Be a rank above 0 of an update: same reads, same collective calls; rank 0 writes the same rows into the record.

    A sharded checkpoint puts this rank's files where rank 0 writes the stage.
    """
    from crl.audit.again import make

    make(run, recipe, job.round, job.stage, services, directory=Path(cast(str, job.directory)))


def _failure(job: Job, error: BaseException) -> dict[str, Any]:
    where = f"round {job.round}, stage {job.stage}" + ("" if job.part is None else f", part {job.part}")
    failure = failure_of(error, where)
    payload = failure.error.payload()
    return {"type": "error", "error": payload, "traceback": failure.traceback, "fatal": failure.fatal}


def main(worker: type[Worker] = Worker) -> None:
    """Connect to the supervisor named in the environment and serve it."""
    end_with_parent()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    address = os.environ[ADDRESS_VARIABLE]
    try:
        connection = connect(os.environ)
    except (EOFError, OSError) as error:  # an exit code of 0 would let the supervisor wait
        sys.exit(f"rank {rank} does not reach its supervisor at {address}: {type(error).__name__}: {error}")
    with contextlib.suppress(EOFError, ConnectionError):  # without a supervisor there is nothing to live for
        worker(connection, rank, world_size).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shutdown: thread pools of torch may abort there, which would look like a crash.
    os._exit(0)


if __name__ == "__main__":
    main()
