"""One finished run of the tiny experiment for all tests that look at a real record. Made once, also under xdist."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from tests.tiny_run import NAME, ROUNDS, crl, train


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
