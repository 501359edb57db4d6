"""The server: chat completions on loopback, for clients that each have a path and a key of their own.

It answers nobody else: a wrong key, a Host that is not this machine (a page that rebinds a name), and any Origin (a
page in a browser) are refused. Bodies, open calls and connections are bounded, so that a program can harm only itself.
It samples nothing: a call is handed to whoever opened the path, and is answered from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from crl.gateway.messages import Answer, ApiError, ChatRequest, read_request

LARGEST_BODY = 16 << 20
"""Bytes of a call, and of all calls of a client that are open at one time."""
MOST_OPEN = 64
"""Calls of a client that are open at one time."""
MOST_IDLE = 256
"""Connections without a call: of more the oldest is closed, for each costs this process a file."""
_HOSTS = ("127.0.0.1", "localhost", "[::1]")


@dataclass(eq=False)
class Call:
    """A call that waits for its answer."""

    request: ChatRequest
    result: Future[Answer] = field(default_factory=Future)
    gone: bool = False
    """Whether nobody waits for the answer any more."""

    def answer(self, answer: Answer) -> None:
        """Answer it."""
        with contextlib.suppress(Exception):  # the client is gone, which cancels it
            self.result.set_result(answer)

    def refuse(self, error: ApiError) -> None:
        """Answer it with an error."""
        with contextlib.suppress(Exception):
            self.result.set_exception(error)


@dataclass(eq=False)
class Client:
    """A path with its key."""

    path: str
    key: str
    submit: Callable[[Call], None]
    """Takes a call; may raise ApiError. Called in the server's thread: it must not wait."""
    open: int = 0
    size: int = 0
    """Bytes of the calls that are open."""
    calls: set[Call] = field(default_factory=set)


class _Connection(H11Protocol):
    """A connection; the server's list of them has no order."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for it."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.since = self.loop.time()
        connections = cast("set[_Connection]", self.connections)
        idle = [each for each in connections if each.cycle is None or each.cycle.response_complete]
        if len(idle) > MOST_IDLE:
            min(idle, key=lambda each: each.since).transport.abort()


class Gateway:
    """The server, in a thread of its own from :meth:`start` on."""

    def __init__(self, unix_socket: Path | None = None) -> None:
        """`unix_socket`: where it listens besides, for clients without a network."""
        self._clients: dict[str, Client] = {}
        app = Starlette(
            routes=[
                Route("/{path}/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/{path}/v1/models", self._models, methods=["GET"]),
            ],
            exception_handlers={
                ApiError: _refusal,
                HTTPException: lambda request, error: _refusal(
                    request, ApiError(str(error.detail), code="not_found", status=error.status_code)
                ),
                Exception: lambda request, error: _refusal(
                    request, ApiError("The gateway failed.", code="internal", status=500)
                ),
            },
        )
        self._sockets = [_listening(socket.AF_INET, ("127.0.0.1", 0))]
        self.port: int = self._sockets[0].getsockname()[1]
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)
            self._sockets.append(_listening(socket.AF_UNIX, str(unix_socket)))
            unix_socket.chmod(0o666)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=64 << 10, http=_Connection, loop="asyncio",
            # Longer than clients keep an idle connection: a call that is sent on one that just closes is lost.
            timeout_keep_alive=75,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": self._sockets}, name="gateway", daemon=True
        )

    def __enter__(self) -> Gateway:
        """Start to listen: the sockets take connections already, so nothing has to wait."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; what is open is not answered any more."""
        for path in list(self._clients):
            self.close(path)
        self._server.should_exit = True
        self._thread.join()
        for listening in self._sockets:
            listening.close()

    def open(self, submit: Callable[[Call], None]) -> Client:
        """A path and a key for a client."""
        client = Client(secrets.token_hex(8), f"crl-{secrets.token_urlsafe(32)}", submit)
        self._clients[client.path] = client
        return client

    def close(self, path: str) -> None:
        """A client's path is gone; its open calls are refused."""
        client = self._clients.pop(path, None)
        for call in list(client.calls) if client else ():
            call.refuse(ApiError("This conversation is over.", code="over"))

    def url(self, client: Client, port: int | None = None) -> str:
        """What a client's `base_url` is; `port`: of whatever leads to the Unix socket."""
        return f"http://127.0.0.1:{port or self.port}/{client.path}/v1"

    def _client(self, request: Request) -> Client:
        """Raises ApiError for a request of nobody's."""
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            raise ApiError("This host is not served here.", code="wrong_host", status=403)
        if "origin" in request.headers:
            raise ApiError("Pages of browsers are not answered.", code="wrong_origin", status=403)
        client = self._clients.get(request.path_params["path"])
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given, expected = key.strip().encode(), client.key.encode() if client else secrets.token_bytes(43)
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, expected) or client is None:
            raise ApiError("This key is not the one of this path.", code="invalid_api_key", status=401)
        return client

    async def _models(self, request: Request) -> Response:
        self._client(request)
        return JSONResponse({"object": "list", "data": [{"id": "actor", "object": "model", "owned_by": "crl"}]})

    async def _chat(self, request: Request) -> Response:
        client = self._client(request)
        if client.open >= MOST_OPEN:
            raise ApiError(f"At most {MOST_OPEN} calls are open at one time.", code="too_many_calls", status=429)
        client.open += 1
        body = bytearray()
        try:
            await _read(request, client, body)
            chat = read_request(body)
            call = Call(chat)
            client.calls.add(call)
            try:
                client.submit(call)
                answer = await _answer(request, call)
            finally:
                client.calls.discard(call)
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            client.open -= 1
            client.size -= len(body)
        if chat.stream:
            return StreamingResponse(_events(answer, chat), media_type="text/event-stream")
        return JSONResponse(answer.body(chat))


async def _read(request: Request, client: Client, body: bytearray) -> None:
    """Raises ApiError for one that is too large, ClientDisconnect where it does not come."""
    too_large = ApiError(f"The open calls of a client have at most {LARGEST_BODY} bytes.", code="too_large", status=413)
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > LARGEST_BODY - client.size:
        raise too_large
    async for piece in request.stream():
        body += piece
        client.size += len(piece)
        if client.size > LARGEST_BODY:
            raise too_large


async def _answer(request: Request, call: Call) -> Answer:
    """Wait for an answer, and for the client to go, whichever is first. Raises ApiError where it is refused."""
    waiting: asyncio.Future[Any] = asyncio.wrap_future(call.result)
    gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        answer: Answer = waiting.result()
        return answer
    finally:
        call.gone = not waiting.done()
        gone.cancel()
        waiting.cancel()


async def _events(answer: Answer, request: ChatRequest) -> AsyncIterator[str]:
    for chunk in answer.chunks(request):
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _refusal(request: Request, error: Any) -> Response:
    return JSONResponse(error.body(), status_code=error.status)


def _listening(family: socket.AddressFamily, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.bind(address)
    made.listen(256)
    made.set_inheritable(False)
    return made
