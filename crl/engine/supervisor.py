"""The flow's side of an engine: start it, give it jobs, notice its death, end it on time limit or cancel.

An :class:`Engine` is one worker process, or several ranks under a launcher on one machine or more. It starts with
its first job, stays warm, and is started again after it died. It may be used from any thread, one job at a time. The
worker's output is read line by line and handed on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from crl.config import NodesConfig
from crl.engine.failures import LESS_MEMORY
from crl.engine.jobs import Job, JobKind, decode, encode
from crl.engine.launch import WORKER, start_of
from crl.engine.listener import WorkerListener
from crl.engine.process import LINE_LENGTH, OnLine, ProcessGroup, ProcessOutput, describe_exit, own_folder
from crl.errors import EngineDied, StageTimedOut, from_payload
from crl.run.guardian import STORE_VARIABLE

_TICK_SECONDS = 0.2
_START_SECONDS = 600.0
_STOP_SECONDS = 5.0
_LAST_LINES_SECONDS = 10.0
"""For lines that are under way when a job is done or a process has died; on an idle machine they take no time."""

_HANGS = 0.01
"""A process that computes for a smaller share of the time hangs. One on a busy machine computes for more."""

OnMessage = Callable[[dict[str, Any]], None]
Overdue = Callable[[], bool]
"""Whether a job has taken too long."""


class Cancelled(BaseException):
    """The job was cancelled from another thread. Not an error: nothing may catch and retry it."""


class ProcessorLimit:
    """A time limit that a busy machine does not shorten: `seconds` of computing, or as many on the clock of none.

    Args:
        seconds: the limit.
        used: processor time so far, in seconds.
        clock: the time in seconds.
    """

    def __init__(self, seconds: float, used: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._used, self._clock = seconds, used, clock
        self._first = used()
        self._last, self._since = self._first, clock()
        """When it last was seen to compute, and how much it had computed then."""

    def __call__(self) -> bool:
        """Whether it has passed."""
        used, now = self._used(), self._clock()
        if used - self._last > self._seconds * _HANGS:
            self._last, self._since = used, now
        return used - self._first > self._seconds or now - self._since > self._seconds


class Engine:
    """A supervised worker, or `world_size` ranks on this machine or on those of `nodes`. `environment` is added to the
    workers' environment; `module` is what one worker alone runs."""

    def __init__(
        self,
        *,
        name: str = "engine",
        world_size: int = 1,
        environment: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
        nodes: NodesConfig | None = None,
        module: str = WORKER,
    ) -> None:
        self.name, self.world_size = name, world_size
        self._nodes, self._module = nodes, module
        self._environment = dict(environment or {})
        self._on_line = on_line
        self._one_job = threading.RLock()
        self._process: ProcessGroup | None = None
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._folder: Path | None = None
        """Where ranks on this machine meet."""
        self._cancelled = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.running

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, rank 0 first."""
        return list(self._pids)

    def run(
        self,
        job: Job,
        *,
        on_message: OnMessage | None = None,
        time_limit: float | None = None,
        of_processor: bool = False,
    ) -> dict[str, Any]:
        """Have a job done; the engine is started if need be.

        Raises what the stage raised; EngineDied where the process ended; StageTimedOut where `time_limit` seconds
        passed (the engine is ended then), with `of_processor` those of a :class:`ProcessorLimit`. On anything else
        that interrupts the wait (cancellation, Ctrl-C) the engine is ended before the interruption goes on its way.
        """
        with self._one_job:
            overdue = self._overdue(time_limit, of_processor)
            try:
                self._ensure_started(job, overdue)
                # What frees memory goes to every rank at once: each holds models of its own. A stage goes to rank 0,
                # and to the others once it has begun to write; it is committed when all are done.
                asked = self.world_size if job.kind is JobKind.release else 1
                for rank in range(asked):
                    self._send(rank, {"type": "job", "job": job}, job)
                others_busy, wants_to_commit = asked - 1, False
                result: dict[str, Any] | None = None
                while result is None or others_busy:
                    for rank, message in self._heard(job, overdue):
                        kind = message["type"]
                        if kind == "error":
                            raise self._rebuilt(message)
                        if kind == "result" and rank == 0:
                            self._hear_out(message)
                            result = message["result"]
                        elif kind == "begun":
                            for other in range(1, self.world_size):
                                job_there = dataclasses.replace(job, directory=message["directory"])
                                self._send(other, {"type": "job", "job": job_there}, job)
                            others_busy = self.world_size - 1
                        elif kind == "result":
                            others_busy -= 1
                        elif kind == "progress" and on_message is not None:
                            on_message(message)
                        elif kind == "ready":
                            wants_to_commit = True
                    if wants_to_commit and not others_busy:
                        wants_to_commit = False
                        self._send(0, {"type": "commit"}, job)
                return result
            except BaseException as error:
                if not getattr(error, "engine_survives", False):
                    self.kill()
                raise
            finally:
                self._cancelled.clear()

    def release(self) -> None:
        """Have every model freed, if the engine runs; one that takes too long is ended, which frees them as well."""
        if self.running:
            with contextlib.suppress(StageTimedOut):
                self.run(Job(JobKind.release, run_path="", round=0, stage="", token=0), time_limit=60)

    def cancel(self) -> None:
        """End the engine from another thread; a running job raises :class:`Cancelled` in its own."""
        self._cancelled.set()
        if (process := self._process) is not None:
            process.cancel()

    def stop(self) -> None:
        """End the engine in peace: idle workers leave by themselves, a busy one is cancelled first."""
        if not self._one_job.acquire(timeout=0):
            self.cancel()
            self._one_job.acquire()
        try:
            if self.running:
                for connection in self._connections:
                    with contextlib.suppress(OSError):
                        connection.send_bytes(encode({"type": "stop"}))
                assert self._process is not None
                self._process.wait(_STOP_SECONDS)
            self.kill()
            self._cancelled.clear()
        finally:
            self._one_job.release()

    def kill(self) -> None:
        """End every process of the engine now and forget it; the next job starts a new one."""
        if self._process is not None:
            self._process.kill()
        for connection in self._connections:
            connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process, self._connections, self._pids, self._folder = None, [], [], None

    def _overdue(self, time_limit: float | None, of_processor: bool) -> Overdue:
        if time_limit is None:
            return lambda: False
        if of_processor:
            return ProcessorLimit(time_limit, self._processor_seconds)
        deadline = time.monotonic() + time_limit
        return lambda: time.monotonic() > deadline

    def _processor_seconds(self) -> float:
        """Processor time of the engine's process; 0 where none lives."""
        with contextlib.suppress(psutil.Error):
            if self._process is not None and self._process.pid is not None and self.running:
                times = psutil.Process(self._process.pid).cpu_times()
                return float(times.user + times.system)
        return 0.0

    # -- starting --------------------------------------------------------------------------------------------------

    def _ensure_started(self, job: Job, overdue: Overdue) -> None:
        if self.running:
            return
        self.kill()
        nodes = self._nodes
        with WorkerListener(self.world_size, None if nodes is None else nodes.address_here()) as listener:
            workers = {**self._environment, **listener.environment()}
            if self.world_size > 1 and nodes is None:
                self._folder = own_folder()
                workers[STORE_VARIABLE] = str(self._folder / "store")
            command, environment = start_of(self.world_size, nodes, workers, self._module)
            self._process = ProcessGroup(
                command,
                name=self.name,
                environment=environment,
                on_line=lambda text: self._on_line(text[:LINE_LENGTH]) if self._on_line is not None else None,
            )
            self._process.start()
            started = time.monotonic()
            ranks: dict[int, tuple[Connection, int]] = {}
            while len(ranks) < self.world_size:
                self._check_waiting(job, overdue)
                if time.monotonic() - started > _START_SECONDS:
                    raise EngineDied(f"the engine did not start within {_START_SECONDS:.0f} s", **self._context(job))
                connection = listener.accept(_TICK_SECONDS)
                if connection is not None:
                    try:
                        hello = decode(connection.recv_bytes())
                    except (EOFError, OSError):
                        raise self._died(job) from None
                    ranks[hello["rank"]] = (connection, hello["pid"])
            self._connections = [ranks[rank][0] for rank in sorted(ranks)]
            self._pids = [ranks[rank][1] for rank in sorted(ranks)]

    # -- one job ---------------------------------------------------------------------------------------------------

    def _heard(self, job: Job, overdue: Overdue) -> Iterator[tuple[int, dict[str, Any]]]:
        """Messages that arrive within a moment, each with the rank that sent it."""
        self._check_waiting(job, overdue)
        # One place reads: a connection that `wait` found ready has a message only until somebody took it.
        for ready in wait(self._connections, timeout=_TICK_SECONDS):
            rank = next(index for index, connection in enumerate(self._connections) if connection is ready)
            try:
                yield rank, decode(self._connections[rank].recv_bytes())
            except (EOFError, OSError):
                raise self._died(job) from None

    def _send(self, rank: int, message: dict[str, Any], job: Job) -> None:
        try:
            self._connections[rank].send_bytes(encode(message))
        except OSError:
            raise self._died(job) from None

    def _check_waiting(self, job: Job, overdue: Overdue) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"round {job.round}, stage {job.stage}")
        if overdue():
            raise StageTimedOut(
                f"stage {job.stage} ran past its time limit, so its engine was ended",
                where=f"round {job.round}, stage {job.stage}",
                next_step="raise runtime.stage_time_limit_seconds if the stage needs longer; nothing was committed",
            )
        if not self.running:
            raise self._died(job)

    def _hear_out(self, message: dict[str, Any]) -> ProcessOutput:
        """Wait for the lines that were written before this message, the last one of a job."""
        assert self._process is not None and self._process.output is not None
        self._process.output.wait_for(message["jobs"], _LAST_LINES_SECONDS)
        return self._process.output

    def _rebuilt(self, message: dict[str, Any]) -> BaseException:
        error = from_payload(message["error"])
        output = self._hear_out(message)
        if message["traceback"]:
            error.add_note(message["traceback"])
            for line in message["traceback"].splitlines():
                output.tell(line)
        # One rank that failed leaves the others waiting for it in a collective call: only a new start helps.
        error.engine_survives = not message["fatal"] and self.world_size == 1  # type: ignore[attr-defined]
        return error

    def _died(self, job: Job) -> BaseException:
        if self._cancelled.is_set():
            return Cancelled(f"round {job.round}, stage {job.stage}")
        code = self._process.wait(_LAST_LINES_SECONDS) if self._process is not None else None
        return EngineDied(f"the engine process {describe_exit(code)}", **self._context(job, killed=code))

    def _context(self, job: Job, killed: int | None = None) -> dict[str, str]:
        """`where` and `next_step` of an EngineDied: the last lines of the log say more than the exit code."""
        last = self._process.last_lines(5) if self._process is not None else []
        where = f"round {job.round}, stage {job.stage}"
        if last:
            where += "; last lines of its log:\n  " + "\n  ".join(last)
        step = "read its log; complete stages are kept, and `crl resume` or Retry continues from here"
        if killed in (-signal.SIGKILL, 128 + signal.SIGKILL):
            step = f"if nobody sent the SIGKILL, the system was probably out of memory: {LESS_MEMORY}"
        return {"where": where, "next_step": step}
