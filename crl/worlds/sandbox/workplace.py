"""The folder that the trees of one environment are in: gone when the environment is closed or its process ends.

A process that was killed leaves its folder, and where bubblewrap was about to start a sandbox perhaps a process that
waits; the next environment on the machine ends and removes both. A lock says which folders are in use.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from crl.worlds.sandbox.bubblewrap import open_to_all

_PREFIX, _MAKING = "crl-swe-", "crl-making-swe-"
_LOCK = "lock"


class Workplace:
    """A new folder that every user may go through and only this one may list."""

    def __init__(self, parent: Path | None = None) -> None:
        """`parent`: where it is made; None: the folder of temporary files, or where only root may go there, /tmp."""
        parent = parent or _temporary()
        _sweep(parent)
        made = Path(tempfile.mkdtemp(prefix=_MAKING, dir=parent))  # a name that no sweep of another process looks at
        self._lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.chmod(0o711)
        self.folder = made.rename(parent / made.name.replace(_MAKING, _PREFIX))
        self._finalizer = weakref.finalize(self, _leave, self.folder, self._lock, os.getpid())

    def tree(self) -> Path:
        """A new empty folder in it."""
        return Path(tempfile.mkdtemp(prefix="tree-", dir=self.folder))

    def close(self) -> None:
        """Remove it with all that is in it."""
        self._finalizer()


def _temporary() -> Path:
    own = Path(tempfile.gettempdir())
    return own if os.geteuid() != 0 or open_to_all(own) else Path("/tmp")


def _leave(folder: Path, lock: int, process: int) -> None:
    if os.getpid() == process:  # not in a process that was forked
        remove(folder)
        with suppress(OSError):
            os.close(lock)


def _kill_users(folder: Path) -> None:
    """Kill what was started with a path in a folder."""
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if process.name.isdigit() and f"{folder}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _sweep(parent: Path) -> None:
    """Remove what processes of this user left that are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # just being made, or just gone
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _kill_users(folder)
            remove(folder)
        except OSError:
            pass
        finally:
            os.close(lock)


def unlock(tree: Path) -> None:
    """Let the owner of a tree read and change all of it, whatever modes were left on it."""
    _quietly("chmod", "-R", "u+rwX", str(tree))


def remove(tree: Path) -> None:
    """Remove a tree, whatever is in it: folders in folders without end, or some that nobody may enter."""
    with suppress(OSError):
        tree.unlink()  # a file or a link; thousands of them are not worth a process each
        return
    if not os.path.lexists(tree) or tree.is_symlink():  # modes would be changed of what a link leads to
        return
    if not _quietly("rm", "-rf", str(tree)):
        unlock(tree)
        _quietly("rm", "-rf", str(tree))


def _quietly(*command: str) -> bool:
    null = subprocess.DEVNULL
    return subprocess.run(command, stdin=null, stdout=null, stderr=null, check=False).returncode == 0
