"""What tests of several folders share: one finished run of the tiny experiment, made once also under xdist, and one
browser (playwright allows one per process)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.tiny_run import NAME, ROUNDS, crl, train

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without these the browser itself asks the network: for components, for its time, for its variations.
CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The one test of minutes comes first: begun last, it would run alone while the other processor waits."""
    items.sort(key=lambda item: item.path.name != "test_operation.py")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium lies; where there is none the tests are skipped."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: nothing was looked at in a browser (Debian: apt install chromium)")
    return CHROMIUM


# No longer than a module: while playwright is open it runs an event loop, in which Prefect's calls turn asynchronous.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory: `ROUNDS` rounds, made by the command line with the real engine. To be read only."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            making = shared.with_name("finished-in-the-making")
            shutil.rmtree(making, ignore_errors=True)
            crl(making, *train(ROUNDS))
            # The catalog names absolute places: it is written anew where the run will lie.
            making.rename(shared)
            crl(shared, "catalog", NAME)
    return shared / NAME


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change; the directory above it is its $CRL_RUNS."""
    target = tmp_path / "runs" / NAME
    shutil.copytree(finished, target)
    return target
