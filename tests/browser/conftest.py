"""`make ui` on a home and ports of its own, and Chromium in front of it.

`CRL_PICTURES=docs/pictures` keeps the screenshots of docs/operations.md; else they lie in a temporary directory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from crl.report.page import write_report
from tests.browser.opened import Opened
from tests.browser.screen import HEIGHT, WIDTH, Screen
from tests.operate import Operation
from tests.processes import free_port, wait_until

READY = re.compile(r"^Ready after (\d+) s\.$", re.MULTILINE)


class OpenUi(Operation):
    """What `make ui` starts, as one process that starts the others."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "home", folder / "runs", {"DEEPSPEED_LOG_LEVEL": "info"})
        self.pages_port = free_port()
        self.ready_seconds = -1
        (self.home / "server.log").touch()

    def start(self) -> None:
        """Start it, once more where it was stopped, and wait until it says that it is ready."""
        ports = ["--port", str(self.port), "--pages-port", str(self.pages_port)]
        before = len(self._ready())
        self._server = self._start("server", [sys.executable, "-u", "-m", "crl", "ui", *ports])
        wait_until(lambda: len(self._ready()) > before or self._server_ended(), lambda: f"ready: {self.said()}")
        assert not self._server_ended(), self.said()
        self.ready_seconds = int(self._ready()[-1])

    def said(self) -> str:
        """What it has printed."""
        return (self.home / "server.log").read_text(encoding="utf-8", errors="replace")

    def _ready(self) -> list[str]:
        """Seconds of each start."""
        return READY.findall(self.said())

    def _server_ended(self) -> bool:
        return self._server is None or self._server.poll() is not None


@contextmanager
def _opened(folder: Path) -> Iterator[OpenUi]:
    made = OpenUi(folder)
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session")
def desk(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenUi]:
    """`make ui`, for all tests of a session."""
    with _opened(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def own_desk(chromium: str, tmp_path: Path) -> Iterator[OpenUi]:
    """One that may be stopped and killed: nobody else's. The screen of a test that takes it is in front of it."""
    with _opened(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots lie."""
    wanted = os.environ.get("CRL_PICTURES")
    if wanted is None:
        return tmp_path_factory.mktemp("pictures")
    Path(wanted).mkdir(parents=True, exist_ok=True)
    return Path(wanted)


@pytest.fixture
def screen(request: pytest.FixtureRequest, browser: Browser, pictures: Path) -> Iterator[Screen]:
    """A fresh tab. Afterwards nobody but this machine was asked, and no script failed."""
    desk = request.getfixturevalue("own_desk" if "own_desk" in request.fixturenames else "desk")
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, timezone_id="UTC", locale="en-GB")
    made = Screen(context.new_page(), desk.url, pictures)
    yield made
    context.close()
    assert made.strangers() == []
    assert made.errors == []


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The page of a run, which is made once."""
    folder = tmp_path_factory.mktemp("pages")
    return lru_cache(lambda run: write_report(run, folder / f"{run.parent.name}-{run.name}.html"))


@pytest.fixture
def show(browser: Any, written: Callable[[Path], Path]) -> Iterator[Callable[..., Opened]]:
    """Open the page of a run. Afterwards it has asked for nothing, and nothing went wrong."""
    opened: list[Opened] = []

    def run(path: Path, **context: Any) -> Opened:
        opened.append(Opened(browser.new_context(**context).new_page(), written(path)))
        return opened[-1]

    yield run
    for each in opened:
        violations = each.page.evaluate("window.violations")
        each.page.context.close()
        assert each.asked == [each.path.as_uri()], "the page asked for something"
        assert each.complaints == [] and violations == []
