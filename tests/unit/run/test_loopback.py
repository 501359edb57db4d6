"""A machine with a proxy for the world outside: its own servers are reached all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from crl.run.loopback import past_proxies
from tests.processes import free_port

ASK = "import httpx; print(httpx.get({!r}, timeout=60).status_code)"


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(
    ("first", "answer"),
    [("", False), ("import flows", True), ("import contextlib, crl.cli\nwith contextlib.suppress(SystemExit):\n"
                                          "    crl.cli.main(['--help'])", True)],
    ids=["neither", "flows", "crl"],
)  # fmt: skip
def test_a_proxy_is_not_asked_for_this_machine(address: str, first: str, answer: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name.lower() not in ("no_proxy", "all_proxy")}
    environment |= dict.fromkeys(("HTTP_PROXY", "http_proxy"), f"http://127.0.0.1:{free_port()}")
    done = subprocess.run(
        [sys.executable, "-c", f"{first}\n{ASK.format(address)}"], env=environment, capture_output=True, text=True
    )
    assert done.stdout.endswith("204\n") is answer, done.stderr
    assert answer or "ConnectError" in done.stderr


def test_what_the_user_listed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org,localhost")
    monkeypatch.delenv("no_proxy", raising=False)
    past_proxies()
    past_proxies()
    assert os.environ["NO_PROXY"] == "example.org,localhost,127.0.0.1"
    assert os.environ["no_proxy"] == "127.0.0.1,localhost"
