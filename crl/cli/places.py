"""Which run directory a command means: a path, or the name of an experiment under the runs directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crl.errors import BadInput

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or the name of an experiment under $CRL_RUNS (./runs).")
]


def find_run(name: str) -> Path:
    """The run directory that a user means. Raises BadInput, listing what exists."""
    from crl.config.load import runs_root

    root = runs_root()
    for candidate in (Path(name), root / name):
        if is_run(candidate):
            return candidate
    existing = sorted(path.name for path in root.iterdir() if is_run(path)) if root.is_dir() else []
    raise BadInput(
        f"there is no run {name!r}",
        expected=f"a run directory, or one of {', '.join(existing)}" if existing else "a run directory",
        where=str(root.absolute()),
        next_step="name one of them, or set CRL_RUNS to where runs lie"
        if existing
        else "`crl train conf/quickstart.yaml` makes the first one; CRL_RUNS says where runs lie",
    )


def is_run(path: Path) -> bool:
    """Whether a directory looks like a run, complete or damaged."""
    return (path / "experiment.yaml").is_file() or (path / "rounds").is_dir()


def shown(path: Path) -> str:
    """A path as a user would type it: relative to where they stand when it lies below."""
    import shlex

    absolute = path.absolute()
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
