"""In front of this project's web servers: they answer their own pages, and programs, and no other page.

A browser sends what any page asks it to, to loopback too, and names the origin of that page. Where a stranger's name
resolves to this machine, a page under that name has the same origin as the server; then the Host gives it away. No
setting of Prefect closes both ways.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import re
from typing import TYPE_CHECKING

from crl.errors import BadInput

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
VARIABLE = "CRL_HOSTS"
"""Further names of the server, or whole origins of its pages where a proxy changes the Host; commas between them."""
_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}

Address = tuple[str, int]
"""Name in lower case, port."""


class OwnOrigin:
    """Lets through what names this server as Host, and as Origin (its own pages) or none (programs).

    All else is refused with 403, a WebSocket before it opens. Raises BadInput where $CRL_HOSTS cannot be read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._hosts, self._origins = set(LOOPBACK), set[Address]()
        for word in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
            origin = _origin(word)
            named = _address(word, 0) if origin is None else origin[1]
            if named is None:
                raise BadInput(
                    f"{VARIABLE} holds {word!r}",
                    expected="names and origins with commas: prefect.example.org,https://prefect.example.org",
                    where=VARIABLE,
                    next_step="correct it",
                )
            self._hosts.add(named[0])
            if origin is not None:
                self._origins.add(named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        refusal = self._refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 403, f"{refusal} If it is yours: {VARIABLE}, in docs/security.md.\n")

    def _refusal(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        """Why a request with these headers is refused; None where it is not."""
        (host, *hosts), (origin, *origins) = (
            [value.decode("latin-1") for key, value in headers if key.lower() == name] or [""]
            for name in (b"host", b"origin")
        )
        named = _address(host, 0)
        if hosts or named is None or named[0] not in self._hosts:
            return "This server does not go by the name in the address."
        if not (origin or origins):
            return None
        page = _origin(origin)
        if origins or page is None or page[1] not in {*self._origins, _address(host, _PORTS[page[0]])}:
            return "This was sent by a page of another server."
        return None


class Password:
    """HTTP's basic authentication, with a `user:password`; what is `open` to all are paths."""

    def __init__(self, app: ASGIApp, auth: str, open: tuple[str, ...] = ()) -> None:
        self._app, self._open = app, open
        self._wanted = b"Basic " + base64.b64encode(auth.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or ask for the password."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or scope["path"] in self._open or hmac.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
        else:
            await _answer(send, 401, "A password is needed.\n", (b"www-authenticate", b'Basic realm="reports"'))


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = text.encode()
    length = (b"content-length", str(len(body)).encode())
    kind = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


def _address(authority: str, port: int) -> Address | None:
    """`name:port` of a header; `port` where it has none."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    name = match["name"]
    if name is None:
        try:
            name = str(ipaddress.IPv6Address(match["six"]))
        except ValueError:
            return None
    return name.lower(), int(match["port"] or port)


def _origin(text: str) -> tuple[str, Address] | None:
    """Scheme and address of `scheme://name:port`; None for any other text, `null` among them."""
    scheme, _, authority = text.lower().partition("://")
    address = _address(authority, _PORTS.get(scheme, 0))
    return None if scheme not in _PORTS or address is None else (scheme, address)
