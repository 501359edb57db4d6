"""The engines of a driver: one a shard, and one over all ranks of an update. Each starts with its first job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from crl.engine.devices import device_environment
from crl.engine.spread import Figures, PartOrder, PartOutcome, run_on
from crl.engine.supervisor import Cancelled, Engine

OnLine = Callable[[str, str], None]
"""Told an engine's name and a line it wrote."""


class EnginePool:
    """Made once a driver. `environment` is added to that of every engine."""

    def __init__(self, environment: Mapping[str, str], on_line: OnLine) -> None:
        self.environment = dict(environment)
        self._on_line = on_line
        self._engines: dict[str, Engine] = {}
        self._lent: dict[int, OnLine] = {}
        """Shards that run a part for somebody, with where its lines go."""
        self._lock = threading.Lock()
        self._cancelled = False

    def shard(self, number: int) -> Engine:
        """The engine of a shard, on the device of its number."""
        return self._engine(f"shard-{number}", 1, device_environment(number))

    def ranks(self, number: int) -> Engine:
        """The engine of so many ranks."""
        return self._engine(f"ranks-{number}", number, {})

    def shards(self, count: int) -> list[Engine]:
        """The first engines, one a shard."""
        return [self.shard(number) for number in range(count)]

    def started(self) -> Sequence[Engine]:
        """Every engine that was asked for so far."""
        return tuple(self._engines.values())

    def run(self, order: PartOrder, on_line: OnLine, on_figures: Callable[[Figures], None]) -> PartOutcome:
        """Run a part in the free shard engine of the lowest number, from any thread. Its lines go to `on_line` too.

        Raises what the part raises; Cancelled once the pool was cancelled, until it recovers: a thread that slept must
        not begin again.
        """
        with self._lock:
            if self._cancelled:
                raise Cancelled("the engines were ended")
            number = next(number for number in range(len(self._lent) + 1) if number not in self._lent)
            self._lent[number] = on_line
        try:
            return run_on(self.shard(number), order, on_figures)
        finally:
            with self._lock:
                del self._lent[number]

    def release_others(self, kept: Engine) -> None:
        """Have every engine but one free its models."""
        for engine in self.started():
            if engine is not kept:
                engine.release()

    def cancel(self) -> None:
        """End every engine from another thread; running jobs raise :class:`Cancelled` in their own."""
        with self._lock:
            self._cancelled = True
        for engine in self.started():
            engine.cancel()

    def recover(self) -> None:
        """After a cancellation: an engine that was idle then must not take its next job for cancelled."""
        if self._cancelled:
            self.stop()

    def stop(self) -> None:
        """End every engine in peace. They start again with their next job."""
        for engine in self.started():
            engine.stop()
        with self._lock:
            self._cancelled = False

    def _engine(self, name: str, world_size: int, environment: Mapping[str, str]) -> Engine:
        with self._lock:
            if name not in self._engines:
                self._engines[name] = Engine(
                    name=name,
                    world_size=world_size,
                    environment={**self.environment, **environment},
                    on_line=lambda text: self._heard(name, text),
                )
            return self._engines[name]

    def _heard(self, name: str, text: str) -> None:
        self._on_line(name, text)
        kind, _, number = name.rpartition("-")
        if kind == "shard" and (listener := self._lent.get(int(number))) is not None:
            listener(name, text)
