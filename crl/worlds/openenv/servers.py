"""Servers of OpenEnv environments, and sessions with them.

A server is at an address, or it is started here: by a command on loopback, or in a container whose port is published
there. All waves of a process that play the same settings share its servers; the last of them that closes ends those
that were started. A session is a websocket, and on the server an environment of its own. A server says how many it
takes; where it takes no more, another one is started, up to a number, or the address is full.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from crl.errors import BadInput, CrlError, EnvironmentBroken
from crl.run.guardian import guard

WHERE = "method.families[].environment"
SETUP = "python3 -m venv .venv-openenv && .venv-openenv/bin/pip install openenv==0.10.0"
"""Sets up an interpreter for servers: openenv does not install beside this project's pins."""
_ENGINES = ("docker", "podman")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LARGEST = 64 * 2**20
"""Bytes of an answer."""
_FULL = "CAPACITY_REACHED"
_WAITS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before a full server is asked again: one whose sessions have just been closed takes a moment."""
_END_SECONDS = 10.0
_TICK_SECONDS = 0.05
_TAIL = 1500
"""Characters of what a server printed that an error shows."""


@dataclass(frozen=True)
class Launch:
    """Where servers come from: one of `command`, `image` and `address`."""

    command: str | None
    image: str | None
    port: int
    address: str | None
    start_seconds: float
    answer_seconds: float
    most: int
    """Servers that are started at most."""

    def words(self, port: int, name: str) -> list[str]:
        """The command that starts a server on a port of loopback. Raises BadInput where there is none."""
        if self.image is None:
            return [word.replace("{port}", str(port)) for word in shlex.split(self.command or "")]
        engine = next((each for each in _ENGINES if shutil.which(each)), None)
        if engine is None:
            raise BadInput(
                "there is no program that runs containers",
                expected=" or ".join(_ENGINES),
                where=f"{WHERE}.image",
                next_step="install one, or start the server yourself and set `address`",
            )
        return [engine, "run", "--rm", "--name", name, "-p", f"127.0.0.1:{port}:{self.port}", self.image]


class ServerFault(Exception):
    """A server did not do what it was asked; `code` is the reason code of the episode, `details` what is known."""

    def __init__(self, message: str, code: str = "environment_server_error") -> None:
        self.code, self.details = code, message
        super().__init__(message)


class Rejected(Exception):
    """An action that the server's own types do not allow; the text says why, for the actor."""


@dataclass
class Server:
    """A server that answers."""

    address: str
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    container: tuple[str, str] | None = None
    """The program that runs containers, and the name of this one."""
    sessions: int = 0
    """Those of this process."""
    capacity: int | None = None
    """How many it takes, once it has said so."""

    @property
    def runs(self) -> bool:
        """False where it was started here and has ended."""
        return self.process is None or self.process.poll() is None

    def ends(self) -> bool:
        """Whether what was started here ends within a moment."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_WAITS[-1])
        return not self.runs

    def get(self, path: str, seconds: float = 5.0) -> Any:
        """What it answers to GET. Raises httpx.HTTPError and ValueError."""
        answer = httpx.get(self.address + path, timeout=seconds, trust_env=not self.near)
        answer.raise_for_status()
        return answer.json()

    @property
    def near(self) -> bool:
        """Whether it is on this machine, which no proxy leads to."""
        return urlsplit(self.address).hostname in _LOOPBACK

    def printed(self) -> str:
        """The end of what it printed."""
        return "" if self.log is None else self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()

    def end(self) -> None:
        """End what was started here, in order first."""
        if self.process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(OSError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_END_SECONDS)
        if self.container is not None:  # it outlives a client that was killed
            engine, name = self.container
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([engine, "rm", "-f", name], capture_output=True, check=False, timeout=_END_SECONDS)
        if self.log is not None:
            self.log.unlink(missing_ok=True)


class Servers:
    """The servers of one launch in this process."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.users, self.seeded = launch, 0, False
        """`seeded`: whether the server was seen to follow its seeds."""
        self._servers: list[Server] = []
        self._lock, self._adding = threading.RLock(), asyncio.Lock()
        self._answered = False

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Schemas of the action and the observation. Raises BadInput where the server has none."""
        try:
            schema = self.one().get("/schema", self.launch.answer_seconds)
            if isinstance(schema["action"], dict):
                return dict(schema)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = f"its action is {schema['action']!r:.100}"
        raise BadInput(
            f"the server does not say what its actions are (GET /schema: {reason})",
            expected="an OpenEnv server, of 0.2 or later",
            where=WHERE,
            next_step="correct the address or the command, or update openenv on the server",
        )

    @cached_property
    def about(self) -> str:
        """What the server says that its environment is; nothing where it does not."""
        with suppress(httpx.HTTPError, ValueError, AttributeError):
            return str(self.one().get("/metadata").get("description") or "")
        return ""

    def one(self) -> Server:
        """A server that runs, started where there is none. Raises BadInput or EnvironmentBroken where none can be."""
        with self._lock:
            for server in [each for each in self._servers if not each.runs]:
                self._servers.remove(server)
                server.end()
            return self._servers[0] if self._servers else self._another()

    def _another(self) -> Server:
        """One more server. Raises as :meth:`one`."""
        with self._lock:
            server = self._started() if self.launch.address is None else Server(self.launch.address.rstrip("/"))
            try:
                self._wait_for(server)
            except BaseException:
                server.end()
                raise
            self._servers.append(server)
            self._answered = True
            return server

    def _started(self) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        name = f"crl-openenv-{secrets.token_hex(6)}"
        words = self.launch.words(port, name)
        guard()
        descriptor, log = tempfile.mkstemp(prefix="crl-openenv-", suffix=".log")
        try:
            # A session of its own: what ends is its whole group, and Ctrl-C is for the process that asks.
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
            )
        except OSError as error:
            Path(log).unlink()
            raise BadInput(
                f"the server cannot be started: {error}",
                expected=f"a program: {words[0]}",
                where=f"{WHERE}.command",
                next_step=f"correct the command; for an interpreter with openenv: {SETUP}",
            ) from error
        finally:
            os.close(descriptor)
        container = (words[0], name) if self.launch.image is not None else None
        return Server(f"http://127.0.0.1:{port}", process, Path(log), container)

    def _wait_for(self, server: Server) -> None:
        """Wait until a server answers. Raises as :meth:`one`."""
        error: type[CrlError] = EnvironmentBroken if self._answered or server.process is None else BadInput
        seconds = self.launch.start_seconds if server.process is not None else self.launch.answer_seconds
        until, reason = time.monotonic() + seconds, ""
        while server.runs:
            try:
                server.get("/health", min(5.0, seconds))
                return
            except ValueError:
                return  # it answers, if not in JSON
            except httpx.HTTPStatusError as problem:
                if problem.response.status_code == httpx.codes.NOT_FOUND:
                    return
                reason = str(problem)
            except httpx.HTTPError as problem:
                reason = f"{type(problem).__name__}: {problem}"
            if time.monotonic() > until:
                break
            time.sleep(_TICK_SECONDS)
        if server.process is None:
            raise error(
                f"the server at {server.address} does not answer within {seconds:g} s ({reason})",
                expected="an OpenEnv server that runs",
                where=f"{WHERE}.address",
                next_step="start it, or correct the address",
            )
        ended = "" if server.runs else f", and ended with exit code {server.process.poll()}"
        next_step = f"for an interpreter with openenv: {SETUP}" if "No module named" in server.printed() else None
        raise error(
            f"the server did not answer within {seconds:g} s{ended}:\n{server.printed() or '(it printed nothing)'}",
            expected="a server on 127.0.0.1 and the port that the command names as {port}",
            where=WHERE,
            next_step=next_step or "run the command by hand; `start_seconds` says how long is waited",
        )

    async def session(self, request: Mapping[str, Any]) -> tuple[Session, dict[str, Any]]:
        """A new session, and what it answers to its first request. Raises as :meth:`one`, and ServerFault."""
        begun = await self._room(request)
        if begun is not None:
            return begun
        async with self._adding:  # others that wait here may have started one meanwhile
            begun = await self._free(request)
            if begun is not None:
                return begun
            if self.launch.address is None and len(self._servers) < self.launch.most:
                await asyncio.to_thread(self._another)
                begun = await self._free(request)
        if begun is not None:
            return begun
        taken = sum(server.capacity or 0 for server in self._servers)
        raise ServerFault(
            f"{len(self._servers)} server(s) take {taken} episodes at a time, and no more: start the server with a "
            "larger max_concurrent_envs, allow more `servers`, or play fewer episodes in a wave (rollout.wave_groups)",
            "environment_server_full",
        )

    async def _room(self, request: Mapping[str, Any]) -> tuple[Session, dict[str, Any]] | None:
        for seconds in _WAITS:
            await asyncio.sleep(seconds)
            if (begun := await self._free(request)) is not None:
                return begun
            if (
                self.launch.address is None
                and len(self._servers) < self.launch.most
                and all(server.sessions >= (server.capacity or 0) for server in self._servers)
            ):
                return None  # all are taken by this process
        return None

    async def _free(self, request: Mapping[str, Any]) -> tuple[Session, dict[str, Any]] | None:
        """A session with a server that takes one more; None where none does."""
        await asyncio.to_thread(self.one)
        for server in list(self._servers):
            if server.capacity is not None and server.sessions >= server.capacity:
                continue
            try:
                session = await Session.opened(server, self.launch.answer_seconds)
            except ServerFault:
                if await asyncio.to_thread(server.ends):
                    return None  # the next look starts another one
                raise
            try:
                return session, await session.ask(request)
            except _NoRoom as full:
                server.capacity = full.capacity
                await session.close()
            except BaseException:
                await session.close()
                raise
        return None

    def close(self) -> None:
        """End what was started here."""
        with self._lock:
            for server in self._servers:
                server.end()
            self._servers = []


class _NoRoom(Exception):
    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        super().__init__(capacity)


@dataclass
class Session:
    """One environment on a server."""

    server: Server
    connection: ClientConnection
    answer_seconds: float
    _open: bool = field(default=True, init=False)

    @classmethod
    async def opened(cls, server: Server, answer_seconds: float) -> Session:
        """A new one. Raises ServerFault where the server does not answer."""
        address = f"ws{server.address.removeprefix('http')}/ws"
        try:
            connection = await connect(
                address, max_size=_LARGEST, ping_interval=None, open_timeout=answer_seconds, close_timeout=1,
                proxy=None if server.near else True,
            )  # fmt: skip
        except (OSError, WebSocketException) as error:
            raise ServerFault(f"{address}: {type(error).__name__}: {error}", "environment_died") from error
        server.sessions += 1
        return cls(server, connection, answer_seconds)

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The data of an observation. Raises Rejected for an action of wrong types, ServerFault for all else."""
        try:
            async with asyncio.timeout(self.answer_seconds):
                with suppress(ConnectionClosed):  # a server that is full says so and closes
                    await self.connection.send(json.dumps(request))
                answer = json.loads(await self.connection.recv())
            kind, data = answer["type"], answer["data"]
        except TimeoutError:
            message = f"no answer within {self.answer_seconds:g} s (answer_seconds)"
            raise ServerFault(message, "environment_time_limit") from None
        except (OSError, WebSocketException) as error:
            message = f"{type(error).__name__}: {error}\n{self.server.printed()}".rstrip()
            raise ServerFault(message, "environment_died") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerFault(f"an answer that is none of OpenEnv's: {type(error).__name__}: {error}") from error
        if kind == "observation" and isinstance(data, dict) and isinstance(data.get("observation"), dict):
            return data
        code = data.get("code") if isinstance(data, dict) else None
        if code == _FULL:
            raise _NoRoom(data.get("max_sessions"))
        if code == "VALIDATION_ERROR" and request["type"] == "step":
            raise Rejected(_in_words(data))
        raise ServerFault(f"{kind} {code}: {str(data['message'] if code and 'message' in data else data)[:500]}")

    async def close(self) -> None:
        """Give it back."""
        if self._open:
            self._open = False
            self.server.sessions -= 1
            with suppress(OSError, WebSocketException):
                await self.connection.close()


def _in_words(data: Mapping[str, Any]) -> str:
    """What is wrong with an action, by its fields."""
    errors = data.get("errors") or [{"loc": (), "msg": data.get("message")}]
    reasons = [f"{'.'.join(map(str, each.get('loc', ()))) or 'action'}: {each.get('msg')}" for each in errors]
    return f"That is no possible action. {'; '.join(reasons)}."


_USED: dict[tuple[int, Launch], Servers] = {}
"""By process: a fork has none of its parent's sessions."""
_LENDING = threading.Lock()


def borrowed(launch: Launch) -> Servers:
    """The servers of a launch, for one more user, which gives them back with :func:`returned`."""
    with _LENDING:
        servers = _USED.setdefault((os.getpid(), launch), Servers(launch))
        servers.users += 1
        return servers


def returned(servers: Servers) -> None:
    """One user less; without any, its servers end."""
    with _LENDING:
        servers.users -= 1
        if servers.users:
            return
        _USED.pop((os.getpid(), servers.launch), None)
    servers.close()
