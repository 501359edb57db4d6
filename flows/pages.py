"""A web server for report pages, on loopback: what links in the Prefect UI lead to.

It serves a list of the runs that have a page, `<run>/report.html`, and of the studies, `<study>/study.html` with the
pages of their runs, `<study>/<run>/report.html`, and the Data Docs of a run; nothing else of the run directories. It
also prints what the example notification of the set-up sends.
"""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from crl.config.base import NAME_PATTERN
from flows.origin import OwnOrigin, Password

PAGE, STUDY = "report.html", "study.html"
DATA_DOCS = ["cache", "data_docs"]
"""Where a run keeps its Data Docs, in `<run>/`."""
NOTIFICATION = "/notification"
HOST = "127.0.0.1"
NAME = re.compile(NAME_PATTERN)
# The page brings everything with it; a browser asked to fetch or run more than that refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:; "
_POLICY += "frame-ancestors 'none'"
_HEADERS = [
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
]


class Pages:
    """The server, in a thread of this process; closes with the context.

    Args:
        runs: the runs directory.
        port: where to listen, on loopback only.
        say: called with a line for each notification that arrives.
        auth: `user:password` that a reader has to know, if any.
    """

    def __init__(self, runs: Path, port: int, say: Callable[[str], None], auth: str | None = None) -> None:
        self.runs, self.say = runs, say
        self.url = f"http://{HOST}:{port}"
        application = Starlette(
            routes=[
                Route("/", self._list),
                Route(NOTIFICATION, self._notification, methods=["POST"]),
                Route("/{path:path}", self._page),
            ],
            middleware=[Middleware(OwnOrigin)]
            # A notification is sent by Prefect's server, which is told no password; it is only printed.
            + ([Middleware(Password, auth=auth, open=(NOTIFICATION,))] if auth else []),
        )
        config = uvicorn.Config(
            application, HOST, port, headers=_HEADERS, log_level="critical", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Pages:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=2.0)

    def _page(self, request: Request) -> Response:
        *names, file = request.path_params["path"].split("/")
        # The name of an experiment holds no dot and no slash, so no path can lead out of the runs directory.
        docs = names[1:3] == DATA_DOCS and file.endswith(".html") and NAME.fullmatch(file.removesuffix(".html"))
        page = (len(names), file) in ((1, PAGE), (1, STUDY), (2, PAGE))
        if not all(map(NAME.fullmatch, names)) or not (page or docs):
            raise HTTPException(404)
        found = self.runs.joinpath(*names, file)
        # A link could lead anywhere.
        if not _is_file(found) or not found.resolve().is_relative_to(self.runs.resolve()):
            raise HTTPException(404)
        return HTMLResponse(found.read_bytes())

    def _list(self, request: Request) -> Response:
        found: list[tuple[str, str]] = []
        if self.runs.is_dir():
            names = sorted(path.name for path in self.runs.iterdir() if NAME.fullmatch(path.name))
            found = [(name, file) for file in (STUDY, PAGE) for name in names if _is_file(self.runs / name / file)]
        items = "".join(
            f'<li><a href="/{name}/{file}">{html.escape(name)}</a>{" (study)" if file == STUDY else ""}</li>'
            for name, file in found
        )
        body = f"<ul>{items}</ul>" if items else "<p>No run has a report page yet.</p>"
        return HTMLResponse(
            "<!doctype html><html lang=en><meta charset=utf-8><title>Reports</title>"
            f"<body style='font-family:sans-serif;margin:2rem'><h1>Reports</h1>{body}</body></html>"
        )

    async def _notification(self, request: Request) -> Response:
        # Only JSON: a web page of another site cannot send it without being asked first.
        if request.headers.get("Content-Type") != "application/json":
            raise HTTPException(415)
        try:
            message = await request.json()
            self.say(f"{message['subject']}\n{message['body']}")
        except (ValueError, KeyError, TypeError):
            raise HTTPException(400) from None
        return Response()


def _is_file(path: Path) -> bool:
    """Whether there is a file that this user may look for: another user's folder may be closed."""
    try:
        return path.is_file()
    except OSError:
        return False
