"""Everything that a GPU is needed for, in pieces of at most nine minutes: `make gpu`, or one piece after the other.

    python -m benchmarks.gpu [PIECE ...] [--model DIRECTORY] [--folder build/gpu]

Pieces: tests, rollout, update, vllm, vllm-tests, index, round. Each is a command in a process of its own, ended after
nine minutes; `round` plays and trains one round of the model in DIRECTORY (1.5 to 7 billion parameters; also
$CRL_GPU_MODEL). What a piece found is a file in the folder, so pieces may be run on different days; `table.md` beside
them has all of them with the name of the device. A piece that cannot run says why. The exit code is 0 unless one
failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crl.config.servers import ServerConfig, interpreter

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 9 * 60
MODEL_VARIABLE = "CRL_GPU_MODEL"
_LINES = 40


@dataclass(frozen=True)
class Piece:
    """A command that needs a GPU."""

    command: tuple[str, ...]
    """After the interpreter."""
    what: str
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run on a machine that has a GPU; None where it can."""


@dataclass(frozen=True)
class Outcome:
    """What came of a piece."""

    piece: str
    what: str
    device: str
    state: str
    """done, skipped, failed, cut off."""
    seconds: float
    said: tuple[str, ...]
    """The last lines it printed, or the reason."""


def pieces(model: str | None) -> dict[str, Piece]:
    """By name, in the order of `make gpu`."""
    real = Path(model).expanduser() if model else None
    return {
        "tests": Piece(("-m", "pytest", "-q", "-m", "gpu"), "the tests marked gpu"),
        "rollout": Piece((*_script("rollout"), "--pairs", "3"), "turns per second"),
        "update": Piece(_script("update"), "trained tokens per second"),
        "vllm": Piece(
            (*_script("rollout"), "--pairs", "3", "--ways", "vllm"),
            "turns per second beside vLLM",
            _no_vllm,
        ),
        "vllm-tests": Piece(
            ("-m", "pytest", "-q", "-m", "slow", "tests/learning/test_vllm.py"),
            "log-probabilities, new weights and kills of a vLLM server",
            _no_vllm,
        ),
        "index": Piece(
            (*_script("bank"), "--sizes", "100000", "--systems", "crl", "--repetitions", "1"),
            "searches per second",
            lambda: None if importlib.util.find_spec("faiss") is not None and _faiss_gpus() else _NO_FAISS,
        ),
        "round": Piece(
            (*_script("estimate"), "--model", str(real), "--threads", "8"),
            "one round of a model of real size, beside its estimate",
            lambda: None if real is not None and (real / "config.json").is_file() else _NO_MODEL,
        ),
    }


_NO_FAISS = "faiss sees no GPU: pip install '.[gpu]', then as pyproject.toml says"
_NO_MODEL = f"no model: name the directory of one with --model or {MODEL_VARIABLE}"


def device_name() -> str | None:
    """Name of the first GPU; None where torch sees none."""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None


def first_device() -> str:
    """What makes the first GPU alone visible."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def run(name: str, piece: Piece, device: str | None, limit_seconds: float = LIMIT_SECONDS) -> Outcome:
    """Run a piece, or say why not."""
    reason = "torch sees no GPU on this machine" if device is None else piece.missing()
    if reason is not None:
        return Outcome(name, piece.what, device or "no GPU", "skipped", 0.0, (reason,))
    began = time.monotonic()
    # One GPU, the one that is named: beside several TRL would not start, and nothing here is for them.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": first_device()}
    process = subprocess.Popen(
        [sys.executable, *piece.command], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_seconds)
        state = "failed" if process.returncode else "done"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # what it started, too: it would hold the output open
        said, _ = process.communicate()
        state = "cut off"
    lines = tuple(line for line in said.splitlines() if line.strip())[-_LINES:]
    return Outcome(name, piece.what, str(device), state, round(time.monotonic() - began, 1), lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row a piece, then what each printed."""
    rows = [
        f"| {each.piece} | {each.what} | {each.device} | {each.state} | {each.seconds:g} |"
        + (f" {each.said[0]} |" if each.state == "skipped" else "  |")
        for each in outcomes
    ]
    head = "| piece | what | device | state | seconds | reason |\n|---|---|---|---|---:|---|"
    printed = [
        "\n".join([f"## {each.piece}", "", "```", *each.said, "```"]) for each in outcomes if each.state != "skipped"
    ]
    return "\n\n".join(["\n".join([head, *rows]), *printed]) + "\n"


def _script(name: str) -> tuple[str, ...]:
    return (str(ROOT / "benchmarks" / f"{name}.py"),)


def _no_vllm() -> str | None:
    return None if interpreter(ServerConfig()).is_file() else "vLLM is not installed: make vllm"


def _faiss_gpus() -> int:
    import faiss

    return int(getattr(faiss, "get_num_gpus", lambda: 0)())


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", metavar="PIECE")
    parser.add_argument("--model", default=os.environ.get(MODEL_VARIABLE))
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu")
    chosen = parser.parse_args(arguments)
    known, device = pieces(chosen.model), device_name()
    if unknown := sorted(set(chosen.pieces) - known.keys()):
        parser.error(f"no piece {', '.join(unknown)}: there are {', '.join(known)}")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.pieces or known:
        outcome = run(name, known[name], device)
        (chosen.folder / f"{name}.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n", encoding="utf-8")
        why = f": {outcome.said[0]}" if outcome.state == "skipped" else f" in {outcome.seconds:g} s"
        print(f"gpu-{name}: {outcome.state.upper()}{why}", flush=True)
    files = [chosen.folder / f"{name}.json" for name in known]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    outcomes = [Outcome(**{**each, "said": tuple(each["said"])}) for each in found]
    (chosen.folder / "table.md").write_text(table(outcomes), encoding="utf-8")
    print(f"the table: {chosen.folder / 'table.md'}")
    return int(any(each.state in ("failed", "cut off") for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
