"""An environment in a process of its own: one that dies, or that hangs in C code, costs its episode and nothing else.

A :class:`ForkServer` is the process of one config, which has loaded what the environment needs and forks a process for
each :class:`Isolated` instance. An instance that dies is started again at the next reset; one that is past its time
limit is killed, with what it has started. All of them end with the process that started them, even where that is killed
(`crl/run/guardian.py`); so does what they start, unless it is given an environment without the guardian's mark.

An instance is a wave of any number of slots, as any environment; `SideBySide` gives each slot one of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

import psutil

from crl.config import EnvironmentConfig
from crl.envs.isolated_child import LARGEST_ANSWER, PROGRAM
from crl.errors import BadInput, from_payload
from crl.protocols import ABILITIES, Start, Step
from crl.run.guardian import guard

START_SECONDS = 600.0
"""Longest time until an instance is made: the first one imports its packages and reads its data."""


class EnvironmentLost(Exception):
    """An instance raised, died or was killed; `code` is the reason code of its episode, `details` the traceback from
    there, or what is known."""

    def __init__(self, code: str, said: str, details: str | None = None) -> None:
        self.code, self.details = code, details or said
        super().__init__(said)


class ForkServer:
    """The process that the instances of one config are forked from."""

    def __init__(self, config: EnvironmentConfig, *, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environ`: variables that it has beside those of this process.

        Raises BadInput for a config whose class cannot be imported by its name.
        """
        found = type(config)
        if "<locals>" in found.__qualname__ or found.__module__ == "__main__":
            raise BadInput(
                f"the config class {found.__qualname__} is in {found.__module__}, where no other process finds it",
                expected="a class at the top of a module that can be imported",
                where="method.families[].isolate",
                next_step="move it into a module of its own, or leave isolate out",
            )
        self.config, self._lock = config, threading.Lock()
        self._told = {
            "path": sys.path,
            "class": f"{found.__module__}:{found.__qualname__}",
            "config": config.model_dump(mode="json"),
            "also": [ability.name for ability in ABILITIES if ability.crosses],
        }
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> Connection:
        """A connection to a new instance, which first sends its process id and what it also knows."""
        with self._lock:
            for _ in range(2):  # it may have died since the last one
                self._begin()
                ours, theirs = socket.socketpair()
                with theirs:
                    try:
                        assert self._control is not None
                        socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                        return Connection(ours.detach())
                    except OSError:
                        ours.close()
                        self._end()
        raise EnvironmentLost("environment_died", "the process of the environment ends before it has begun")

    def close(self) -> None:
        """End the process and every instance."""
        with self._lock:
            self._end()

    def _begin(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        self._control, theirs = socket.socketpair()
        guard()
        try:
            # A session of its own: Ctrl-C is for the process that asks. Output goes where errors go, as the output of
            # a command may be read by a program.
            self._process = subprocess.Popen(
                [sys.executable, "-P", PROGRAM, str(theirs.fileno()), "warm"], stdin=subprocess.DEVNULL, stdout=2,
                env={**os.environ, **self._environ}, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        finally:
            theirs.close()
        self._control.sendall(json.dumps(self._told).encode() + b"\n")

    def _end(self) -> None:
        process, control = self._process, self._control
        self._process, self._control = None, None
        if process is not None:
            with contextlib.suppress(OSError):  # its group has the instances
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if control is not None:
            control.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._end()


class Isolated:
    """An environment whose instance is in a process of its own (protocol `Environment`).

    What it raises is raised here: the project's own errors as they are, all else as :class:`EnvironmentLost`.
    """

    def __init__(self, server: ForkServer, *, time_limit_seconds: float | None = None) -> None:
        """`time_limit_seconds`: longest reset or step; the process is killed after it. Raises what making it raises."""
        self._server, self._limit = server, time_limit_seconds
        self._connection: Connection | None = None
        self.pid = 0
        for name in self._begin():
            setattr(self, name, partial(self.call, name))

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per seed, in a new process where the last one is gone."""
        if self._connection is None:
            self._begin()
        starts: list[Start] = self.call("reset_many", list(seeds))
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given."""
        steps: dict[int, Step] = self.call("step_many", dict(actions))
        return steps

    def oracle(self, slot: int) -> str | None:
        """A good next action; None where the process is gone, or does not outlive the question."""
        try:
            action: str | None = self.call("oracle", slot)
        except EnvironmentLost:
            return None
        return action

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()  # it closes its instance and ends
            self._connection = None

    def call(self, name: str, *arguments: Any) -> Any:
        """What a method of the instance returns, or `module:function` called there with its config."""
        if self._connection is None:
            raise EnvironmentLost("environment_died", "the process of the environment is gone")
        with contextlib.suppress(OSError):  # where nobody reads any more, there is no answer either
            self._connection.send_bytes(pickle.dumps((name, arguments)))
        return self._answer(self._limit, f"`{name.rpartition(':')[2]}` was called")

    def _begin(self) -> list[str]:
        self._connection, self.pid = self._server.fork(), 0
        self.pid = self._answer(START_SECONDS, "it was asked for")
        return list(self._answer(START_SECONDS, "it was made"))

    def _answer(self, limit: float | None, when: str) -> Any:
        assert self._connection is not None
        try:
            if not self._connection.poll(limit):
                self._kill()
                raise EnvironmentLost(
                    "environment_time_limit", f"no answer within {limit:g} s after {when}; its process was killed"
                )
            kind, value = pickle.loads(self._connection.recv_bytes(LARGEST_ANSWER + 1024))
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            raise EnvironmentLost("environment_died", f"its process ended after {when}") from None
        if kind == "ok":
            return value
        if kind == "long":
            raise EnvironmentLost("environment_observation_limit", f"an answer of {value:,} bytes after {when}")
        name, text, payload, details = value
        if payload is not None:
            raise from_payload(payload)
        raise EnvironmentLost(f"environment_{name}", f"{name}: {text}", details)

    def _kill(self) -> None:
        if self.pid:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.pid)
                # What it has started would go on without it, and is not found once it is gone.
                for each in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        each.kill()
        else:
            self._server.close()  # it is the server that hangs
        self.close()
