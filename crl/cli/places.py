"""How commands take a run and print paths."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or the name of an experiment under $CRL_RUNS (./runs).")
]


def shown(path: Path) -> str:
    """A path as a user would type it: relative to the working directory when it is below."""
    absolute = path.absolute()
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
