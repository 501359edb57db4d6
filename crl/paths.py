"""Names that a person gave: whether the system can look for them at all, how a shell takes them. And where files are:
those that come with the project, and those that are prepared on this machine."""

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


def shipped() -> Path:
    """The folder of the files that come with the project: conf/, data/, prefect.yaml.

    In a wheel they are inside the package (setup.py puts them there). Else it is the checkout, installed or not.
    """
    package = Path(__file__).resolve().parent
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent


def shipped_names() -> list[str]:
    """The experiments, studies and warm starts that come with the project: `quickstart`, `paper/sokoban`, …"""
    conf = shipped() / "conf"
    found = (path.relative_to(conf).with_suffix("") for path in conf.rglob("*.yaml"))
    return sorted(name.as_posix() for name in found if name.parts[0] not in ("prompts", "expectations"))


def experiment_file(name: str | Path) -> Path:
    """The file that is meant: the one at this path, else the shipped one of this name.

    `quickstart`, `conf/quickstart.yaml` and `study/tiny` name shipped files. Where there is none either, the path stays
    as it is: whoever reads it says so.
    """
    path = possible_path(name, "the file")
    meant = shipped_name(path)
    return shipped() / "conf" / f"{meant}.yaml" if not path.is_file() and meant in shipped_names() else path


def shipped_name(path: Path) -> str:
    """The name of a shipped file that a path would have: `tiny` for `conf/tiny.yaml`."""
    return path.as_posix().removeprefix("conf/").removesuffix(".yaml")


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
