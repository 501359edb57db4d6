"""Small parts of starting an engine: the command line, the gate where workers connect, the words for an exit code."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import MutableMapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import TracebackType

ADDRESS_VARIABLE = "CRL_ENGINE_ADDRESS"
KEY_VARIABLE = "CRL_ENGINE_KEY"
_WORKER = "crl.engine.worker"


class Gate:
    """A listening Unix socket that lets in only workers that know its key. Closed once all have come."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._folder: str | None = None
        name = f"crl-{os.getpid()}-{secrets.token_hex(8)}"
        if sys.platform == "linux":
            self._address, self._shown = "\0" + name, "@" + name
        else:
            self._folder = tempfile.mkdtemp(prefix="crl-")
            self._address = self._shown = str(Path(self._folder) / "s")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._address)
        self._socket.listen(64)

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """What a worker needs to find its way in, and the import path of this process."""
        return {
            ADDRESS_VARIABLE: self._shown,
            KEY_VARIABLE: self._key.hex(),
            "PYTHONPATH": os.pathsep.join(_import_path()),
            "PYTHONUNBUFFERED": "1",
            # Ranks meet on this machine only.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback()),
            "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", _loopback()),
        }

    def accept(self, seconds: float) -> Connection | None:
        """The next worker that connects within so many seconds and knows the key; None where there is none."""
        self._socket.settimeout(seconds)
        try:
            accepted, _ = self._socket.accept()
        except TimeoutError:
            return None
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return None
        return connection


def connect(environment: MutableMapping[str, str]) -> Connection:
    """A worker's way in; takes address and key out of the environment, where its own children would see them."""
    address, key = environment.pop(ADDRESS_VARIABLE), bytes.fromhex(environment.pop(KEY_VARIABLE))
    with socket.socket(socket.AF_UNIX) as joined:
        joined.connect("\0" + address[1:] if address.startswith("@") else address)
        connection = Connection(joined.detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    return connection


def command_line(world_size: int) -> list[str]:
    """One process runs the worker itself; several run it under torch's launcher, meeting on the loopback interface."""
    if world_size == 1:
        return [sys.executable, "-m", _WORKER]
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", "0"]
    return [sys.executable, "-m", *launcher, "--nproc-per-node", str(world_size), "-m", _WORKER]


def describe_exit(code: int | None) -> str:
    """An exit code in words: a negative one is a signal."""
    if code is None:
        return "closed its connection"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with exit code {code}"


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
