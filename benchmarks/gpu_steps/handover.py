"""Handing the weights of a 7B model to another process: CUDA IPC (shared memory on a CPU), or files in memory.

The other process reports when it has copied every tensor into memory of its own, and the sum of what it holds.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.common import arguments, device, reason, tell, wait

_PATIENCE = 60


def receive(channel: Any) -> None:
    """The other process: take tensors, or files, and answer with the seconds of the copy and a checksum."""
    import torch
    from safetensors.torch import load_file

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")  # a server would have its context
    channel.put("ready")
    for kind, content in iter(channel.taken.get, None):
        began = time.perf_counter()
        if kind == "tensors":
            held = [each.clone() for each in content]
        else:
            held = list(load_file(content, device=str(device())).values())
        wait()
        channel.put((time.perf_counter() - began, checksum(held)))
        del content, held


def checksum(tensors: list[Any]) -> float:
    """A sum that every tensor enters."""
    return float(sum(each.flatten()[:: max(1, each.numel() // 1000)].double().sum() for each in tensors))


class Channel:
    """Two queues of torch's, which hand over memory instead of its content."""

    def __init__(self, context: Any) -> None:
        self.taken, self.answers = context.Queue(), context.Queue()

    def put(self, answer: Any) -> None:
        """Answer."""
        self.answers.put(answer)

    def ask(self, kind: str, content: Any) -> tuple[float, float, float]:
        """Seconds from here to the answer, of the copy there, and the checksum."""
        began = time.perf_counter()
        self.taken.put((kind, content))
        seconds, total = self.answers.get(timeout=_PATIENCE)
        return time.perf_counter() - began, seconds, total


def main() -> None:
    """Measure both ways and tell."""
    asked = arguments(__doc__)
    import torch
    import torch.multiprocessing as sharing
    from safetensors.torch import save_file

    size = (15 * 10**9 if asked.scale == "full" else 8 * 10**6) // 200
    tensors = [torch.full((size // 2,), float(index), dtype=torch.bfloat16, device=device()) for index in range(200)]
    total = sum(each.nbytes for each in tensors)
    tell(gigabytes=round(total / 1e9, 3), tensors=len(tensors))
    context = sharing.get_context("spawn")
    channel = Channel(context)
    child = context.Process(target=receive, args=(channel,), daemon=True)
    child.start()
    try:
        assert channel.answers.get(timeout=_PATIENCE) == "ready"
        expected = checksum(tensors)
        wait()
        seconds, copied, found = channel.ask("tensors", tensors)
        tell(shared_memory_seconds=round(seconds, 3), shared_memory_copy_seconds=round(copied, 3))
        tell(shared_memory_equal=found == expected)
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else asked.folder) as folder:
            path = Path(folder) / "weights.safetensors"
            began = time.perf_counter()
            try:
                save_file({str(index): each for index, each in enumerate(tensors)}, path)
            except Exception as error:  # a small /dev/shm, for instance
                tell(file_failed=reason(error))
                return
            written = time.perf_counter() - began
            seconds, copied, found = channel.ask("file", str(path))
            tell(file_seconds=round(written + seconds, 3), file_read_seconds=round(copied, 3))
            tell(file_equal=found == expected)
    finally:
        channel.taken.put(None)
        child.join(timeout=5)
        if child.is_alive():
            child.kill()


if __name__ == "__main__":
    main()
