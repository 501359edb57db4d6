"""What a quickstart costs: seconds per stage, peak memory of all its processes, bytes on disk.

    python benchmarks/quickstart.py [EXPERIMENT] [ROUNDS] [RUNS]

Runs the experiment from nothing, as a user would, and watches the process tree: in a temporary directory, or in the
empty directory RUNS, which is kept. Memory is the sum of proportional set sizes (pages that processes share are counted
once), sampled every two seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import psutil


def tree_bytes(process: psutil.Process) -> int:
    """Memory of a process and all its children now."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def main() -> None:
    """Run, watch, print."""
    experiment = sys.argv[1] if len(sys.argv) > 1 else "conf/quickstart.yaml"
    rounds = sys.argv[2] if len(sys.argv) > 2 else "3"
    kept = sys.argv[3] if len(sys.argv) > 3 else None
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "crl", "train", experiment, "--rounds", rounds, "--runs", runs]
        started, peak = time.monotonic(), 0
        child = psutil.Popen(command)
        while child.poll() is None:
            try:
                peak = max(peak, tree_bytes(child))
            except psutil.NoSuchProcess:
                break
            time.sleep(2)
        seconds = time.monotonic() - started
        size = sum(path.stat().st_size for path in Path(runs).rglob("*") if path.is_file())
    print(
        f"exit {child.returncode}, {seconds:.0f} s in all, peak memory {peak / 1e9:.2f} GB, {size / 1e9:.2f} GB on disk"
    )
    raise SystemExit(child.returncode)


if __name__ == "__main__":
    main()
