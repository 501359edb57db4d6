"""Everything that is to be measured on a GPU, in ten minutes, most useful first: each step a process with a limit.

    python benchmarks/gpu_suite.py [STEP ...] [--device cuda] [--scale full] [--seconds 590] [--model DIRECTORY]
        [--folder build/gpu] [--patience 1] [--commit NAME]
    python benchmarks/gpu_suite.py --device cpu --scale tiny      # all of it in small, to see that it runs
    python benchmarks/gpu_suite.py --table FILE ...               # Markdown of figures that are there

It runs from a checkout with whatever is installed; a step whose package is missing says so and is skipped, one that
fails or takes too long says why, and the next one runs. `figures.json` in the folder is written after each step: what
was found, with device, versions and commit; steps may be run on different days. `table.md` comes last. A machine
without a package index gets what it lacks from benchmarks/gpu_wheels.py.

The model has random weights and the shape of Qwen2.5-1.5B, and is made first; `--model` ($CRL_GPU_MODEL) takes a real
one. Time that a step leaves is the next one's. `--patience 3` gives each three times as long (nine minutes at most) and
`--seconds 0` the whole as long as it takes: that is `make gpu`. In tiny scale two steps run at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL_VARIABLE = "CRL_GPU_MODEL"
LONGEST = 540
"""Seconds of any step, whatever the patience."""
LEAST = 5
"""Seconds below which a step is not begun."""
MARK = "FIGURES "
NEEDED = ("torch", "transformers", "pydantic", "pyarrow")
"""Without these nothing of crl runs."""
VERSIONS = ("torch", "transformers", "deepspeed", "trl", "peft", "liger-kernel", "vllm", "faiss-gpu", "faiss-cpu")
RUNNING: set[subprocess.Popen[Any]] = set()
"""Processes of steps: ended with the suite."""
_LINES = 25
_FACTS = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": None}
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found |= {"device": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Asked:
    """What a run of the suite is to do."""

    scale: str
    device: str
    model: Path
    """Of 1.5B shape, made or given."""
    work: Path
    """Memory or disk for models; removed afterward."""
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


@dataclass
class Outcome:
    """What came of a step."""

    what: str
    state: str
    """done, skipped, failed, cut off."""
    seconds: float = 0.0
    why: str = ""
    """Of one that is not done."""
    figures: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """Its last lines, where it did not end well."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Device, versions, commit, scale, time."""


def script(name: str, *more: str) -> list[str]:
    """A file of benchmarks/."""
    return [str(ROOT / "benchmarks" / f"{name}.py"), *more]


def part(name: str) -> Callable[[Asked], list[str]]:
    """A module of benchmarks/gpu_steps/."""
    return lambda asked: [
        "-m", f"benchmarks.gpu_steps.{name}", "--scale", asked.scale, "--folder", str(asked.work / name),
        "--model", str(asked.work / "7b" if name == "large" else asked.model),
    ]  # fmt: skip


def games(asked: Asked) -> list[str]:
    """Model and world of rollouts and of the batch of an update."""
    return ["--model", str(asked.model), "--experiment", str(ROOT / "conf/gpu/sokoban.yaml"), "--figures"]


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
        compared = ["--gradients", "same", "--gradient-mib", "512", "--micro-batch", "4", "--liger"]
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
    if any(map(_version, ("faiss-gpu", "faiss-gpu-cu12"))):
        return None
    return "this faiss has no GPU support: pip install 'faiss-gpu>=1.15.1' in place of faiss-cpu"


def no_vllm(asked: Asked) -> str | None:
    """Why no server of vLLM can be started."""
    try:
        from crl.config.servers import ServerConfig, interpreter
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
        "64 games of 15 turns against generate and generate_batch", 90,
        rollout((8, 8, 15), (2, 2, 3), "reread", "paged"), missing=no_model,
    ),
    "rollout-trl": Step(
        "16 games of 5 turns against TRL's own loop", 35,
        rollout((2, 8, 5), (2, 2, 3), "trl"), ("trl", "datasets"), no_model,
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


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


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
    with_git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    versions = {name: version for name in VERSIONS if (version := _version(name))}
    return {
        **found,
        "driver": _driver() if asked.device == "cuda" else None,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "versions": versions | ({"torch": found["torch"]} if "torch" in found else {}),
        "commit": commit or with_git.stdout.strip() or "unknown",
        "scale": asked.scale,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _driver() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def unable(step: Step, asked: Asked, machine: Mapping[str, Any]) -> str | None:
    """Why a step cannot run here; None where it can."""
    if asked.device == "cuda" and machine["device"] is None:
        return "torch sees no GPU on this machine"
    for name in (*NEEDED, *step.needs):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return step.missing(asked)


def run(name: str, step: Step, asked: Asked, limit: float) -> Outcome:
    """Run a step; whatever becomes of it is an outcome."""
    (asked.work / name).mkdir(exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *step.command(asked)], cwd=ROOT, env=environment_of(asked), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        RUNNING.add(process)
        try:
            code: int | None = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)  # what it started, too, which would hold memory of the GPU
            RUNNING.discard(process)
        seconds = round(time.monotonic() - began, 1)
        output.seek(0)
        lines = [line.rstrip() for line in output.read().splitlines() if line.strip()]
    shutil.rmtree(asked.work / name, ignore_errors=True)
    figures = read(lines)
    said = [line for line in lines if not line.startswith(MARK)][-_LINES:]
    if code is None:
        return Outcome(step.what, "cut off", seconds, f"it took longer than {limit:.0f} s", figures, said)
    if code < 0:
        why = f"it was ended by {signal.Signals(-code).name}"
        return Outcome(step.what, "failed", seconds, why, figures, said)
    if code:
        return Outcome(step.what, "failed", seconds, why_of(said, code), figures, said)
    if name == "tests":
        figures["result"] = said[-1] if said else ""
    return Outcome(step.what, "done", seconds, figures=figures)


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


def outcome_of(name: str, asked: Asked, machine: Mapping[str, Any], clock: Clock) -> Outcome:
    """Run a step, or say why not."""
    step, limit = STEPS[name], clock.limit(STEPS[name], asked)
    reason = unable(step, asked, machine)
    if reason is None and limit < LEAST:
        reason = "the time of all steps is used up (--seconds)"
    outcome = run(name, step, asked, limit) if reason is None else Outcome(step.what, "skipped", why=reason)
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


def why_of(said: Sequence[str], code: int) -> str:
    """The line that names an error, else the last one."""
    named = [line.strip() for line in said if re.match(r"\s*[\w.]*(Error|Exception|Failed|Input|Damaged)\b", line)]
    return ([*said[-1:], *named] or [f"exit code {code}"])[-1][:300]


def read(lines: Sequence[str]) -> dict[str, Any]:
    """All figures of an output; those of one name are joined."""
    found: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(MARK):
            continue
        try:
            told = json.loads(line.removeprefix(MARK))
        except ValueError:
            continue  # cut off in the middle
        for key, value in told.items():
            joined = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = {**found[key], **value} if joined else value
    return found


def table(steps: Mapping[str, Outcome]) -> str:
    """Markdown: what was measured on each machine, a row per figure; then what was not, and why."""
    blocks = []
    machines: dict[str, list[str]] = {}
    for name, outcome in steps.items():
        about = {key: outcome.machine.get(key) for key in ("device", "driver", "commit", "scale", "versions")}
        machines.setdefault(json.dumps(about, sort_keys=True), []).append(name)
    for about, names in machines.items():
        facts = json.loads(about)
        versions = ", ".join(f"{name} {version}" for name, version in (facts["versions"] or {}).items())
        driver = f", driver {facts['driver']}" if facts["driver"] else ""
        head = f"{facts['device'] or 'CPU'}{driver}; {versions}; commit {facts['commit']}"
        head += "" if facts["scale"] == "full" else f"; scale {facts['scale']}, which says nothing of speed"
        rows = [f"| {name} | {key} | {value} |" for name in names for key, value in flat(steps[name].figures)]
        if rows:
            blocks.append("\n".join([head + ":", "", "| step | what | figure |", "|---|---|---|", *rows]))
        ended = [
            f"| {name} | {each.what} | {each.state} | {each.seconds:g} | {each.why.replace('|', '/')} |"
            for name, each in ((name, steps[name]) for name in names)
        ]
        blocks.append("\n".join(["| step | | state | seconds | why |", "|---|---|---|---|---|", *ended]))
    return "\n\n".join(blocks) + "\n"


def flat(figures: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values in words, nested ones by their path."""
    rows: list[tuple[str, str]] = []
    for key, value in figures.items():
        name = f"{before}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += flat(value, f"{name}: ")
        elif isinstance(value, list):
            rows.append((name, " ".join(f"{each:.3g}" if isinstance(each, float) else str(each) for each in value)))
        elif isinstance(value, bool):
            rows.append((name, "yes" if value else "no"))
        elif isinstance(value, float):
            rows.append((name, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"))
        else:
            rows.append((name, f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")))
    return rows


def load(path: Path) -> dict[str, Outcome]:
    """The steps of a file of figures."""
    return {name: Outcome(**each) for name, each in json.loads(path.read_text(encoding="utf-8")).items()}


def save(path: Path, steps: Mapping[str, Outcome]) -> None:
    """Write all steps in their order, at once."""
    ordered = {name: asdict(steps[name]) for name in [*STEPS, *steps] if name in steps}
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


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
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu", help="figures.json and table.md")
    parser.add_argument("--commit", help="where this is no git checkout")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="only print the tables of figures")
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
    figures = chosen.folder.resolve() / "figures.json"
    steps = load(figures) if figures.is_file() else {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs is ended, too
    work = workplace(chosen.scale == "full")
    try:
        asked = Asked(chosen.scale, chosen.device, given or work / "1.5b", work, given is not None)
        machine = machine_of(asked, chosen.commit)
        names = chosen.steps or list(STEPS)
        if given is None and "model" not in names:
            names = ["model", *names]  # where nothing needs it that costs seconds
        clock = Clock(chosen.seconds if asked.full else 0, chosen.patience)

        def one(name: str) -> Outcome:
            outcome = outcome_of(name, asked, machine, clock)
            with clock.lock:
                steps[name] = outcome
                save(figures, steps)
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
                for process in list(RUNNING):
                    end(process)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = table(steps)
    (chosen.folder / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{figures} has the figures, {chosen.folder / 'table.md'} this table")
    return int(any(outcome.state in ("failed", "cut off") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
