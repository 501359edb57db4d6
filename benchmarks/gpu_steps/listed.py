"""The steps of gpu_suite.py, most useful first: what each runs, how long it may take, what it needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "transformers", "pydantic", "pyarrow")
"""Without these nothing of crl runs."""


@dataclass(frozen=True)
class Asked:
    """What a run of the suite is to do."""

    scale: str
    device: str
    model: Path
    """Of 1.5B shape, made or given."""
    work: Path
    """Memory or disk for models; removed afterward."""
    disk: Path
    """Surely a disk; removed afterward."""
    given: bool = False
    """Whether the model was there before."""

    @property
    def full(self) -> bool:
        """Whether sizes are those of a GPU."""
        return self.scale == "full"


@dataclass(frozen=True)
class Step:
    """One measurement: a command in a process of its own."""

    what: str
    limit: float
    """Seconds, in full scale."""
    command: Callable[[Asked], list[str]]
    """After the interpreter."""
    needs: tuple[str, ...] = ()
    """Modules, beside :data:`NEEDED`."""
    missing: Callable[[Asked], str | None] = lambda _asked: None
    """Another reason why it cannot run here."""


def script(name: str, *more: str) -> list[str]:
    """A file of benchmarks/."""
    return [str(ROOT / "benchmarks" / f"{name}.py"), *more]


def part(name: str) -> Callable[[Asked], list[str]]:
    """A module of benchmarks/gpu_steps/."""
    return lambda asked: [
        "-m", f"benchmarks.gpu_steps.{name}", "--scale", asked.scale, "--folder", str(asked.work / name),
        "--model", str(asked.model), "--disk", str(asked.disk),
    ]  # fmt: skip


def games(asked: Asked) -> list[str]:
    """Model and world of rollouts and of the batch of an update."""
    return ["--model", str(asked.model), "--experiment", str(ROOT / "conf/gpu/sokoban.yaml"), "--metrics"]


def rollout(size: tuple[int, int, int], tiny: tuple[int, int, int], *ways: str) -> Callable[[Asked], list[str]]:
    """Groups, members and turns, against some ways."""

    def command(asked: Asked) -> list[str]:
        groups, members, turns = map(str, size if asked.full else tiny)
        sizes = ["--groups", groups, "--members", members, "--turns", turns, "--pairs", "1"]
        return script("rollout", *sizes, "--ways", *ways, *games(asked))

    return command


def update(weights: str) -> Callable[[Asked], list[str]]:
    """Against TRL, with the cosine of gradients."""

    def command(asked: Asked) -> list[str]:
        sizes = ["--pairs", "5", "--threads", "8"] if asked.full else ["--pairs", "1", "--threads", "1", "--turns", "3"]
        # All systems hold the GPU's memory at once: full weights of three would not fit in 80 GB.
        compared = ["--gradients", "same", "--gradient-mib", "512", "--micro-batch", "2"]
        compared += ["--liger"] if weights == "lora" else []
        batch = ["--batch", str(asked.work / "batch.jsonl")]
        return script("update", "--weights", weights, *sizes, *compared, *batch, *games(asked))

    return command


def bank(asked: Asked) -> list[str]:
    """Searches of the bank's own index."""
    return script("bank", "--sizes", "100000" if asked.full else "1000", "--systems", "crl", "--repetitions", "1")


def marked(_asked: Asked) -> list[str]:
    """The tests that need a GPU, by file: the others need not be importable here."""
    files = sorted(file for file in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in file.read_text("utf-8"))
    return ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *map(str, files)]


def no_model(asked: Asked) -> str | None:
    """Why nothing can be done with the model."""
    return None if (asked.model / "config.json").is_file() else "there is no model: the step `model` made none"


def no_gpu_index(asked: Asked) -> str | None:
    """Why searching says nothing of a GPU."""
    if asked.device == "cpu":
        return None
    if any(map(version, ("faiss-gpu", "faiss-gpu-cu12"))):
        return None
    return "this faiss has no GPU support: pip install 'faiss-gpu>=1.15.1' in place of faiss-cpu"


def no_vllm(asked: Asked) -> str | None:
    """Why no server of vLLM can be started."""
    try:
        from crl.config.engines import ServerConfig, interpreter
    except ImportError as error:
        return str(error)
    return no_model(asked) if interpreter(ServerConfig()).is_file() else "vLLM is not installed: make vllm"


STEPS = {
    "model": Step(
        "making the model that the others use", 20,
        lambda asked: script("made_model", "1.5b" if asked.full else "tiny", str(asked.model)),
        missing=lambda asked: "a model was given" if asked.given else None,
    ),
    "round": Step(
        "one round of complementary, seconds per stage", 85, part("round"), ("deepspeed", "duckdb"), no_model
    ),
    "update-lora": Step("an update with LoRA against TRL", 60, update("lora"), ("deepspeed", "peft"), no_model),
    "update-full": Step("an update of full weights against TRL", 60, update("full"), ("deepspeed",), no_model),
    "rollout": Step(
        "64 games of 15 turns against generate and generate_batch", 80,
        rollout((8, 8, 15), (2, 2, 3), "reread", "paged"), missing=no_model,
    ),
    "rollout-trl": Step(
        "16 games of 5 turns against TRL's own loop and generate_batch", 45,
        rollout((2, 8, 5), (2, 2, 3), "trl", "paged"), ("trl", "datasets"), no_model,
    ),
    "attention": Step("the attention of an update by itself", 35, part("attention")),
    "ceilings": Step("what copies and matrix products reach", 12, part("ceilings")),
    "large": Step("7B with LoRA: load, update, save, hash, merge", 88, part("large"), ("deepspeed", "peft")),
    "handover": Step("15 GB of weights to another process", 20, part("handover")),
    "repeat": Step("conf/tiny.yaml twice, all digests", 50, part("repeat"), ("deepspeed", "duckdb")),
    "tests": Step("the tests marked gpu", 35, marked, ("pytest",)),
    # Beyond the ten minutes of a bare machine, which has none of it.
    "index": Step("searches per second", 60, bank, ("faiss", "duckdb"), no_gpu_index),
    "vllm": Step(
        "64 games of 15 turns against vLLM", 180, rollout((8, 8, 15), (2, 2, 3), "vllm"), missing=no_vllm
    ),
    "vllm-tests": Step(
        "log-probabilities, new weights and kills of a vLLM server", 180,
        lambda _asked: ["-m", "pytest", "-q", "-m", "slow", "tests/learning/test_vllm.py"], ("pytest",), no_vllm,
    ),
}  # fmt: skip


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unable(step: Step, asked: Asked, machine: Mapping[str, Any]) -> str | None:
    """Why a step cannot run here; None where it can."""
    if asked.device == "cuda" and machine["device"] is None:
        return "torch sees no GPU on this machine"
    for name in (*NEEDED, *step.needs):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return step.missing(asked)
