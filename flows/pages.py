"""A web server for report pages, on loopback: what links in the Prefect UI lead to.

It serves a list of the runs that have a page, `<run>/report.html`, and of the studies, `<study>/study.html` with the
pages of their runs, `<study>/<run>/report.html`, and the Data Docs of a run; nothing else of the run directories. It
also prints what the example notification of the set-up sends.
"""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PAGE, STUDY = "report.html", "study.html"
DATA_DOCS = ["cache", "data_docs"]
"""Where a run keeps its Data Docs, in `<run>/`."""
NOTIFICATION = "/notification"
HOST = "127.0.0.1"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LARGEST_MESSAGE = 64 * 1024
# The page brings everything with it; a browser asked to fetch or run more than that refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:"


class Pages:
    """The server, in a thread of this process; closes with the context.

    Args:
        runs: the runs directory.
        port: where to listen, on loopback only.
        say: called with a line for each notification that arrives.
    """

    def __init__(self, runs: Path, port: int, say: Callable[[str], None]) -> None:
        self.runs, self.say = runs, say

        class Handler(_Handler):
            pages = self

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2.0)

    def page(self, path: str) -> bytes | None:
        """What lies at a path of the server; None where that is nothing."""
        if path == "/":
            return self._list()
        *names, file = path.lstrip("/").split("/")
        # The name of an experiment holds no dot and no slash, so no path can lead out of the runs directory.
        docs = names[1:3] == DATA_DOCS and file.endswith(".html") and _NAME.fullmatch(file.removesuffix(".html"))
        page = (len(names), file) in ((1, PAGE), (1, STUDY), (2, PAGE))
        if not all(map(_NAME.fullmatch, names)) or not (page or docs):
            return None
        found = self.runs.joinpath(*names, file)
        try:
            # A link could lead anywhere.
            return found.read_bytes() if found.resolve().is_relative_to(self.runs.resolve()) else None
        except OSError:
            return None

    def _list(self) -> bytes:
        found: list[tuple[str, str]] = []
        if self.runs.is_dir():
            names = sorted(path.name for path in self.runs.iterdir() if _NAME.fullmatch(path.name))
            found = [(name, file) for file in (STUDY, PAGE) for name in names if (self.runs / name / file).is_file()]
        items = "".join(
            f'<li><a href="/{name}/{file}">{html.escape(name)}</a>{" (study)" if file == STUDY else ""}</li>'
            for name, file in found
        )
        body = f"<ul>{items}</ul>" if items else "<p>No run has a report page yet.</p>"
        return (
            "<!doctype html><html lang=en><meta charset=utf-8><title>Reports</title>"
            f"<body style='font-family:sans-serif;margin:2rem'><h1>Reports</h1>{body}</body></html>"
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    pages: Pages
    server_version = "reports"
    sys_version = ""

    def do_GET(self) -> None:
        content = self.pages.page(unquote(urlsplit(self.path).path)) if self._is_local() else None
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, content)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        # Only JSON: a web page somewhere cannot send that here unasked.
        json_sent = self.headers.get_content_type() == "application/json"
        if self.path != NOTIFICATION or not self._is_local() or not json_sent or not length.isdigit():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        if int(length) > _LARGEST_MESSAGE:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            message = json.loads(self.rfile.read(int(length)))
            text = f"{message['subject']}\n{message['body']}"
        except (ValueError, KeyError, TypeError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self.pages.say(text)
        self._answer(HTTPStatus.OK, b"")

    def _is_local(self) -> bool:
        """Whether the request names this machine: another name that resolves here is somebody's web page."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        return host in (HOST, "localhost")

    def _answer(self, status: HTTPStatus, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: requests are not worth a line on the screen."""
