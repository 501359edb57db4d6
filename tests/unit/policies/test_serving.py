"""Connections to a server that closes those that were idle, as uvicorn does after five seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from crl.config.engines import ServerConfig
from crl.policies.serving import Client


class _Answering(BaseHTTPRequestHandler):
    """Remembers the client's port of each request: one port is one connection."""

    protocol_version = "HTTP/1.1"
    ports: list[int]

    def do_GET(self) -> None:
        self.ports.append(self.client_address[1])
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words: object) -> None:
        """Nothing is written."""


@pytest.fixture
def served() -> Iterator[tuple[str, list[int]]]:
    ports: list[int] = []
    handler = type("Handler", (_Answering,), {"ports": ports})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", ports
        server.shutdown()


def test_a_connection_that_was_idle_is_not_used_again(served: tuple[str, list[int]]) -> None:
    address, ports = served
    server = Client("server", ServerConfig(), address)
    try:
        server.get("/one")
        server.get("/two")
        time.sleep(1.5)  # longer than a connection is kept, and a third of what a server waits
        server.get("/three")
    finally:
        server.close()
    assert len(ports) == 3 and ports[2] != ports[1]
