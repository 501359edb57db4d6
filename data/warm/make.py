"""Make a warm start that comes with the project: python data/warm/make.py quickstart

It runs round 0 of `data/warm/NAME/experiment.yaml` (for the quickstart half an hour on a core) and writes the
adapter of each role to `data/warm/NAME/ROLE/`, rounded to bfloat16: what ships is what runs begin with
(`warm_start: {adapters: warm:NAME}`). `made.json` says what made it, and its digests; on the same kind of CPU, with
the same versions, the files come out equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

from crl.config.load import load_experiment
from crl.config.models import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from crl.learn.checkpoint import take_adapter
from crl.policies.machine import processor
from crl.run.files import sha256_file

HERE = Path(__file__).parent
MADE = "made.json"
PACKAGES = ("torch", "transformers", "peft", "trl")


def make(name: str, runs: Path, to: Path) -> dict[str, str]:
    """Run the preparation below `runs`, and write the adapters below `to`; the SHA-256 of each file by its path."""
    experiment = load_experiment(HERE / name / "experiment.yaml")
    words = [sys.executable, "-m", "crl", "train", str(HERE / name / "experiment.yaml"), "--rounds", "0"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run([*words, "--no-prefect", "--runs", str(runs)], check=True, env=environment)
    digests = {}
    for role in sorted(experiment.method.roles):
        checkpoint, folder = runs / experiment.name / f"rounds/0000/warm_start_{role}/checkpoint", to / role
        take_adapter(checkpoint, folder, torch.bfloat16)
        digests |= {f"{role}/{file}": sha256_file(folder / file) for file in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)}
    return digests


def made_by() -> dict[str, str]:
    """What may change a digest: the processor, and the packages that compute."""
    return {"processor": processor(), **{package: version(package) for package in PACKAGES}}


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description="Make a warm start that comes with the project.")
    parser.add_argument("name", choices=sorted(path.parent.name for path in HERE.glob("*/experiment.yaml")))
    parser.add_argument("--runs", type=Path, help="folder of the run, to go on with it (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        digests = make(options.name, options.runs or Path(temporary), HERE / options.name)
    content = {"made_by": made_by(), "sha256": digests}
    (HERE / options.name / MADE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
