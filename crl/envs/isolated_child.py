"""The processes that environments live in, one each: `isolated.py` starts this file by its path.

The first process imports the environment and makes one, so that whatever is slow to load is there, then forks a process
for each instance that it is asked for. The guardian of the process that started them ends them with it.

Until it knows the path to import from, this file uses the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LARGEST_ANSWER = 64 * 2**20
"""Bytes of an answer; a longer one is an error of its call."""
PROGRAM = __file__
_COLD = "cold"
"""Second argument of a process that makes no environment before it forks."""


def main(control: socket.socket, *, cold: bool) -> None:
    """Read what to make from `control`, then fork an instance for every connection that arrives there."""
    told = _read_line(control)
    sys.path[:] = told["path"]
    config = None
    try:
        config = config_from(told["class"], told["config"])
        if not cold:
            config.make().close()
    except BaseException:  # every instance tries once more, and says what is wrong
        pass
    if not cold and _threads() > 1:
        # A fork has none of the threads, and perhaps their locks: begin again without them.
        control.set_inheritable(True)
        line = json.dumps({**told, "again": True})
        arguments = [sys.executable, "-P", __file__, str(control.fileno()), _COLD, line]
        os.execv(sys.executable, arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the instances: their parent sees them close
    while True:
        asked, received, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            try:
                _serve(Connection(received[0]), told, config)
            finally:
                os._exit(0)
        os.close(received[0])


def config_from(target: str, data: dict[str, Any]) -> Any:
    """The config of an environment from the class it has and what it dumped."""
    from crl.config.registry import load_object

    return load_object(target).model_validate(data)


def _threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        import threading

        return threading.active_count()


def _read_line(control: socket.socket) -> dict[str, Any]:
    if len(sys.argv) > 3:
        return dict(json.loads(sys.argv[3]))
    line = b""
    while not line.endswith(b"\n"):
        byte = control.recv(1)  # by bytes: what follows comes with a file descriptor, which a buffer would lose
        if not byte:
            os._exit(0)
        line += byte
    return dict(json.loads(line))


def _serve(connection: Connection, told: dict[str, Any], config: Any) -> None:
    """Make one instance and answer calls: (name of a method or `module:function`, arguments)."""
    instance: Any = None

    def made() -> list[str]:
        nonlocal instance, config
        config = config or config_from(told["class"], told["config"])
        instance = config.make()
        return [name for name in told["also"] if hasattr(instance, name)]

    def called(name: str, arguments: tuple[Any, ...]) -> Any:
        if ":" not in name:
            return getattr(instance, name)(*arguments)
        from crl.config.registry import load_object

        return load_object(name)(config, *arguments)

    _answer(connection, os.getpid)
    _answer(connection, made)
    while True:
        try:
            name, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        _answer(connection, lambda name=name, arguments=arguments: called(name, arguments))
    with contextlib.suppress(Exception):
        instance.close()


def _answer(connection: Connection, work: Any) -> None:
    """Send what a call returns, or what it raised: its name, its text, the payload of the project's own errors, and the
    traceback."""
    try:
        answer = pickle.dumps(("ok", work()))
        if len(answer) > LARGEST_ANSWER:
            answer = pickle.dumps(("long", len(answer)))
    except BaseException as error:
        from crl.errors import CrlError
        from crl.faults import details_of

        payload = error.payload() if isinstance(error, CrlError) else None
        details = details_of(error)
        answer = pickle.dumps(("error", (type(error).__name__, str(error)[:2000], payload, details)))
    with contextlib.suppress(OSError):
        connection.send_bytes(answer)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), cold=sys.argv[2] == _COLD)
