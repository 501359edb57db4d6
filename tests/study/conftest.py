"""One finished study of the recipe without models, made by the command line; to be read only."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from tests.study.studies import NAME, fake, write
from tests.tiny_run import crl


@dataclass(frozen=True)
class Finished:
    """A study that ran to its end."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "study.yaml"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def directory(self) -> Path:
        return self.runs / NAME

    @property
    def said(self) -> str:
        """What the command printed."""
        return (self.folder / "said.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Made once, also under xdist."""
    base = tmp_path_factory.getbasetemp()
    found = Finished((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-study")
    with FileLock(f"{found.folder}.lock"):
        if not (found.folder / "said.txt").exists():
            shutil.rmtree(found.folder, ignore_errors=True)
            found.folder.mkdir()
            done = crl(found.runs, "compare", write(found.folder), "--jobs", "2", extra=fake())
            (found.folder / "said.txt").write_text(done.stdout, encoding="utf-8")
    return found
