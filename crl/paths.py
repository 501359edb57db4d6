"""Names that a person gave: whether the system can look for them at all, how a shell takes them, and where what is
prepared on this machine lies."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from crl.errors import BadInput

_SHOWN = 60
"""Characters of a name that a message shows: one may be longer than the screen."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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


def quoted(word: str | Path) -> str:
    """One word of a command line that is printed, as a shell takes it, whatever is in it; on one line.

    A path that begins with a dash is no option: it gets a `./`.
    """
    text = str(word)
    if isinstance(word, Path) and text.startswith("-"):
        text = f"./{text}"
    if _CONTROL.search(text) is None:
        return shlex.quote(text)
    escaped = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"


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
