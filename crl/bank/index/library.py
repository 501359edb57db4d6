"""Which FAISS searches here, on what, and why.

Two packages offer the module `faiss`: `faiss-cpu`, and `faiss-gpu`, which searches on a GPU as well. Exactly one may be
installed. A build without code for the GPU that is there ends the whole process at its first search, and nothing can
catch that; so the GPU index is first tried in a process of its own (:func:`try_gpu`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from crl.errors import BadInput

PACKAGES = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cu11")
"""What offers the module `faiss`."""
INSTALL = "pip install faiss-cpu, or faiss-gpu to search on a GPU"
_TRIAL_SECONDS = 180
"""A build that brings no code for this GPU but a form to compile it from takes a while the first time."""
_ROUNDING = 1e-4
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
    fault = _fault()
    found = Searcher(fault is None, ", ".join(filter(None, (package, _device()))) + (f": {fault}" if fault else ""))
    _LOG.warning("FAISS %s", found)  # a warning is what the log of a run shows
    return found


@functools.cache
def gpu_resources() -> Any:
    """FAISS's memory and streams on the GPU: one per process, since each reserves 1.5 GiB."""
    return load_faiss().StandardGpuResources()


def try_gpu() -> None:
    """A small search on the GPU, for a process that may not survive it. Exits with what is wrong where it finds other
    values than the CPU."""
    import numpy as np

    faiss, draw = load_faiss(), np.random.default_rng(0)
    vectors_ND, queries_QD = (draw.standard_normal((count, 384), dtype=np.float32) for count in (4096, 32))
    for each in (vectors_ND, queries_QD):
        each /= np.linalg.norm(each, axis=1, keepdims=True)
    index = faiss.GpuIndexFlatIP(gpu_resources(), 384, faiss.GpuIndexFlatConfig())
    index.add(vectors_ND)
    values_QK, _ = index.search(queries_QD, 16)
    expected_QK = -np.sort(-(queries_QD @ vectors_ND.T), axis=1)[:, :16]
    worst = float(np.abs(values_QK - expected_QK).max())
    sys.exit(None if worst <= _ROUNDING else f"it finds other values than the CPU, off by {worst:.3g}")


def _fault() -> str | None:
    """Why a search on the GPU fails in a process of its own; None where it does not."""
    command = [sys.executable, "-c", f"from {__name__} import try_gpu; try_gpu()"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its GPU index did not answer within {_TRIAL_SECONDS} seconds"
    except OSError as error:
        return f"its GPU index could not be tried: {error}"
    if done.returncode == 0:
        return None
    said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
    # Below 0 it was an abort: no code for this device, or a broken build. Else, for instance, memory that others hold.
    how = f"ended a trial with {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "failed a trial"
    return f"its GPU index {how}: {said[:200]}"


def _device() -> str | None:
    """Names and drivers of the GPUs; None where nvidia-smi does not tell."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(done.stdout.strip().splitlines()) or None if done.returncode == 0 else None
