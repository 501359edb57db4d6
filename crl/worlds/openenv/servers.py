"""Servers of OpenEnv environments, and sessions with them.

A server is at an address, or a command starts it on loopback. All waves of a process that play the same settings share
its servers; the last of them that closes ends those that were started. A session is a websocket, and on the server an
environment of its own. Where a server takes no more, another one is started, up to a number, or the address is full.
One that was started here and takes no connection is ended, and another takes its place; one at an address is asked
again for a while. All of it runs in the event loop of the process (`crl/envs/asynchronous.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import IO, Annotated, Any

import httpx
from pydantic import Field
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from crl.config.base import LONGEST_SECONDS
from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput, CrlError, EnvironmentBroken
from crl.run.guardian import guard
from crl.worlds.openenv.forms import Form, Refused, ServerFault, form_of, form_of_tools

WHERE = "method.families[].environment"
SETUP = "python3 -m venv .venv-openenv && .venv-openenv/bin/pip install openenv==0.10.0"
"""Sets up an interpreter for servers: openenv does not install beside this project's pins."""
DIED, _FULL = "environment_died", "environment_server_full"
_LIMITS: Any = {"max_size": 64 * 2**20, "ping_interval": None, "close_timeout": 1}
_END_SECONDS, _TICK_SECONDS = 10.0, 0.05
_MOMENT_SECONDS = 1.0
"""A full server whose sessions have just been closed has room again by then."""
_TAIL = 1500
"""Characters of what a server printed that an error shows."""
_Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]


class ServerConfig(EnvironmentConfig):
    """A server of one role: where it runs, or how crl starts vLLM."""

    command: str | None = Field(
        None,
        description="Starts a server on loopback at {port}: .venv-openenv/bin/python server.py {port}",
    )
    address: str | None = Field(
        None, pattern="^https?://", description="URL of a running server: http://127.0.0.1:8000"
    )
    answer_seconds: _Seconds = Field(60.0, description="Longest wait for an answer before the episode breaks.")
    start_seconds: _Seconds = Field(120.0, description="Longest wait for a server to start.")
    servers: int = Field(16, ge=1, le=1024, description="Most servers of `command`, if one cannot hold all episodes.")


@dataclass(eq=False)
class Server:
    """A server: its process and what it prints, where it was started here."""

    address: str
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None

    def ended(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def printed(self) -> str:
        size = 0 if self.log is None else os.fstat(self.log.fileno()).st_size
        text = b"" if self.log is None else os.pread(self.log.fileno(), _TAIL, max(0, size - _TAIL))
        return text.decode(errors="replace").strip()

    def end(self) -> None:
        if self.process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(OSError, subprocess.TimeoutExpired):
                    os.killpg(self.process.pid, number)
                    self.process.wait(_END_SECONDS)


def _started(command: str) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    guard()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        command.replace("{port}", str(port)), shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,  # what ends is its whole group, and Ctrl-C is for the process that asks
    )  # fmt: skip
    return Server(f"http://127.0.0.1:{port}", process, log)


class Servers:
    """The servers of some settings in this process."""

    def __init__(self, config: ServerConfig) -> None:
        self.config, self.users = config, 0
        self.action: Mapping[str, Any] = {}
        """JSON schema of the actions, once a server has answered."""
        self.about, self.form = "Do what the environment asks for.", Form((), lambda text: {})
        self.idle: list[Session] = []
        """Sessions that nobody uses, for the next ones."""
        self._servers: list[Server] = []
        self._starting = asyncio.Lock()

    async def begin(self, there: int = 0) -> None:
        """Have more servers that run than `there`. Raises BadInput or EnvironmentBroken where none can be started or
        reached, ServerFault where there may be no more."""
        async with self._starting:
            for server in [each for each in self._servers if each.ended() is not None]:
                await self._end(server)
            if len(self._servers) > there:
                return
            command, address = self.config.command, self.config.address
            if there >= (1 if command is None else self.config.servers):
                raise ServerFault(
                    f"{there} server(s) take no more episodes: raise the server's max_concurrent_envs or `servers`, or "
                    "lower rollout.wave_groups", _FULL,
                )  # fmt: skip
            server = _started(command) if command is not None else Server(str(address).rstrip("/"))
            self._servers.append(server)
            try:
                await self._meet(server)
            except BaseException:
                await self._end(server)
                raise

    async def _end(self, server: Server) -> None:
        if server in self._servers:  # else another slot was first
            self._servers.remove(server)
            await asyncio.to_thread(server.end)

    async def _meet(self, server: Server) -> None:
        """Have a server say what its actions are, and wait for one that starts. Raises as :meth:`begin`."""
        here, next_step = server.process is not None, "start it, or correct the address"
        seconds = self.config.start_seconds if here else self.config.answer_seconds
        found, wrong = f"does not answer{f' within {seconds:g} s' * here}", here and not self.action
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), httpx.AsyncClient(base_url=server.address, timeout=seconds) as client:
                while server.ended() is None:
                    with suppress(httpx.TransportError):
                        answer = await client.get("/schema")
                        with suppress(ValueError, KeyError, TypeError):
                            self.action = dict(answer.json()["action"])
                            with suppress(ValueError, KeyError, TypeError):
                                self.about = str((await client.get("/metadata")).json()["description"] or self.about)
                            return
                        found = f"does not say what its actions are (GET {answer.url}: status {answer.status_code})"
                        wrong = not answer.is_server_error
                        break
                    if not here:
                        break
                    await asyncio.sleep(_TICK_SECONDS)
        if here:
            found = found if (code := server.ended()) is None else f"ended with exit code {code}"
            next_step = f"run its command by hand; an interpreter with openenv: {SETUP}"
        raise (BadInput if wrong else EnvironmentBroken)(
            f"the server at {server.address} {found}\n{server.printed()}".strip(),
            expected="an OpenEnv server, of 0.2 or later" + ", on 127.0.0.1 and the {port} of its command" * here,
            where=f"{WHERE}.{'command' if here else 'address'}",
            next_step=next_step,
        )

    async def session(self, kind: str, data: Mapping[str, Any]) -> tuple[Session, dict[str, Any]]:
        """A session, and what it answers to its first request. Raises as :meth:`begin`, and ServerFault."""
        while self.idle:
            session = self.idle.pop()
            try:
                return session, await session.ask(kind, data)
            except ServerFault as error:
                if error.code != DIED:  # else it was closed before, or its server ended
                    raise
        began, seconds = time.monotonic(), self.config.answer_seconds
        while True:
            await self.begin()
            waited, servers = time.monotonic() - began, list(self._servers)
            for server in servers:
                try:
                    url = f"ws{server.address.removeprefix('http')}/ws"
                    session = Session(server, await connect(url, open_timeout=seconds, **_LIMITS), seconds)
                    return session, await session.ask(kind, data)
                except (OSError, WebSocketException) as error:
                    if server.process is not None:
                        await self._end(server)
                    if waited > seconds:
                        raise ServerFault(f"{server.address}: {type(error).__name__}: {error}", DIED) from error
                    break
                except ServerFault as error:
                    if error.code != _FULL:
                        raise
            else:  # all are full
                if waited > _MOMENT_SECONDS:
                    await self.begin(len(servers))
            await asyncio.sleep(_TICK_SECONDS * (1 + waited))

    async def read_form(self) -> Form:
        """The form of the actions. A server whose action names a tool has tools of its own. Raises BadInput for what
        is no form, and EnvironmentBroken where the server does not list its tools."""
        said: Any = self.action
        kind: type[CrlError]
        try:
            if not {"tool_name", "arguments"} <= set(self.action.get("properties", ())):
                return form_of(self.action)
            session, answer = await self.session("step", {"type": "list_tools"})
            self.idle.append(session)
            said = answer["observation"]
            return form_of_tools(said["tools"])
        except ServerFault as error:
            kind, found = EnvironmentBroken, f"the server does not list its tools: {error}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            kind, found = (
                BadInput,
                f"the server's actions cannot be read: {type(error).__name__}: {error}: {said!r:.300}",
            )
        raise kind(
            found,
            expected="a JSON schema of the action, at /schema, or of each tool",
            where=f"{WHERE}.{'address' if self.config.command is None else 'command'}",
            next_step="correct the server's action",
        )

    async def close(self) -> None:
        """End the sessions, and what was started here."""
        await asyncio.gather(*(session.close() for session in self.idle))
        for server in list(self._servers):
            await self._end(server)


@dataclass(eq=False)
class Session:
    """One environment on a server. It is closed where it does not answer as it should."""

    server: Server
    connection: ClientConnection
    answer_seconds: float

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of an observation. Raises Refused for an action of wrong types, ServerFault for all else."""
        try:
            async with asyncio.timeout(self.answer_seconds):
                with suppress(ConnectionClosed):  # a server that is full says so and closes
                    await self.connection.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(await self.connection.recv())
            return self._observed(kind, answer["type"], answer["data"])
        except TimeoutError:
            fault = ServerFault(f"no answer within {self.answer_seconds:g} s", "environment_time_limit")
        except (OSError, WebSocketException) as error:
            fault = ServerFault(f"{type(error).__name__}: {error}\n{self.server.printed()}".rstrip(), DIED)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = ServerFault(f"an answer that is none of OpenEnv's: {type(error).__name__}: {error}")
        except ServerFault as error:
            fault = error
        await self.close()
        raise fault

    def _observed(self, kind: str, answered: str, data: dict[str, Any]) -> dict[str, Any]:
        if answered == "observation" and isinstance(data["observation"], dict):
            return data
        code, message = data.get("code"), data.get("message")
        if code == "CAPACITY_REACHED":
            raise ServerFault(str(message), _FULL)
        if code == "VALIDATION_ERROR" and kind == "step":
            errors = data.get("errors") or [{"msg": message}]
            reasons = [f"{'.'.join(map(str, each.get('loc', ()))) or 'action'}: {each.get('msg')}" for each in errors]
            raise Refused(f"That is no possible action. {'; '.join(reasons)}.")
        raise ServerFault(f"{answered} {code}: {message or data!s:.500}")

    async def close(self) -> None:
        with suppress(OSError, WebSocketException):
            await self.connection.close()


_USED: dict[tuple[int, str], Servers] = {}
"""By process and settings: a fork has none of its parent's sessions."""


@asynccontextmanager
async def lent(config: ServerConfig) -> AsyncIterator[Servers]:
    """The servers of some settings, for one more user; there is one. Without users they end. Raises as `begin`."""
    key = (os.getpid(), config.model_dump_json())
    servers = _USED.setdefault(key, Servers(config))
    servers.users += 1
    try:
        await servers.begin()
        servers.form = await servers.read_form()
        yield servers
    finally:
        servers.users -= 1
        if not servers.users:
            del _USED[key]
            await servers.close()
