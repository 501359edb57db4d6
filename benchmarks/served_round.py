"""Rounds of conf/tiny.yaml on vLLM, here and at another commit, in turns: servers that were started, seconds by stage.

    python benchmarks/served_round.py COMMIT [--pairs 5] [--rounds 3] [--set KEY=VALUE …]

A turn is a new run of so many rounds; its first is counted, too: that is when servers start. The model is `tiny` with
heads of 32, which vLLM's kernels for the CPU know. Needs vLLM's environment (`make vllm`, or CRL_VLLM_PYTHON).
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from round import ROOT, Way, provenances, told, worktree

from crl.config.engines import INTERPRETER, ServerConfig, interpreter


def write_model(directory: Path) -> None:
    """The tiny model with heads of 32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from crl.config.models import pretrained
    from crl.policies.tiny import write_tiny

    write_tiny(directory)
    config = pretrained(LlamaConfig, directory)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
    torch.manual_seed(0)
    LlamaForCausalLM(config).float().save_pretrained(directory)


def counted_starts(own: Path, folder: Path, log: Path) -> Path:
    """An interpreter that starts vLLM's `own` and leaves a line for each server."""
    path = folder / "python"
    told = f'[ "$1" = -m ] && echo start >> {shlex.quote(str(log))}'
    path.write_text(f'#!/bin/sh\n{told}\nexec {shlex.quote(str(own))} "$@"\n')
    path.chmod(0o755)
    return path


def seconds(way: Way, runs: Path, rounds: int, options: list[str]) -> Mapping[str, float]:
    """One run: the seconds of each stage of all rounds, and of all."""
    way.train("conf/tiny.yaml", rounds, options, runs)
    path = next(path.parent for path in runs.glob("*/experiment.yaml"))
    found: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, stage in provenances(path, number).items():
            found[name] = found.get(name, 0.0) + float(stage["seconds"])
    return found | {"all stages": sum(found.values())}


def main() -> None:
    """Run in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("against", metavar="COMMIT")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `crl train`")
    asked = parser.parse_args()
    loads, own = [], interpreter(ServerConfig())
    with tempfile.TemporaryDirectory() as name, worktree(asked.against, Path(name)) as source:
        folder = Path(name)
        write_model(folder / "model")
        ways = [Way("here", source=ROOT), Way(f"at {asked.against}", source=source or ROOT)]
        turns: list[list[Mapping[str, float]]] = [[], []]
        for turn in range(asked.pairs):
            for number in (0, 1) if turn % 2 == 0 else (1, 0):
                loads.append(os.getloadavg()[0])
                log = folder / f"log-{turn}-{number}"
                os.environ[INTERPRETER] = str(counted_starts(own, folder, log))
                words = [f"method.roles.{role}.{key}" for role in ("actor", "extractor")
                         for key in (f"model={folder / 'model'}", "engine=vllm")]  # fmt: skip
                options = [word for pair in (*words, *asked.set) for word in ("--set", pair)]
                found = seconds(ways[number], folder / f"runs-{turn}-{number}", asked.rounds, options)
                turns[number].append({"servers started": len(log.read_text().split()), **found})
    print(f"{asked.pairs} runs of {asked.rounds} rounds each; {os.cpu_count()} cores; load before a run {told(loads)}")
    print(f"| | {ways[0].name} | {ways[1].name} |\n|---|---|---|")
    for row in turns[0][0]:
        cells = (told(turn.get(row, 0.0) for turn in mine) for mine in turns)
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
