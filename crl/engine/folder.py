"""A folder of this process that no other user may enter, for sockets, stores and weights on their way to a server."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from crl.run.files import machine_digest

_FOLDER = re.compile(r"crl-engine-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-")
_DAY = 86_400.0


def own_folder(parent: Path | None = None) -> Path:
    """A new folder that only this user may enter. Those of processes that were killed are removed: exported weights are
    as large as the model. Another machine's process (or container's, in a `parent` that they share) counts as gone once
    its folder has not been touched for a day; elsewhere, what is older than this machine's start has no process."""
    root = parent or Path(tempfile.gettempdir())
    for left in root.glob("crl-engine-*"):
        if _left_behind(left, shared=parent is not None):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"crl-engine-{machine_digest()}-{os.getpid()}-", dir=root))


def _left_behind(folder: Path, *, shared: bool) -> bool:
    match = _FOLDER.match(folder.name)
    if match is None:
        return False
    if match["machine"] == machine_digest():
        return not psutil.pid_exists(int(match["pid"]))
    with contextlib.suppress(OSError):  # removed meanwhile
        touched = folder.lstat().st_mtime
        return time.time() - touched > _DAY if shared else touched < psutil.boot_time()
    return False
