"""The server: chat completions, for clients that each have a path and a key of their own, or (serving) for all that
have the one key. It listens on loopback unless it is given another address.

It answers nobody else: a wrong key, a Host that is a name and not this machine's (a page that rebinds a name), and any
Origin (a page in a browser) are refused. Bodies, open calls and connections are bounded, so that a program can harm
only itself. It samples nothing: a call is handed to whoever opened the path, and is answered from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from crl.gateway.messages import Answer, ApiError, ChatRequest, no_such_model, read_object, read_request
from crl.protocols import ParsedTurn

LARGEST_BODY = 16 << 20
"""Bytes of a call, and of all calls of a client that are open at one time."""
MOST_OPEN = 64
"""Calls of a client that are open at one time."""
MOST_IDLE = 256
"""Connections without a call: of more the oldest is closed, for each costs this process a file."""
LOOPBACK = "127.0.0.1"
_Post = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Answers what was posted, an object; may raise ApiError."""


@dataclass(eq=False)
class Call:
    """A call that waits for its answer."""

    request: ChatRequest
    result: Future[Answer] = field(default_factory=Future)
    gone: bool = False
    """Whether nobody waits for the answer any more."""
    so_far: Answer | None = None
    """What is known of the answer."""
    wake: Callable[[], object] = lambda: None
    """Called in whatever thread knows more of it."""

    def show(self, answer: Answer) -> None:
        """Show what is known of the answer so far."""
        self.so_far = answer
        self._wake()

    def answer(self, answer: Answer) -> None:
        """Answer it."""
        with contextlib.suppress(InvalidStateError):  # it was refused
            self.result.set_result(answer)
        self._wake()

    def refuse(self, error: ApiError) -> None:
        """Answer it with an error."""
        with contextlib.suppress(InvalidStateError):
            self.result.set_exception(error)
        self._wake()

    def let_go(self) -> None:
        """Nobody waits any more."""
        self.gone = not self.result.done()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            self.wake()


@dataclass(eq=False)
class Client:
    """A path with its key."""

    path: str
    """Empty: none stands before `/v1`."""
    key: str
    """Empty: none is asked for."""
    submit: Callable[[Call], None]
    """Takes a call; may raise ApiError. Called in the server's thread: it must not wait."""
    models: tuple[str, ...] = ("actor",)
    """Names that are listed."""
    served: bool = False
    """Whether its calls say how they are sampled (`Settings`)."""
    posts: Mapping[str, _Post] = field(default_factory=dict)
    """What else may be posted, by its path behind `/v1`; in threads of the server."""
    most_open: int = MOST_OPEN
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

    def __init__(
        self, unix_socket: Path | None = None, *, host: str = LOOPBACK, port: int = 0, names: Collection[str] = ()
    ) -> None:
        """`unix_socket`: where it listens besides, for clients without a network. `names`: others that this machine
        goes by. Raises OSError where the address cannot be had."""
        self._clients: dict[str, Client] = {}
        self._host, self._names, self._loopback = host, {"localhost", host, *names}, is_loopback(host)
        app = Starlette(
            routes=[
                Route(f"{start}/v1/{path}", endpoint, methods=[method])
                for start in ("", "/{path}")
                for path, endpoint, method in (
                    ("chat/completions", self._chat, "POST"),
                    ("models", self._models, "GET"),
                    ("models/{name:path}", self._models, "GET"),
                    ("{post}", self._post, "POST"),
                )
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
        self._sockets = [listening(host, port)]
        self.port: int = self._sockets[0].getsockname()[1]
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)
            self._sockets.append(_bound(socket.AF_UNIX, str(unix_socket)))
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
        return self.serve(Client(secrets.token_hex(8), f"crl-{secrets.token_urlsafe(32)}", submit))

    def serve(self, client: Client) -> Client:
        """Answer a client at its path."""
        self._clients[client.path] = client
        return client

    def close(self, path: str) -> None:
        """A client's path is gone; its open calls are refused."""
        client = self._clients.pop(path, None)
        for call in list(client.calls) if client else ():
            call.refuse(ApiError("This conversation is over.", code="over"))

    def url(self, client: Client, port: int | None = None) -> str:
        """What a client's `base_url` is; `port`: of whatever leads to the Unix socket."""
        host, start = f"[{self._host}]" if ":" in self._host else self._host, client.path and f"/{client.path}"
        return f"http://{host}:{port or self.port}{start}/v1"

    def _client(self, request: Request) -> Client:
        """Raises ApiError for a request of nobody's."""
        if not self._is_here(request.headers.get("host", "")):
            raise ApiError("This host is not served here.", code="wrong_host", status=403)
        if "origin" in request.headers:
            raise ApiError("Pages of browsers are not answered.", code="wrong_origin", status=403)
        client = self._clients.get(request.path_params.get("path", ""))
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given, expected = key.strip().encode(), client.key.encode() if client else secrets.token_bytes(43)
        known = not expected or (scheme.lower() == "bearer" and hmac.compare_digest(given, expected))
        if not known or client is None:
            raise ApiError("This key is not the one of this path.", code="invalid_api_key", status=401)
        return client

    def _is_here(self, host: str) -> bool:
        """Whether a Host may be this machine's. A page that rebinds a name has that name, and no address."""
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if name in self._names:
            return True
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            return address.is_loopback or not self._loopback
        return False

    async def _models(self, request: Request) -> Response:
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "crl"} for name in self._client(request).models
        ]
        if (name := request.path_params.get("name")) is None:
            return JSONResponse({"object": "list", "data": models})
        for model in models:
            if model["id"] == name:
                return JSONResponse(model)
        raise no_such_model(name, [str(model["id"]) for model in models])

    async def _post(self, request: Request) -> Response:
        client = self._client(request)
        post = client.posts.get(request.path_params["post"])
        if post is None:
            raise ApiError("Not Found", code="not_found", status=404)
        try:
            async with _body(request, client) as body:
                return JSONResponse(await asyncio.to_thread(post, read_object(body)))
        except ClientDisconnect:
            return Response(status_code=499)

    async def _chat(self, request: Request) -> Response:
        client = self._client(request)
        try:
            async with contextlib.AsyncExitStack() as stack:
                body = await stack.enter_async_context(_body(request, client))
                chat = read_request(body, served=client.served)
                call, news = Call(chat), asyncio.Event()
                call.wake = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
                client.calls.add(call)
                stack.callback(client.calls.discard, call)
                stack.callback(call.let_go)
                client.submit(call)
                answer = await _next(request, call, news)
                if not chat.stream:
                    return JSONResponse(answer.body(chat))
                return _Stream(_events(call, answer, news), stack.pop_all())
        except ClientDisconnect:
            return Response(status_code=499)


class _Stream(StreamingResponse):
    """Events, and what is done when there are no more, or nobody reads them."""

    def __init__(self, events: AsyncIterator[str], ending: contextlib.AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._ending:
            await super().__call__(scope, receive, send)


@contextlib.asynccontextmanager
async def _body(request: Request, client: Client) -> AsyncIterator[bytearray]:
    """The body of a call, which is one of the client's open ones while the block runs.

    Raises ApiError where there is no room for it, ClientDisconnect where it does not come.
    """
    if client.open >= client.most_open:
        raise ApiError(f"At most {client.most_open} calls are open at one time.", code="too_many_calls", status=429)
    client.open += 1
    body = bytearray()
    try:
        await _read(request, client, body)
        yield body
    finally:
        client.open -= 1
        client.size -= len(body)


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


async def _next(request: Request, call: Call, news: asyncio.Event) -> Answer:
    """Wait for an answer (for a stream: for more of it), and for the client to go, whichever is first. Raises ApiError
    where it is refused, ClientDisconnect."""
    gone = asyncio.ensure_future(request.receive())
    try:
        while not gone.done():
            more = asyncio.ensure_future(news.wait())
            await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
            news.clear()
            if call.result.done():
                return call.result.result()
            if call.request.stream and call.so_far is not None:
                return call.so_far
        raise ClientDisconnect
    finally:
        gone.cancel()


async def _events(call: Call, answer: Answer, news: asyncio.Event) -> AsyncIterator[str]:
    """The chunks of a stream. What is known meanwhile of an answer is sent at once: who reads slowly costs nothing."""
    sent: ParsedTurn | None = None
    while True:
        for chunk in answer.chunks(call.request, sent):
            yield _event(chunk)
        if answer.stop_reason is not None:
            yield "data: [DONE]\n\n"
            return
        sent = answer.parsed
        await news.wait()
        news.clear()
        try:
            answer = call.result.result() if call.result.done() else call.so_far or answer
        except ApiError as error:
            yield _event(error.body())
            return


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _refusal(request: Request, error: Any) -> Response:
    return JSONResponse(error.body(), status_code=error.status)


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is that of this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections at an address; port 0: a free one. Raises OSError where that cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _bound(family, address)


def _bound(family: socket.AddressFamily, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:  # a server that has just ended leaves connections that wait
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    made.listen(256)
    made.set_inheritable(False)
    return made
