"""Which FAISS searches here, on what, and why.

Two packages offer the module `faiss`: `faiss-cpu`, and `faiss-gpu`, which searches on a GPU as well. Exactly one may be
installed. A build without code for the GPU that is there ends the whole process at its first search, and nothing can
catch that; so the GPU index is tried once per machine in a process of its own (`gpu_trial`). The verdict is kept in
`$CRL_MODELS/faiss-gpu.json` for this GPU, driver and version. Without it, or with a damaged one, it is tried again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput
from crl.paths import models_directory

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cu11")
"""What offers the module `faiss`."""
INSTALL = "pip install '.[cpu]' from the checkout, or '.[gpu]' to search on a GPU"
_TRIAL_SECONDS = 180
"""A build that brings no code for this GPU but a form to compile it from takes a while the first time."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Searcher:
    """What searches."""

    gpu: bool
    why: str
    """Package and device, or why it is not a GPU."""

    def __str__(self) -> str:
        return f"searches on the {'GPU' if self.gpu else 'CPU'}: {self.why}"


def installed() -> dict[str, str]:
    """Versions of the packages that offer `faiss`, by name."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def check_faiss() -> None:
    """Raise BadInput unless exactly one FAISS is installed. Nothing is imported."""
    names = list(installed())
    if len(names) > 1:
        raise BadInput(
            f"{' and '.join(names)} are installed together",
            expected="exactly one: each is the module `faiss`, and which files are left is chance",
            where="this Python environment",
            next_step=f"pip uninstall -y {' '.join(names)}; then {INSTALL}",
        )
    if not names and importlib.util.find_spec("faiss") is None:
        raise BadInput(
            "FAISS, which searches the experience bank, is not installed",
            expected=" or ".join(PACKAGES[:2]),
            where="this Python environment",
            next_step=f"make setup, or {INSTALL}",
        )


def load_faiss() -> Any:
    """The module `faiss`. Raises BadInput where it is not installed or cannot be imported."""
    try:
        import faiss
    except ImportError as error:
        check_faiss()
        names = shlex.join(installed() or ["faiss"])
        raise BadInput(
            f"FAISS cannot be imported: {error}",
            expected=f"a whole installation of {names}",
            where="this Python environment",
            next_step=f"pip install --force-reinstall --no-deps {names}",
        ) from error
    return faiss


@functools.cache
def searcher() -> Searcher:
    """What searches exactly in this process, said once in the log. Raises BadInput without a FAISS."""
    faiss = load_faiss()
    package = ", ".join(f"{name} {version}" for name, version in installed().items()) or "faiss"
    if not hasattr(faiss, "StandardGpuResources"):
        return Searcher(False, f"{package} has no GPU support")
    if faiss.get_num_gpus() < 1:
        return Searcher(False, f"{package} sees no GPU")
    fault, device = _verdict(package)
    found = Searcher(fault is None, f"{package}{f', {device}' if device else ''}{f': {fault}' if fault else ''}")
    _LOG.warning("FAISS %s", found)  # a warning is what the log of a run shows
    return found


@functools.cache
def gpu_resources() -> Any:
    """FAISS's memory and streams on the GPU: one per process, since each reserves 1.5 GiB."""
    return load_faiss().StandardGpuResources()


def _verdict(package: str) -> tuple[str | None, str]:
    """Why the GPU index does not work here (None: it does), and the GPU."""
    from filelock import FileLock

    device = _device()
    if device is None:  # nothing to know the machine by: tried in every process
        return _tried()[0], ""
    key = [package, device, os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    path = models_directory() / "faiss-gpu.json"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # where nothing can be kept, several processes may try at once
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock")))
        kept = _read(path)
        if kept is not None and kept.key == key:
            return kept.fault, device
        fault, lasting = _tried()
        if lasting:
            _write(path, _Kept(key, fault))
    return fault, device


@dataclass(frozen=True, slots=True)
class _Kept:
    key: list[str]
    fault: str | None


def _read(path: Path) -> _Kept | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        key, fault = found["key"], found["fault"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _Kept(key, fault) if isinstance(key, list) and isinstance(fault, str | None) else None


def _write(path: Path, kept: _Kept) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(asdict(kept)) + "\n", encoding="utf-8")
        temporary.replace(path)


def _tried() -> tuple[str | None, bool]:
    """Why a search on the GPU fails in a process of its own (None: it does not), and whether that will not change."""
    command = [sys.executable, "-m", "crl.bank.index.gpu_trial"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its GPU index did not answer within {_TRIAL_SECONDS} seconds", False
    except OSError as error:
        return f"its GPU index could not be tried: {error}", False
    if done.returncode == 0:
        return None, True
    said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
    if done.returncode < 0:  # an abort: no code for this device, or a broken build
        name = signal.Signals(-done.returncode).name
        return f"its GPU index ended a trial with {name}: {said[:200]}", done.returncode == -signal.SIGABRT
    return f"its GPU index failed a trial: {said[:200]}", False  # memory that others hold, for instance


def _device() -> str | None:
    """Names and drivers of the GPUs; None where nvidia-smi does not tell."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(done.stdout.strip().splitlines()) or None if done.returncode == 0 else None
