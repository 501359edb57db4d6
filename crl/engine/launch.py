"""How an engine is started: by itself, as ranks on this machine, or as ranks on several.

One process runs the worker itself. Several ranks are started by a launcher, `python -m crl.engine.launch ranks`, which
ends all where one fails. torch's own launcher is not used: where its ranks meet is a store that listens on every
address of the machine and unpickles what it is sent. Ours opens none (`crl/learn/process_group.py` says where ranks
meet), and it ends with the supervisor that started it.

On several machines one process here, `python -m crl.engine.launch nodes`, stands for a launcher on each. It starts
`crl/engine/node.py` on every machine through the shell of `runtime.nodes`, writes to it what to run, and ends all of
them when one of them fails, when this process is asked to end or when its parent does; where this machine is lost, they
end by themselves. What they print is what it prints. An order holds the key to the supervisor: it goes through a pipe
and is on no command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.run.guardian import PARENT, end_with_parent, on_loopback

if TYPE_CHECKING:
    from crl.config import NodesConfig  # a launcher starts sooner without

WORKER = "crl.engine.worker"
_LAUNCH = "crl.engine.launch"
VARIABLE = "CRL_ENGINE_NODES"
"""The orders as JSON, for :func:`launch_nodes`."""
_SHARED = ("CRL_", "HF_", "NCCL_", "GLOO_", "DS_", "TORCH_NCCL_")
"""Variables of this process that the other machines get: models, networks. Their own others stay."""
_PRIVATE = ("CRL_STARTED_BY", "CRL_GUARDED_BY")
"""Numbers of processes of this machine."""
_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
_BEAT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
"""A machine that has heard nothing for so long ends what it runs."""


def start_of(
    world_size: int, nodes: NodesConfig | None, environment: Mapping[str, str], module: str = WORKER
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of the process here that starts the workers, whose `environment` this is. One
    process alone may be another `module` that serves as they do."""
    if nodes is None:
        return command_line(world_size, module), {**environment, **launch_environment()}
    there = {**environment, "PYTHONPATH": os.pathsep.join(_import_path()), "PYTHONUNBUFFERED": "1"}
    here = {PARENT: str(os.getpid()), "PYTHONPATH": there["PYTHONPATH"], "PYTHONUNBUFFERED": "1"}
    made = json.dumps(orders(nodes, world_size, there))
    return [sys.executable, "-m", _LAUNCH, "nodes"], {**here, VARIABLE: made}


def command_line(world_size: int, module: str = WORKER) -> list[str]:
    """One process runs the worker itself; several are started by a launcher."""
    if world_size == 1:
        return [sys.executable, "-m", module]
    return [sys.executable, "-m", _LAUNCH, "ranks", "--ranks", str(world_size), "--", "-m", WORKER]


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


def orders(nodes: NodesConfig, ranks: int, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each machine is to run: a launcher of its ranks, which meet at the endpoint. Raises BadInput where there is
    no room.

    `environment` is that of the workers.
    """
    placed = nodes.hosts_of(ranks)
    address, _, port = nodes.endpoint.partition(":")
    shared = {name: value for name, value in os.environ.items() if name.startswith(_SHARED) and name not in _PRIVATE}
    network = (
        {} if nodes.interface is None else dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), nodes.interface)
    )
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": port}
    made: list[dict[str, Any]] = []
    first = 0
    for host in placed:
        part = ["--ranks", str(ranks), "--first", str(first), "--here", str(host.slots)]
        first += host.slots
        made.append(
            {
                "shell": nodes.shell_for(host),
                "directory": str(Path.cwd()),
                "command": [sys.executable, "-m", _LAUNCH, "ranks", *part, "--", "-m", WORKER],
                "environment": {**shared, **environment, **network, **meeting},
            }
        )
    return made


def launch_ranks(words: Sequence[str]) -> int:
    """Start the ranks of this machine and wait for them; the first exit code that is not 0, as a shell gives it."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_LAUNCH} ranks", description="Start ranks, and end all where one fails."
    )
    parser.add_argument("--ranks", type=int, required=True, help="on all machines")
    parser.add_argument("--first", type=int, default=0, help="number of the first one here")
    parser.add_argument("--here", type=int, help="how many of them are on this machine (default: all)")
    parser.add_argument("command", nargs="+", help="what python runs as a rank")
    chosen = parser.parse_args(words)
    here = chosen.here or chosen.ranks
    end_with_parent()
    sizes = {"WORLD_SIZE": str(chosen.ranks), "LOCAL_WORLD_SIZE": str(here), PARENT: str(os.getpid())}
    started: dict[int, subprocess.Popen[bytes]] = {}
    for local in range(here):
        rank = {"RANK": str(chosen.first + local), "LOCAL_RANK": str(local)}
        process = subprocess.Popen([sys.executable, *chosen.command], env={**os.environ, **sizes, **rank})
        started[process.pid] = process
    while started:
        pid, status = os.wait()
        if started.pop(pid, None) is not None and (code := os.waitstatus_to_exitcode(status)):
            for process in started.values():
                process.kill()
            return code if code > 0 else 128 - code
    return 0


def launch_nodes() -> int:
    """Start the orders of the environment and wait; returns the first exit code that is not 0."""
    end_with_parent()
    agent = [sys.executable, "-P", str(Path(__file__).with_name("node.py"))]
    started: list[subprocess.Popen[bytes]] = []
    for order in json.loads(os.environ.pop(VARIABLE)):
        shell = order.pop("shell")
        # ssh joins its words with spaces, and a shell there takes them apart again; others pass them on as they are.
        words = map(shlex.quote, agent) if Path(shell[0]).name == "ssh" else agent
        process = subprocess.Popen([*shell, *words], stdin=subprocess.PIPE)
        started.append(process)
        _send(process, json.dumps({**order, "silence": _SILENCE_SECONDS}))
    codes: list[int | None] = [None]
    beat = time.monotonic()
    while None in codes and not any(codes):
        time.sleep(_TICK_SECONDS)
        codes = [process.poll() for process in started]
        if time.monotonic() - beat > _BEAT_SECONDS:
            beat = time.monotonic()
            for process in started:
                _send(process, "")
    _end(started)
    return next((code for code in codes if code), 0)


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its exit code says more
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """Close what the agents read, which ends them; then end what is left of the shells."""
    for process in started:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    until = time.monotonic() + _PATIENCE_SECONDS
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        process.kill()


if __name__ == "__main__":
    sys.exit(launch_nodes() if sys.argv[1:2] == ["nodes"] else launch_ranks(sys.argv[2:]))
