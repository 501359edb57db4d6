"""Complementary RL: a policy actor and an experience extractor that co-evolve, as an auditable pipeline.

`crl.open("runs/quickstart")` opens a run for reading (docs/notebook.md). Importing this package is cheap on purpose: no
model library, no Prefect, no DuckDB (`tests/unit/test_imports.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crl.api import Run

__version__ = "0.1.0"


def open(run: str | Path) -> Run:
    """Open a run for reading: a run directory, or the name of an experiment under $CRL_RUNS (default ./runs).

    Nothing is read before it is asked for, nothing is ever written. Raises BadInput where there is no such run, naming
    those there are.
    """
    from crl.api import Run
    from crl.run.find import find_run

    return Run(find_run(run))
