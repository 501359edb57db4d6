"""Fixtures of the engine tests; what they are made with is in `harness.py`."""

from __future__ import annotations

import pytest

from crl.engine.events import Event
from tests.unit.engine.harness import digests, make_driver


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of rounds 0 to 2 run without any mishap."""
    with make_driver(tmp_path_factory.mktemp("undisturbed")) as driver:
        driver.run_rounds(2)
        return digests(driver.run)


@pytest.fixture
def seen() -> list[Event]:
    """Where a test collects events: `driver.subscribe(seen.append)`."""
    return []
