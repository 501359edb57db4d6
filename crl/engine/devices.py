"""Which accelerators each of several engines uses, without importing torch: shards take the visible devices in turn."""

from __future__ import annotations

import os
from pathlib import Path


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
