"""How an engine is started: the command line, and the import path and network of its processes."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_WORKER = "crl.engine.worker"


def command_line(world_size: int) -> list[str]:
    """One process runs the worker itself; several run it under torch's launcher, meeting on the loopback interface."""
    if world_size == 1:
        return [sys.executable, "-m", _WORKER]
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", "0"]
    return [sys.executable, "-m", *launcher, "--nproc-per-node", str(world_size), "-m", _WORKER]


def launch_environment() -> dict[str, str]:
    """The import path of this process, and where ranks meet: on this machine only."""
    return {
        "PYTHONPATH": os.pathsep.join(_import_path()),
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback()),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", _loopback()),
    }


def _import_path() -> list[str]:
    """What this process can import beyond the installation (a recipe kept elsewhere, say), in the same order."""
    paths = sysconfig.get_paths()
    standard = Path(paths["stdlib"]).resolve()
    installed = {Path(place).resolve() for place in paths.values()} | {standard / "lib-dynload"}
    places = [Path(entry or ".").resolve() for entry in sys.path]
    kept = [str(place) for place in places if place not in installed and place.suffix != ".zip"]
    return list(dict.fromkeys(kept))


def _loopback() -> str:
    return "lo" if sys.platform == "linux" else "lo0"
