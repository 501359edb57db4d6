"""One temporary Prefect server for all flow tests, and the fake recipe of the engine tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flows  # noqa: F401  (first: it turns Prefect's telemetry off)
from tests.processes import PATIENCE_SECONDS

_servers = contextlib.ExitStack()


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A real server on a temporary database, until this folder's tests are left: idle it takes 3 % of a processor.

    Options that mix the folders' tests (`--ff`, `--nf`) are not for these.
    """
    from prefect.server.api import server
    from prefect.testing.utilities import prefect_test_harness

    from flows.command import patiently

    with _servers:
        with patiently(server):
            _servers.enter_context(prefect_test_harness(server_startup_timeout=int(PATIENCE_SECONDS)))
        yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the server with the last test of this folder; at the end of the session it would be ended anyway."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _servers.close()


@pytest.fixture
def fake(
    prefect_server: None, plain_charts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[dict[str, Any]], Path]:
    """Flows on the fake recipe under `tmp_path`; calling it orders mishaps and gives the run's path."""
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))

    def order(mishaps: dict[str, Any]) -> Path:
        monkeypatch.setenv("CRL_FAKE", json.dumps(mishaps))
        return tmp_path / "fake"

    order({})
    return order
