"""How an engine is started: the command line, and the environment of its processes, on this machine or on several."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from crl.config import NodesConfig
from crl.engine.nodes import VARIABLE, orders
from crl.run.guardian import PARENT, on_loopback

_WORKER = "crl.engine.worker"


def start_of(
    world_size: int, nodes: NodesConfig | None, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of the process here that starts the workers, whose `environment` this is."""
    if nodes is None:
        return command_line(world_size), {**environment, **launch_environment()}
    there = {**environment, "PYTHONPATH": os.pathsep.join(_import_path()), "PYTHONUNBUFFERED": "1"}
    here = {PARENT: str(os.getpid()), "PYTHONPATH": there["PYTHONPATH"], "PYTHONUNBUFFERED": "1"}
    made = json.dumps(orders(nodes, world_size, there, _WORKER))
    return [sys.executable, "-m", "crl.engine.nodes"], {**here, VARIABLE: made}


def command_line(world_size: int) -> list[str]:
    """One process runs the worker itself; several are started by a launcher."""
    if world_size == 1:
        return [sys.executable, "-m", _WORKER]
    return [sys.executable, "-m", "crl.engine.ranks", "--ranks", str(world_size), "--", "-m", _WORKER]


def launch_environment() -> dict[str, str]:
    """The import path of this process, what ends the engine with it, and where its ranks meet: on this machine only."""
    return {
        PARENT: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(_import_path()),
        "PYTHONUNBUFFERED": "1",
        **on_loopback(),
    }


def _import_path() -> list[str]:
    """What this process can import beyond the installation (a recipe kept elsewhere, say), in the same order."""
    paths = sysconfig.get_paths()
    standard = Path(paths["stdlib"]).resolve()
    installed = {Path(place).resolve() for place in paths.values()} | {standard / "lib-dynload"}
    places = [Path(entry or ".").resolve() for entry in sys.path]
    kept = [str(place) for place in places if place not in installed and place.suffix != ".zip"]
    return list(dict.fromkeys(kept))
