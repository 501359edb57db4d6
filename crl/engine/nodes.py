"""An engine on several machines, `python -m crl.engine.nodes`: one process here that stands for a launcher on each.

It starts `crl/engine/node.py` on every machine through the shell of `runtime.nodes`, writes to it what to run, and ends
all of them when one of them fails, when this process is asked to end or when its parent does; where this machine is
lost, they end by themselves (`crl/engine/node.py`). What they print is what it prints. An order holds the key to the
supervisor: it goes through a pipe and is on no command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crl.config.nodes import NodesConfig
from crl.run.guardian import end_with_parent

VARIABLE = "CRL_ENGINE_NODES"
"""The orders as JSON, for :func:`main`."""
_SHARED = ("CRL_", "HF_", "NCCL_", "GLOO_", "DS_", "TORCH_NCCL_")
"""Variables of this process that the other machines get: models, networks. Their own others stay."""
_PRIVATE = ("CRL_STARTED_BY", "CRL_GUARDED_BY")
"""Numbers of processes of this machine."""
_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
_BEAT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
"""A machine that has heard nothing for so long ends what it runs."""


def orders(nodes: NodesConfig, ranks: int, environment: Mapping[str, str], worker: str) -> list[dict[str, Any]]:
    """What each machine is to run: a launcher of its ranks, which meet at the endpoint. Raises BadInput where there is
    no room.

    `environment` is that of the workers.
    """
    placed = nodes.placed(ranks)
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
                "command": [sys.executable, "-m", "crl.engine.ranks", *part, "--", "-m", worker],
                "environment": {**shared, **environment, **network, **meeting},
            }
        )
    return made


def main() -> int:
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
    sys.exit(main())
