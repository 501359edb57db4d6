"""Real runs for tests, small enough to be made often: conf/tiny.yaml with a shorter preparation, by commands."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from crl.audit.redo import set_aside
from crl.cli import main
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.run.directory import RunDirectory
from crl.run.lease import Lease

ROOT = Path(__file__).parents[1]
CONFIG = Path("conf/tiny.yaml")
NAME = "tiny"
ROUNDS = 2
"""Rounds of the finished run that tests share."""

# Every stage is still there, both roles are updated within two rounds, and a round has four waves to spread.
SETTINGS: dict[str, Any] = {
    "method.recipe.warm_start.actor_episodes": 32,
    "method.recipe.warm_start.extractor_episodes": 24,
    "method.recipe.warm_start.learning_rate": 5.0e-3,
    "method.families.0.evaluation_seeds.count": 2,
    "method.rollout.wave_groups": 1,
    # Small banks are searched exactly, and then nothing of an index is cached.
    "method.recipe.retrieval.index": "approximate",
    # Complementary RL, whose stages break where a test says so.
    "method.recipe.kind": "tests.faults.mishaps:MishapsConfig",
    "runtime.retry_delay_seconds": 0.1,
}


def options(**changes: Any) -> list[str]:
    """The settings as `--set` options; `changes` are dotted keys with `__` for the dot."""
    merged = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    return [word for key, value in merged.items() for word in ("--set", f"{key}={value}")]


def experiment(**changes: Any) -> Experiment:
    """The experiment that `crl train` with :func:`options` runs."""
    pairs = options(**changes)[1::2]
    return load_experiment(ROOT / CONFIG, dict(pair.split("=", 1) for pair in pairs))


def environment(runs: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a command that works in `runs`; Prefect's database lies beside it."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("CRL_MISHAP", "CRL_FAKE"))}
    return {
        **cleared,
        "CRL_RUNS": str(runs),
        "PREFECT_HOME": str(runs.parent / f"{runs.name}-prefect"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **(extra or {}),
    }


def command(*arguments: str | Path) -> list[str]:
    """`crl …` as a command line."""
    return [sys.executable, "-m", "crl", *map(str, arguments)]


def train(rounds: int, *more: str, **changes: Any) -> list[str]:
    """Arguments of `crl train` for so many further rounds, without Prefect unless `more` says so."""
    prefect = [] if "--prefect" in more else ["--no-prefect"]
    return ["train", str(CONFIG), "--rounds", str(rounds), *prefect, *more, *options(**changes)]


def crl(
    runs: Path, *arguments: str | Path, code: int = 0, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `crl …` to its end in a process of its own; it must end with `code`."""
    done = subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(runs, extra), capture_output=True, text=True, check=False
    )
    return _ended_with(code, done)


def crl_here(
    runs: Path, *arguments: str | Path, code: int | None = 0, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in this process, where what is tested is what a command says and does: it starts seconds sooner. `code`
    None: it may end with any, and not with a traceback."""
    words = [str(each) for each in arguments]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(runs, extra), clear=True), contextlib.chdir(ROOT),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        try:
            main(words)
        except SystemExit as ended:
            returned = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        else:
            returned = 0
    return _ended_with(code, subprocess.CompletedProcess(words, returned, out.getvalue(), err.getvalue()))


def _ended_with(code: int | None, done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    said = f"{shlex.join(map(str, done.args))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr or code is not None, said
    assert code in (None, done.returncode), f"exit code {done.returncode}, expected {code}: {said}"
    return done


def digests(run_path: Path, rounds: int | None = None) -> dict[str, str]:
    """Digest of every complete stage, by `0001/collect`; of the first rounds only where `rounds` says so."""
    run = RunDirectory.open(run_path)
    return {
        f"{number:04d}/{stage}": run.manifest(number, stage).digest
        for number in run.rounds()
        if rounds is None or number <= rounds
        for stage in run.complete_stages(number)
    }


def leftovers(run_path: Path) -> list[str]:
    """Whatever is temporary, or a part of a stage, anywhere in the run."""
    return sorted(
        str(path.relative_to(run_path)) for path in run_path.rglob("*") if path.name.startswith((".tmp", ".parts"))
    )


def cut_back(run_path: Path, round_number: int, stage: str) -> None:
    """Take a stage and everything after it out of a copied run, as if it had not been made yet."""
    import shutil

    from crl.rounds.recipe import recipe_of

    run = RunDirectory.open(run_path)
    recipe = recipe_of(run.method)
    with Lease.acquire(run_path, seconds=60) as lease:
        set_aside(
            run_path,
            round_number,
            stage,
            lambda number: [each.name for each in recipe.stages_of(run.method, number)],
            token=lease.token,
        )
    shutil.rmtree(run_path / "damaged")
