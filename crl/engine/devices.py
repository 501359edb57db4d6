"""Which accelerator each of several engines uses, without importing torch: shards take the visible devices in turn."""

from __future__ import annotations

import os
from pathlib import Path


def device_environment(shard: int, devices_directory: Path = Path("/dev")) -> dict[str, str]:
    """`CUDA_VISIBLE_DEVICES` of one of several engines. Empty with at most one device: there is nothing to choose.

    Engine 0 keeps all devices in sight with the first in front, so that single-engine runs are left as they are.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        numbers = [path.name.removeprefix("nvidia") for path in devices_directory.glob("nvidia[0-9]*")]
        devices = sorted((number for number in numbers if number.isdigit()), key=int)
    else:
        devices = [device.strip() for device in visible.split(",") if device.strip()]
    if shard == 0 or len(devices) < 2:
        return {}
    return {"CUDA_VISIBLE_DEVICES": devices[shard % len(devices)]}
