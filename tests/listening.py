"""Who listens to the outside: every socket of a tree of processes that takes what comes from other machines.

The kernel's tables are read every few milliseconds from the first process on, so that a socket that is open only for a
moment is seen as well.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

VARIABLE = "CRL_TEST_LISTENING"
_TICK_SECONDS = 0.02
_LOOKS = 3
"""How often the owner of a socket is looked for: a process that is just being started has no environment yet."""
_LISTENS, _UNCONNECTED = "0A", "07"


class Listening:
    """A context manager; the processes that are watched have `environment` in theirs."""

    def __init__(self) -> None:
        self.environment = {VARIABLE: secrets.token_hex(8)}
        self.outside: set[str] = set()
        """`address port: command line` of each socket that others reach."""
        self.inside: set[str] = set()
        """The same on loopback: that something listens at all is seen too."""
        self._looks: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Listening:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            new = {inode: place for inode, place in _sockets() if self._looks[inode] < _LOOKS}
            if new:
                owners = self._owners()
                for inode, (address, port) in new.items():
                    if inode in owners:
                        found = self.inside if ipaddress.ip_address(address).is_loopback else self.outside
                        found.add(f"{address} {port}: {owners[inode]}")
                self._looks.update(list(new))
            time.sleep(_TICK_SECONDS)

    def _owners(self) -> dict[str, str]:
        """The command line that holds a socket, by its inode, of the processes that are watched."""
        found = {}
        mark = f"{VARIABLE}={self.environment[VARIABLE]}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark not in (process / "environ").read_bytes().split(b"\0"):
                    continue
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                for descriptor in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        target = str(descriptor.readlink())
                        if target.startswith("socket:["):
                            found[target[8:-1]] = command[:200]
        return found


def _sockets() -> Iterator[tuple[str, tuple[str, int]]]:
    """Inode and local address of every socket of this machine that takes connections, or packets from anybody."""
    for name, state in (("tcp", _LISTENS), ("tcp6", _LISTENS), ("udp", _UNCONNECTED), ("udp6", _UNCONNECTED)):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == state:
                    host, _, port = words[1].partition(":")
                    yield words[9], (_address(host), int(port, 16))


def _address(text: str) -> str:
    """An address of the kernel's tables: words of four bytes, each in the order of this machine."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
