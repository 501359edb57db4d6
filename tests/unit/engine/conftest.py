"""Fixtures of the engine tests; what they are made with is in `harness.py`."""

from __future__ import annotations

import pytest

from crl.engine.events import Event
from crl.run.directory import RunDirectory
from tests.unit.engine.harness import digests, make_driver


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Rounds 0 to 2 run without any mishap. To be read only."""
    with make_driver(tmp_path_factory.mktemp("undisturbed")) as driver:
        driver.run_rounds(2)
    return driver.run


@pytest.fixture(scope="session")
def undisturbed(quiet: RunDirectory) -> dict[str, str]:
    """Digests of these rounds."""
    return digests(quiet)


@pytest.fixture
def seen() -> list[Event]:
    """Where a test collects events: `driver.subscribe(seen.append)`."""
    return []
