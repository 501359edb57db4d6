"""Finds the run directory that a user means: a path, or the name of an experiment under the runs directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from crl.errors import BadInput
from crl.paths import possible_path

_BESIDE: ContextVar[Path | None] = ContextVar("runs that are looked at first", default=None)


@contextmanager
def beside(run: Path) -> Iterator[None]:
    """Inside, runs are looked for beside this one first: its experiment may have a directory of its own for them."""
    token = _BESIDE.set(run.parent)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def find_run(name: str | Path) -> Path:
    """The run directory of a path or an experiment's name. Raises BadInput, listing what exists."""
    from crl.config.load import runs_root  # pydantic: `crl --help` does without

    root, first = runs_root(), _BESIDE.get()
    for candidate in (Path(name), *([] if first is None else [first / name]), root / name):
        if is_run(possible_path(candidate, "the run")):
            return candidate
    existing = sorted(path.name for path in runs_in(root))
    raise BadInput(
        f"there is no run {str(name)!r}",
        expected=f"a run directory, or one of {', '.join(existing)}" if existing else "a run directory",
        where=str(root.absolute()),
        next_step="name one of them, or set CRL_RUNS to the directory that holds the runs"
        if existing
        else "`crl train quickstart` makes the first one; CRL_RUNS says where runs are",
    )


def runs_in(root: Path) -> list[Path]:
    """The runs of a folder, the one that changed last first; none where there is no folder."""
    found = [path for path in root.iterdir() if is_run(path)] if root.is_dir() else []
    return sorted(found, key=changed, reverse=True)


def changed(run: Path) -> float:
    """When a run last began a round, in seconds since 1970."""
    rounds = run / "rounds"
    return (rounds if rounds.is_dir() else run).stat().st_mtime


def is_run(path: Path) -> bool:
    """Whether a directory looks like a run, complete or damaged; one that is being made has a name with a dot.

    What this user may not look into (`lost+found`, another user's) is none.
    """
    try:
        found = (path / "experiment.yaml").is_file() or (path / "rounds").is_dir()
    except OSError:
        return False
    return found and not path.name.startswith(".tmp-")
