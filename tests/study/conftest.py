"""One finished study of the recipe without models, made by the command line; to be read only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.study.studies import NAME, fake, write
from tests.tiny_run import crl


@dataclass(frozen=True)
class Finished:
    """A study that ran to its end."""

    file: Path
    runs: Path
    said: str

    @property
    def directory(self) -> Path:
        return self.runs / NAME


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("study")
    file, runs = write(folder), folder / "runs"
    done = crl(runs, "compare", file, "--jobs", "2", extra=fake())
    return Finished(file, runs, done.stdout)
