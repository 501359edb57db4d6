"""What it costs to hand the weights of a model to another process: seconds, bytes, memory beside the source.

    python benchmarks/handover.py [--shape 1.5b] [--folder /dev/shm]

A base of random bfloat16 weights (shapes of `made_model.py`) with a LoRA adapter on all linear layers is merged and
written piece by piece (`crl/policies/handover.py`), as for a server. Another process copies the numbers of each piece
to where a model would have them; that model is not counted. Memory is what both processes hold beside mapped files, and
the files of the folder, above what there was before; it is looked at a hundred times per second. `formula_7b` is what
the same way takes at 7 billion parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made_model import SHAPES, Shape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
_RANK = 16


def receive(largest: int, channel: Any) -> None:
    """The other process: copy the numbers of each tensor to where a model would have them."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    own = torch.zeros(largest, dtype=torch.bfloat16)
    found = {}
    channel.send(None)
    while (path := channel.recv()) is not None:
        copied = 0
        for name, each in load_file(path).items():
            own[: each.numel()].copy_(each.flatten())
            found[name] = checksum(own[: each.numel()])
            copied += each.nbytes
        channel.send(copied)
    channel.send(found)


def read(folder: Path) -> dict[str, Any]:
    """The tensors of a model, mapped."""
    from safetensors.torch import load_file

    return {name: each for file in sorted(folder.glob("*.safetensors")) for name, each in load_file(file).items()}


def checksum(tensor: Any) -> float:
    """Some of its numbers."""
    return float(tensor.flatten()[:: max(1, tensor.numel() // 1000)].double().sum())


def write_base(folder: Path, shape: Shape) -> None:
    """A model's config, and weights that are the same million random numbers again and again."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from crl.run.tensors import layout_of, write_tensors

    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_value_heads,
        tie_word_embeddings=shape.tied, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    block = (0.02 * torch.randn(1 << 20)).bfloat16()
    layouts = {name: layout_of(each) for name, each in model.named_parameters()}

    def made(name: str) -> torch.Tensor:
        size = math.prod(layouts[name][1])
        return block.repeat(size // len(block) + 1)[:size].view(*layouts[name][1])

    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", layouts, made, metadata={"format": "pt"}, hashed=False)
    config.save_pretrained(folder)


def write_adapter(base: Path, folder: Path) -> None:
    """An adapter of random numbers on all linear layers."""
    import torch
    from safetensors.torch import save_file

    tensors = {}
    for name, each in read(base).items():
        if each.dim() == 2 and "layers" in name:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = 0.01 * torch.randn(_RANK, each.shape[1])
            tensors[f"{module}.lora_B.weight"] = 0.01 * torch.randn(each.shape[0], _RANK)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "bias": "none", "r": _RANK, "lora_alpha": 2 * _RANK, "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def merged(base: Path, adapter: Path) -> Iterator[tuple[str, float]]:
    """Checksums of the head, and of the matrices of one layer by arithmetic of their own: W + 2 B A."""
    tensors, added = read(base), read(adapter)
    yield "lm_head.weight", checksum(tensors["model.embed_tokens.weight"])
    for name, each in tensors.items():
        if "layers.1." in name and each.dim() == 2:
            a, b = (added[f"base_model.model.{name.removesuffix('.weight')}.lora_{half}.weight"] for half in "AB")
            yield name, checksum((each.float() + 2 * (b @ a)).bfloat16())


class Watched:
    """The most that processes hold in memory of their own, with the files of a folder, above what they began with."""

    def __init__(self, processes: list[int], folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self._begun, self.peak = 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._begun = self._now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, self._now() - self._begun)

    def _now(self) -> int:
        total = 0
        for process in self._processes:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += file.stat().st_blocks * 512
        return total


def by_formula(shape: Shape) -> dict[str, float]:
    """Of a model of this shape in bfloat16: bytes of the weights with a head of its own, and the most beside them.

    That is the larger of the largest tensor, which nothing is added to, and a full piece with the float32 sum of its
    largest matrix.
    """
    from crl.policies.handover import PIECE

    width = shape.hidden // shape.heads * shape.key_value_heads
    layer = shape.hidden * (2 * shape.hidden + 2 * width + 3 * shape.intermediate)
    embeddings = shape.vocabulary * shape.hidden
    beside = max(2 * embeddings, PIECE + 6 * shape.hidden * shape.intermediate)
    return {"gigabytes": 2 * (2 * embeddings + shape.layers * layer) / 1e9, "beside_gigabytes": beside / 1e9}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*SHAPES], default="1.5b")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    import torch

    from crl.policies.handover import pieces

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=options.folder) as given:
        model, adapter = Path(scratch, "model"), Path(scratch, "adapter")
        write_base(model, SHAPES[options.shape])
        write_adapter(model, adapter)
        largest = max(each.numel() for each in read(model).values())
        channel, other = multiprocessing.get_context("spawn").Pipe()
        child = multiprocessing.get_context("spawn").Process(target=receive, args=(largest, other), daemon=True)
        child.start()
        channel.recv()
        written, copied, longest, count = 0, 0, 0, 0
        assert child.pid is not None
        with Watched([os.getpid(), child.pid], Path(given)) as watched:
            started, computed = time.perf_counter(), time.process_time()
            with contextlib.closing(pieces(model, adapter, Path(given), dtype=torch.bfloat16)) as files:
                for path in files:
                    channel.send(str(path))
                    copied += channel.recv()
                    size = path.stat().st_size
                    written, longest, count = written + size, max(longest, size), count + 1
            seconds, computed = time.perf_counter() - started, time.process_time() - computed
        channel.send(None)
        found = channel.recv()
        child.join()
        equal = all(found[name] == value for name, value in merged(model, adapter))
    told = {
        "shape": options.shape,
        "seconds": round(seconds, 2),
        "cpu_seconds_of_the_writer": round(computed, 2),
        "gigabytes": round(copied / 1e9, 3),
        "written_gigabytes": round(written / 1e9, 3),
        "copied_gigabytes": round(copied / 1e9, 3),
        "pieces": count,
        "largest_gigabytes": round(longest / 1e9, 3),
        "beside_gigabytes": round(watched.peak / 1e9, 3),
        "equal": equal,
        "formula": by_formula(SHAPES[options.shape]),
        "formula_7b": by_formula(SHAPES["7b"]),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
