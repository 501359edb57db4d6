"""A machine with a proxy for the world outside: its own servers are reached all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import proxy_bypass

import pytest

from crl.run.guardian import past_proxies
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


@pytest.mark.parametrize(
    ("listed", "also", "told"),
    [
        ("example.org, localhost", None, "example.org,localhost,127.0.0.1"),
        (None, "example.org", "example.org,127.0.0.1,localhost"),
        ("example.org", "example.net", "example.org,example.net,127.0.0.1,localhost"),
        ("*", None, "*"),
        (None, None, "127.0.0.1,localhost"),
    ],
)
def test_what_the_user_listed_stays(
    listed: str | None, also: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either spelling: libraries read one of them first, and the other not at all."""
    for name, value in (("NO_PROXY", listed), ("no_proxy", also)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    past_proxies()
    past_proxies()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == told
    assert proxy_bypass("example.org") == ("example.org" in told or told == "*")
