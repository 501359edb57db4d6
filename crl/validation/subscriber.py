"""Has rounds validated while a run goes on: in a thread beside the driver, by a process of its own.

Nothing here can fail a round. A process that dies, hangs or lacks the package is a verdict, `not validated`, with the
reason; the next round is tried again. A verdict that earlier rounds lack is made as well, of the newest of them: the
others are for `crl checks docs`. A run that ends in peace waits for what is left, one that fails does not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from crl.config import Runtime
from crl.engine.events import Event, RoundDone
from crl.engine.jobs import Job, JobKind
from crl.engine.supervisor import Cancelled, Engine
from crl.errors import CrlError
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.validations import Verdict, keep_verdict, load_verdict, stage_digests

_MOST_LACKING = 10
"""Newest earlier rounds without a verdict that are validated beside a run."""
_LIMIT_SECONDS = 600.0
"""Longest validation of a round: of processor time, since other work may be all that goes on."""
_TICK_SECONDS = 0.5
"""Short, so that Ctrl-C reaches the thread that waits."""
_END_SECONDS = 10.0
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

_open: dict[Path, Validations] = {}


class Validations:
    """A subscriber for :meth:`crl.engine.driver.Driver.subscribe`, and a context manager.

    Args:
        run: the run.
        runtime: `validate_every` and `expectations` of it.
        say: takes a line for a person: alarms, rounds that could not be validated, a wait at the end.
        through: called for every round to validate, with the run's path and the number; it has to call
            :meth:`validate`. A Prefect task, by default nothing in between.
    """

    def __init__(
        self,
        run: RunDirectory,
        runtime: Runtime,
        say: Callable[[str], None],
        through: Callable[[str, int], object] | None = None,
    ) -> None:
        self._run, self._every, self._say = run, runtime.validate_every, say
        self._expectations = runtime.expectations
        self._through = through or (lambda path, number: self.validate(number))
        self._done: set[int] = set()
        """Rounds that were tried."""
        self._rounds: SimpleQueue[int | None] = SimpleQueue()
        self._waiting: set[int] = set()
        self._stopped = False
        self._engine = Engine(name="validation", environment=_THREADS, module="crl.validation.process")
        # Its maker's context: a task has to know its flow run.
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name="validations", daemon=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundDone) and self._every and event.round % self._every == 0:
            self._waiting.add(event.round)
            self._rounds.put(event.round)

    def __enter__(self) -> Validations:
        _open[self._run.path.resolve()] = self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rounds.put(None)
        try:
            if kind is None and self._waiting:
                rounds = f"round{'s' * (len(self._waiting) > 1)} {', '.join(map(str, sorted(self._waiting)))}"
                self._say(f"waiting for the data checks of {rounds} (Great Expectations)")
            while kind is None and self._thread.is_alive():
                self._thread.join(_TICK_SECONDS)
        finally:
            self._stopped = True
            self._engine.cancel()
            self._thread.join(_END_SECONDS)
            self._engine.stop()
            _open.pop(self._run.path.resolve(), None)

    def validate(self, number: int) -> Verdict:
        """Have a round validated and its verdict kept; why not, where that could not be done."""
        job = Job(
            JobKind.validate,
            str(self._run.path.resolve()),
            number,
            "validate",
            token=0,
            expectations=self._expectations,
        )
        try:
            return Verdict.model_validate(self._engine.run(job, time_limit=_LIMIT_SECONDS, of_processor=True))
        except (CrlError, OSError) as error:
            reason = error.found if isinstance(error, CrlError) else str(error)
            verdict = Verdict(
                round=number,
                outcome="not validated",
                reason=" ".join(reason.split()),
                stages=stage_digests(self._run.path, number),
            )
            with contextlib.suppress(CrlError, OSError):  # the disk may be why
                keep_verdict(self._run.path, verdict)
            return verdict

    def _work(self) -> None:
        number: int | None = 0
        while number is not None and not self._stopped:
            number = self._rounds.get()
            with contextlib.suppress(CrlError, OSError):  # a record that cannot be read is no concern of this thread
                for each in self._lacking(number):
                    if not self._stopped:
                        self._try(each)
            self._waiting = {each for each in self._waiting if number is not None and each > number}

    def _lacking(self, last: int | None) -> list[int]:
        """Complete rounds up to this one (None: all) that lack a verdict and were not tried; not those of a parent."""
        rounds = [each for each in self._run.rounds() if self._every and each % self._every == 0]
        due = [each for each in rounds if (last is None or each <= last) and each not in self._done]
        return [each for each in due if self._is_due(each)][-_MOST_LACKING:]

    def _is_due(self, number: int) -> bool:
        verdict = load_verdict(self._run.path, number)
        if verdict is not None and verdict.outcome != "not validated":
            return False
        stages = [stage.name for stage in recipe_in(self._run).stages_of(self._run.method, number)]
        own = any(self._run.lineage.maker(number, stage) is None for stage in stages)
        return own and all(self._run.is_complete(number, stage) for stage in stages)

    def _try(self, number: int) -> None:
        self._done.add(number)
        try:
            self._through(str(self._run.path), number)
            verdict = load_verdict(self._run.path, number)
        except Cancelled:
            return
        except Exception as error:  # Prefect's server may be away: the verdict is made without it
            self._say(f"Prefect cannot show the data checks of round {number}: {' '.join(str(error).split())}")
            verdict = load_verdict(self._run.path, number) or self.validate(number)
        if verdict is None:
            self._say(
                f"the data checks of round {number} have no result: its stages changed meanwhile, or the disk is full"
            )
        elif verdict.outcome == "not validated":
            self._say(f"round {number} was {verdict.summary()}")
        for alarm in verdict.alarms if verdict else ():
            self._say(f"alarm in round {number}, validate: {alarm}")


def validations_of(run_path: str | Path) -> Validations:
    """Those that are open on a run in this process: how a task finds what its flow opened. Raises KeyError."""
    return _open[Path(run_path).resolve()]
