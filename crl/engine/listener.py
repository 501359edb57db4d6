"""Where workers connect to their supervisor: a socket of the standard library that lets in who knows its key.

On Linux it is in the abstract namespace, so that a killed process leaves no file; elsewhere in a temporary directory.
Workers on other machines come to an address and port.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import sys
import threading
from collections.abc import MutableMapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from types import TracebackType

_TCP = "tcp:"
ADDRESS_VARIABLE = "CRL_ENGINE_ADDRESS"
KEY_VARIABLE = "CRL_ENGINE_KEY"


class WorkerListener:
    """Lets in a number of workers; a context manager, closed when all have come or the context is left.

    `address` is the one of this machine that workers elsewhere reach; without it they are all on this machine.
    """

    def __init__(self, workers: int, address: str | None = None) -> None:
        self._key = secrets.token_bytes(32)
        if address is not None:
            self._listener = Listener((address, 0), family="AF_INET", backlog=64, authkey=self._key)
            self._address = f"{_TCP}{address}:{self._listener.address[1]}"
        else:
            abstract = f"\0crl-{os.getpid()}-{secrets.token_hex(8)}" if sys.platform == "linux" else None
            self._listener = Listener(abstract, family="AF_UNIX", backlog=64, authkey=self._key)
            self._address = abstract or str(self._listener.address)
        self._accepted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._closed = False
        # In a thread, since accepting knows no time limit.
        self._thread = threading.Thread(target=self._accept, args=(workers,), name="worker-listener", daemon=True)
        self._thread.start()

    def __enter__(self) -> WorkerListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        # Wakes the thread where workers are still missing.
        place, family = _place(self._address)
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET if family == "AF_INET" else socket.AF_UNIX) as (knocking),
        ):
            knocking.connect(place)

    def environment(self) -> dict[str, str]:
        """What a worker needs to find its way in."""
        return {ADDRESS_VARIABLE: self._address.replace("\0", "@", 1), KEY_VARIABLE: self._key.hex()}

    def accept(self, seconds: float) -> Connection | None:
        """The next worker that connects within so many seconds and knows the key; None where there is none."""
        try:
            return self._accepted.get(timeout=seconds)
        except queue.Empty:
            return None

    def _accept(self, workers: int) -> None:
        with self._listener:
            while workers and not self._closed:
                with contextlib.suppress(AuthenticationError, EOFError, ConnectionError):
                    self._accepted.put(self._listener.accept())
                    workers -= 1


def connect(environment: MutableMapping[str, str]) -> Connection:
    """A worker's way in; takes address and key out of the environment, where its own children would see them.

    Raises AuthenticationError where the key is wrong, OSError where nobody listens.
    """
    address, key = environment.pop(ADDRESS_VARIABLE), bytes.fromhex(environment.pop(KEY_VARIABLE))
    place, family = _place("\0" + address[1:] if address.startswith("@") else address)
    return Client(place, family=family, authkey=key)


def _place(address: str) -> tuple[str | tuple[str, int], str]:
    """An address as sockets take it, and its family."""
    if not address.startswith(_TCP):
        return address, "AF_UNIX"
    host, _, port = address.removeprefix(_TCP).rpartition(":")
    return (host, int(port)), "AF_INET"
