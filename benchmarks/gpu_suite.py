"""Everything that is to be measured on a GPU, in ten minutes, most useful first: each step a process with a limit.

    python benchmarks/gpu_suite.py [STEP ...] [--device cuda] [--scale full] [--seconds 590] [--model DIRECTORY]
        [--folder build/gpu] [--patience 1] [--commit NAME]
    python benchmarks/gpu_suite.py --device cpu --scale tiny      # all of it in small, to see that it runs
    python benchmarks/gpu_suite.py --table FILE ...               # Markdown of metrics that are there

It runs from a checkout with whatever is installed; a step whose package is missing says so and is skipped, one that
fails or takes too long says why, and the next one runs. `metrics.json` in the folder is written after each step: what
was found, with device, versions and commit; steps may be run on different days. `table.md` comes last. A machine
without a package index gets what it lacks from benchmarks/gpu_wheels.py.

The model has random weights and the shape of Qwen2.5-1.5B, and is made first; `--model` ($CRL_GPU_MODEL) takes a real
one. Time that a step leaves is the next one's. `--patience 3` gives each three times as long (nine minutes at most) and
`--seconds 0` the whole as long as it takes: that is `make gpu`. In tiny scale two steps run at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script is found beside itself only

from benchmarks.gpu_steps.common import MARK  # noqa: E402
from benchmarks.gpu_steps.listed import STEPS, Asked, Step, unable, version  # noqa: E402
from benchmarks.gpu_steps.outcomes import Outcome, load, read, save, table, why_of  # noqa: E402

MODEL_VARIABLE = "CRL_GPU_MODEL"
LONGEST = 540
"""Seconds of any step, whatever the patience."""
LEAST = 5
"""Seconds below which a step is not begun."""
VERSIONS = ("torch", "transformers", "deepspeed", "trl", "peft", "liger-kernel", "vllm", "faiss-gpu", "faiss-cpu")
_LINES = 25
_ENDED = 128 + signal.SIGTERM
"""Exit code, as a shell has it."""
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_FACTS = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": None}
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found |= {"device": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
print(json.dumps(found))
"""


def environment_of(asked: Asked) -> dict[str, str]:
    """Of every step: this checkout, one GPU or none, models of its own."""
    # Beside several GPUs TRL would not start, and nothing here is for them.
    visible = first_device() if asked.device == "cuda" else ""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Bytecode is kept, whatever the environment says: dozens of processes start.
    own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    own |= {"CUDA_VISIBLE_DEVICES": visible, "CRL_MODELS": str(asked.work / "models")}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**os.environ, **own, **quiet, **({"DS_ACCELERATOR": "cpu"} if asked.device == "cpu" else {})}


def first_device() -> str:
    """What makes the first GPU alone visible."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def machine_of(asked: Asked, commit: str | None) -> dict[str, Any]:
    """Device, versions and commit. In a process of its own: torch would keep memory of the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", _FACTS], env=environment_of(asked), capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"device": None}
    versions = {name: number for name in VERSIONS if (number := version(name))}
    return {
        **found,
        "driver": _printed(*_DRIVER).partition("\n")[0] or None if asked.device == "cuda" else None,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "versions": versions | ({"torch": found["torch"]} if "torch" in found else {}),
        "commit": commit or _printed("git", "describe", "--always", "--dirty") or "unknown",
        "scale": asked.scale,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _printed(*command: str) -> str:
    """What a command says; nothing where it fails or is not there."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class Running:
    """The processes of steps: ended with the suite."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[Any]] = set()
        self.stopped = threading.Event()

    @contextlib.contextmanager
    def watched(self, process: subprocess.Popen[Any]) -> Iterator[None]:
        """Ended on leaving, with all that it started, which would hold memory of the GPU; at once where all are."""
        self._processes.add(process)
        if self.stopped.is_set():
            end(process)
        try:
            yield
        finally:
            end(process)
            self._processes.discard(process)

    def stop(self) -> None:
        """End all, and each that is started from here on."""
        self.stopped.set()
        for process in list(self._processes):
            end(process)


def run(name: str, step: Step, asked: Asked, limit: float, running: Running) -> Outcome:
    """Run a step; whatever becomes of it is an outcome."""
    (asked.work / name).mkdir(exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *step.command(asked)], cwd=ROOT, env=environment_of(asked), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        with running.watched(process):
            try:
                code: int | None = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
        seconds = round(time.monotonic() - began, 1)
        output.seek(0)
        lines = [line.rstrip() for line in output.read().splitlines() if line.strip()]
    shutil.rmtree(asked.work / name, ignore_errors=True)
    metrics = read(lines)
    said = [line for line in lines if not line.startswith(MARK)][-_LINES:]
    if code is None:
        return Outcome(step.what, "cut off", seconds, f"it took longer than {limit:.0f} s", metrics, said)
    if code < 0:
        why = f"it was ended by {signal.Signals(-code).name}"
        return Outcome(step.what, "failed", seconds, why, metrics, said)
    if code:
        return Outcome(step.what, "failed", seconds, why_of(metrics, said, code), metrics, said)
    if name == "tests":
        metrics["result"] = said[-1] if said else ""
    return Outcome(step.what, "done", seconds, metrics=metrics)


class Clock:
    """How long a step may take: what it is allotted, and what the steps before it left."""

    def __init__(self, seconds: float, patience: float) -> None:
        """`seconds` of all steps; 0: no limit, and each its own."""
        self.lock = threading.Lock()
        self._began, self._allotted = time.monotonic(), 0.0
        self._seconds, self._patience = seconds, patience

    def limit(self, step: Step, asked: Asked) -> float:
        """Seconds for a step that begins now."""
        if not asked.full:
            return LONGEST
        own = min(step.limit * self._patience, LONGEST)
        if not self._seconds:
            return own
        with self.lock:
            self._allotted = min(self._allotted + own, self._seconds)
            return min(self._allotted - (time.monotonic() - self._began), LONGEST)


def outcome_of(name: str, asked: Asked, machine: Mapping[str, Any], clock: Clock, running: Running) -> Outcome:
    """Run a step, or say why not."""
    step, limit = STEPS[name], clock.limit(STEPS[name], asked)
    reason = unable(step, asked, machine)
    if reason is None and limit < LEAST:
        reason = "the time of all steps is used up (--seconds)"
    outcome = run(name, step, asked, limit, running) if reason is None else Outcome(step.what, "skipped", why=reason)
    outcome.machine = {**machine, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return outcome


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all that came from it, also what began a session of its own."""
    families = [process.pid]
    try:
        import psutil

        families += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    except Exception:  # it has ended, or there is no psutil: its own session is what can be reached
        pass
    for pid in families:
        try:
            if os.getpgid(pid) != os.getpgrp():
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # a leader that has ended leaves its group
    process.wait()


def workplace(full: bool) -> Path:
    """Where models are made: in memory where there is room for one of 7B and what is read from it."""
    memory = Path("/dev/shm")
    roomy = full and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 40 * 10**9
    return Path(tempfile.mkdtemp(prefix="crl-gpu-", dir=memory if roomy else None))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module docstring; 1 where a step failed or was cut off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--scale", choices=["full", "tiny"], default="full")
    parser.add_argument("--seconds", type=float, default=590, metavar="N", help="for all steps; 0: no limit")
    parser.add_argument("--patience", type=float, default=1, metavar="N", help="times the limit of each step")
    parser.add_argument("--model", type=Path, default=os.environ.get(MODEL_VARIABLE), metavar="DIRECTORY")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu", help="metrics.json and table.md")
    parser.add_argument("--commit", help="where this is no git checkout")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="only print the tables of metrics")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print("\n".join(table(load(path)) for path in chosen.table), end="")
        return 0
    if unknown := [name for name in chosen.steps if name not in STEPS]:
        parser.error(f"no step {', '.join(unknown)}: there are {', '.join(STEPS)}")
    given = Path(chosen.model).expanduser().resolve() if chosen.model else None
    if given is not None and not (given / "config.json").is_file():
        parser.error(f"--model: {given} has no config.json; name the directory of a model")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    metrics = chosen.folder.resolve() / "metrics.json"
    steps = load(metrics) if metrics.is_file() else {}
    running, told = Running(), threading.Event()

    def ended(*_: Any) -> NoReturn:
        told.set()
        running.stop()  # here: where Python happens to be, the exception may be lost
        sys.exit(_ENDED)

    signal.signal(signal.SIGTERM, ended)
    work, disk = workplace(chosen.scale == "full"), Path(tempfile.mkdtemp(prefix="scratch-", dir=chosen.folder))
    try:
        asked = Asked(chosen.scale, chosen.device, given or work / "1.5b", work, disk.resolve(), given is not None)
        machine = machine_of(asked, chosen.commit)
        names = chosen.steps or list(STEPS)
        if given is None and "model" not in names:
            names = ["model", *names]  # where nothing needs it that costs seconds
        clock = Clock(chosen.seconds if asked.full else 0, chosen.patience)

        def one(name: str) -> Outcome:
            outcome = outcome_of(name, asked, machine, clock, running)
            if running.stopped.is_set():  # with the suite: that says nothing of the step
                return outcome
            with clock.lock:
                steps[name] = outcome
                save(metrics, steps)
                seconds = f" in {outcome.seconds:g} s" if outcome.seconds else ""
                print(f"{name}: {outcome.state}{seconds}{': ' if outcome.why else ''}{outcome.why}", flush=True)
            return outcome

        outcomes = [one(name) for name in names if name == "model"]
        # Times mean nothing in small: what is seen there is that all of it runs.
        with ThreadPoolExecutor(1 if asked.full else 2) as pool:
            try:
                outcomes += pool.map(one, [name for name in names if name != "model"])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                running.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    if told.is_set():
        return _ENDED
    text = table(steps)
    (chosen.folder / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{metrics} has the metrics, {chosen.folder / 'table.md'} this table")
    return int(any(outcome.state in ("failed", "cut off") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
