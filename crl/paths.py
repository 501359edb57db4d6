"""Names that a person gave and that are used as paths, and where what is prepared on this machine lies."""

from __future__ import annotations

import os
from pathlib import Path

from crl.errors import BadInput

_SHOWN = 60
"""Characters of a name that a message shows: one may be longer than the screen."""


def short(name: object) -> str:
    """A name for a message: quoted, and cut where it is long."""
    text = str(name)
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text)} characters)"


def possible_path(name: str | Path, what: str, *, where: str | None = None, home: bool = False) -> Path:
    """The path of a name; with `home`, `~` in it is replaced. There may be nothing at it.

    Raises BadInput where nothing can be: a name longer than a path may be, one with a NUL character, a home directory
    of nobody, a folder that this user may not look into. `what` says what was named, such as `the run`.
    """
    try:
        path = Path(name).expanduser() if home else Path(name)
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(
            f"{what} {short(name)} cannot be looked for: {reason}",
            expected="a path that this system can have and this user may read",
            where=where,
            next_step="correct the name",
        ) from None
    return path


def models_directory() -> Path:
    """Where prepared models are: `$CRL_MODELS`, default `~/.cache/crl/models`. Raises BadInput where nothing can be."""
    name = os.environ.get("CRL_MODELS") or "~/.cache/crl/models"
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise BadInput(
            f"there is no home directory for {name}",
            expected="a directory for prepared models",
            where="the environment variable CRL_MODELS",
            next_step="set CRL_MODELS to one",
        ) from None
