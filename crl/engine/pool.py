"""The engines of a track: one per shard, and one over all ranks of an update. Each starts with its first job.

And which accelerators each of them uses, without importing torch: shards take the visible devices in turn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crl.config import NodesConfig
from crl.engine.supervisor import Engine

OnLine = Callable[[str, str], None]
"""Told an engine's name and a line it wrote."""


class EnginePool:
    """Made once a track. `environment` is added to that of every engine, `prefix` to its name; its shards count from
    `first_shard` on where devices are given out, of which each uses `gpus`; `nodes` are the machines of its ranks."""

    def __init__(
        self,
        environment: Mapping[str, str],
        on_line: OnLine,
        *,
        prefix: str = "",
        first_shard: int = 0,
        gpus: int = 1,
        nodes: NodesConfig | None = None,
    ) -> None:
        self.environment = dict(environment)
        self._on_line, self._nodes = on_line, nodes
        self._prefix, self._first_shard, self._gpus = prefix, first_shard, gpus
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def shard(self, number: int) -> Engine:
        """The engine of a shard, on the devices of its number."""
        environment = device_environment(self._first_shard + number, self._gpus)
        return self._engine(f"{self._prefix}shard-{number}", 1, environment, None)

    def ranks(self, number: int) -> Engine:
        """The engine of so many ranks, on the devices from those of shard 0 on. On several machines that of another
        number ends: all meet at one port."""
        name = f"{self._prefix}ranks-{number}"
        if self._nodes is not None:
            for engine in self.started():
                if engine.world_size > 1 and engine.name != name:
                    engine.stop()
            return self._engine(name, number, {}, self._nodes)
        return self._engine(name, number, device_environment(self._first_shard, self._gpus, ranks=number), None)

    def shards(self, count: int) -> list[Engine]:
        """The first engines, one per shard."""
        return [self.shard(number) for number in range(count)]

    def started(self) -> Sequence[Engine]:
        """Every engine that was asked for so far."""
        return tuple(self._engines.values())

    def release_others(self, kept: Engine, *, to_train: bool) -> None:
        """Have the other engines free their models: all of them where one is to be trained, else those of ranks.

        What samples in the others is needed again soon: a vLLM server takes minutes to start.
        """
        for engine in self.started():
            if engine is not kept and (to_train or engine.world_size > 1):
                engine.release()

    def cancel(self) -> None:
        """End every engine from another thread; running jobs raise :class:`Cancelled` in their own."""
        for engine in self.started():
            engine.cancel()

    def stop(self) -> None:
        """End every engine in peace. They start again with their next job."""
        for engine in self.started():
            engine.stop()

    def _engine(self, name: str, world_size: int, environment: Mapping[str, str], nodes: NodesConfig | None) -> Engine:
        with self._lock:
            if name not in self._engines:
                self._engines[name] = Engine(
                    name=name,
                    world_size=world_size,
                    environment={**self.environment, **environment},
                    on_line=lambda text: self._on_line(name, text),
                    nodes=nodes,
                )
            return self._engines[name]


def device_environment(
    shard: int, gpus: int = 1, devices_directory: Path = Path("/dev"), *, ranks: int | None = None
) -> dict[str, str]:
    """`CUDA_VISIBLE_DEVICES` of one of several engines, each of which uses so many `gpus`; of an engine of several
    `ranks`, one device per rank, from the first of the shard on.

    Empty where there is nothing to choose: with no more devices than one engine uses, with fewer than ranks, and for
    engine 0, which keeps all in sight and uses the first, so that single-engine runs are left as they are. Where there
    are fewer devices than all engines use, they begin again with the first.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        numbers = [path.name.removeprefix("nvidia") for path in devices_directory.glob("nvidia[0-9]*")]
        # CUDA counts what it sees from 0: a container with nvidia2 and nvidia5 has 0 and 1.
        devices = [str(index) for index in range(sum(number.isdigit() for number in numbers))]
    else:
        devices = [device.strip() for device in visible.split(",") if device.strip()]
    if shard == 0 or len(devices) <= gpus or len(devices) < (ranks or 0):
        return {}
    first = shard % (len(devices) // gpus) * gpus
    return {"CUDA_VISIBLE_DEVICES": ",".join((devices + devices)[first : first + (ranks or gpus)])}
