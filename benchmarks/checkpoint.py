"""What a checkpoint costs on its way into the record, beside writing as many bytes: seconds of the clock and of CPU.

    python benchmarks/checkpoint.py [--gigabytes 1] [--pairs 3] [--against WORKTREE] [--folder DIRECTORY]

A stage writes full weights (a third of the bytes) and the state of AdamW, as an update does, takes the digest of the
weights and commits. `plain` writes as many bytes into files and syncs them, and hashes nothing. `--against` adds the
code of another commit, from a worktree of it. Each has a process of its own, one after another in turn: other load hits
all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LAYERS = 12


def plain(folder: Path, size: int) -> dict[str, float]:
    """Write and sync files of so many bytes."""
    import torch

    parts = {"weights": torch.randn(size // 12), "state": torch.randn(size // 6)}
    started = clock()
    for name, tensor in parts.items():
        with (folder / name).open("wb") as file:
            file.write(tensor.numpy())
            file.flush()
            os.fsync(file.fileno())
    return {**since(started), "written": time.perf_counter() - started[0]}


def recorded(folder: Path, size: int) -> dict[str, float]:
    """Write a checkpoint and commit it."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from crl.config.load import load_experiment
    from crl.learn.checkpoint import save_optimizer, save_weights
    from crl.rounds.weights import identify
    from crl.run.directory import RunDirectory
    from crl.run.lease import Lease

    torch.manual_seed(0)
    # About so many numbers: each layer has 4 matrices of hidden × hidden and 3 of hidden × 4 hidden.
    hidden = int((size / 12 / _LAYERS / 16) ** 0.5) // 64 * 64
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(
            vocab_size=256, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=_LAYERS,
            num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=False,
        ),
        dtype=torch.float32,
    )  # fmt: skip
    parts = list(model.parameters())
    optimizer = torch.optim.AdamW(parts, lr=0.0)
    for each in parts:
        optimizer.state[each] = {
            "step": torch.tensor(1.0), "exp_avg": torch.randn(each.shape), "exp_avg_sq": torch.randn(each.shape)
        }  # fmt: skip
    run = RunDirectory.create_or_open(load_experiment(ROOT / "conf/tiny.yaml", {}), folder)
    with Lease.acquire(run.path, seconds=600) as lease:
        model.save_pretrained(folder / "warm", state_dict={})
        started = clock()
        with run.begin(1, "update_actor", token=lease.token) as writer:
            state = {name: each.detach() for name, each in model.named_parameters()}
            save_weights(model, state, writer.directory / "checkpoint")
            save_optimizer(optimizer, parts, writer.directory / "checkpoint", 0)
            written = time.perf_counter() - started[0]
            identify("0" * 64, writer.directory / "checkpoint")
            manifest = writer.commit(inputs={}, method_digest=run.method_digest, seed=0, provenance={})
        found = since(started)
    size = sum(each.bytes for each in manifest.digested.files.values())
    digests = {name: each.sha256 for name, each in manifest.digested.files.items()}
    return {**found, "written": written, "gigabytes": size / 1e9, "digests": digests}  # type: ignore[dict-item]


def clock() -> tuple[float, float]:
    """Seconds of the clock and of CPU."""
    return time.perf_counter(), time.process_time()


def since(started: tuple[float, float]) -> dict[str, float]:
    """What has passed."""
    return {name: now - then for name, now, then in zip(("seconds", "computed"), clock(), started, strict=True)}


def measured(name: str, tree: Path, folder: Path, size: int) -> dict[str, Any]:
    """One of them, in a process of its own, with the code of a work tree."""
    paths = [str(tree), str(tree / "benchmarks")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, __file__, "--worker", name, "--folder", place, "--gigabytes", str(size / 1e9)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure in turn, or be one of the measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--against", type=Path, help="a worktree of another commit")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk of the runs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    if options.worker:
        print(json.dumps((plain if options.worker == "plain" else recorded)(options.folder, size)))
        return
    trees = {"plain": ROOT, "this": ROOT} | ({"before": options.against.resolve()} if options.against else {})
    turns = [
        {name: measured(name, tree, options.folder, size) for name, tree in trees.items()} for _ in range(options.pairs)
    ]
    print("| | seconds (least–most) | until all is written | CPU s | seconds, by plain |\n|---|---|---|---|---|")
    for name in trees:
        columns = [[turn[name][key] for turn in turns] for key in ("seconds", "written", "computed")]
        columns.append([turn[name]["seconds"] / turn["plain"]["seconds"] for turn in turns])
        told = [f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in columns]
        print(f"| {name} | {' | '.join(told)} |")
    print(f"\n{turns[0]['this']['gigabytes']:.2f} GB")
    if options.against:
        print("equal digests:", all(turn["this"]["digests"] == turn["before"]["digests"] for turn in turns))


if __name__ == "__main__":
    main()
