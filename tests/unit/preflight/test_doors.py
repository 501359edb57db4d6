"""Every door holds an experiment against machine, models and environments, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crl.cli import main
from crl.config import Runtime
from crl.config.load import load_experiment
from crl.engine.targets import begin_after
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput
from crl.policies.sources import resolve_model
from crl.preflight.numbers import machine_checks
from crl.run.directory import RunDirectory

ROOT = Path(__file__).parents[3]
TINY = ROOT / "conf/tiny.yaml"
KINDS: dict[str, tuple[str, Any]] = {
    "threads": ("method.threads", 9),
    "ranks": ("method.roles.actor.deepspeed.ranks", 3),
    "top_k": ("method.roles.actor.sampling.top_k", 513),
    "modules": ("method.roles.actor.lora.target_modules", ["qq_proj"]),
    "shards": ("runtime.shards", 9),
    "environment": ("method.rollout.group_size", 4),
}
"""What is set; of the kind `environment` it is the environment that cannot be made."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, no GPU; the model is there, so its sizes are known."""
    resolve_model("tiny")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def no_environment(config: FrozenLakeConfig) -> Any:
    raise BadInput("the lake has dried up", where="environment frozenlake")


def made(place: Path, kind: str) -> Path:
    """A run that was made on a larger machine; nothing of it is complete."""
    key, value = KINDS[kind]
    return RunDirectory.create_or_open(load_experiment(TINY, {key: value}), place).path


def study(place: Path, kind: str) -> Path:
    key, value = KINDS[kind]
    path = place / "odd.yaml"
    path.write_text(
        f"name: odd\nbase: {TINY}\nrounds: 1\nseeds: [1]\n"
        f"arms: {{one: {{set: {{{key}: {value}}}}}, two: {{set: {{method.seed: 5}}}}}}\n"
        "seed_keys: [method.families.*.train_seeds.start]\n"
    )
    return path


def command(*words: str | Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    raise BadInput(f"exit code {ended.value.code}") if ended.value.code else AssertionError("it was not refused")


def train(place: Path, kind: str) -> Callable[[], Any]:
    key, value = KINDS[kind]
    return lambda: command("train", TINY, "--runs", place / "runs", "--set", f"{key}={value}")


def form(place: Path, kind: str) -> Callable[[], Any]:
    from flows.parameters import experiment_from
    from flows.train import begun

    settings = dict([KINDS[kind]])
    return lambda: begun(experiment_from("conf/tiny.yaml", {}, {**settings, "runtime.runs": str(place / "runs")}), 1)


def compare(place: Path, kind: str) -> Callable[[], Any]:
    path = study(place, kind)
    return lambda: command("compare", path, "--runs", place / "runs")


def form_of_compare(place: Path, kind: str) -> Callable[[], Any]:
    from flows.compare import _compare

    path = study(place, kind)
    return lambda: _compare(path, 0, None, None)


def resume(place: Path, kind: str) -> Callable[[], Any]:
    path = made(place, kind)
    return lambda: command("resume", path)


def resume_flow(place: Path, kind: str) -> Callable[[], Any]:
    from flows.train import resume

    path = made(place, kind)
    return lambda: resume.fn(path)


def evaluate(place: Path, kind: str) -> Callable[[], Any]:
    path = made(place, kind)
    return lambda: command("evaluate", path)


def evaluate_flow(place: Path, kind: str) -> Callable[[], Any]:
    from crl.rounds.evaluate import Choice
    from flows.evaluate import evaluate_round

    path = made(place, kind)
    return lambda: evaluate_round.fn(str(path), None, Choice())


DOORS = (train, form, compare, form_of_compare, resume, resume_flow, evaluate, evaluate_flow)
# The shards of a run that was begun are those that it last set out with, and no part of its record; an evaluation
# trains nothing.
NOT_THERE = {(door, "shards") for door in DOORS[4:]} | {(evaluate, "ranks"), (evaluate_flow, "ranks")}


@pytest.mark.parametrize(
    ("door", "kind"),
    [
        pytest.param(door, kind, id=f"{door.__name__} {kind}")
        for door in DOORS
        for kind in KINDS
        if (door, kind) not in NOT_THERE
    ],
)
def test_what_cannot_work_here_is_refused_at_every_door(
    door: Callable[[Path, str], Callable[[], Any]],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enter = door(tmp_path, kind)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    for module in ("train", "compare", "evaluate"):
        monkeypatch.setattr(f"flows.{module}.label", lambda *words: None, raising=False)
        monkeypatch.setattr(f"flows.{module}.log_error", lambda error: None, raising=False)
        monkeypatch.setattr(f"flows.{module}.failed", raised, raising=False)
    monkeypatch.setattr("flows.evaluate.located", lambda error, place: None)
    if kind == "environment":
        monkeypatch.setattr(FrozenLakeConfig, "make", no_environment)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput) as caught:
        enter()
    said = str(caught.value) + capsys.readouterr().err
    assert ("dried up" if kind == "environment" else KINDS[kind][0]) in said, said
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def raised(error: BaseException, *_: object) -> None:
    raise error


@pytest.mark.parametrize("door", ["train", "resume", "compare"])
def test_shards_of_a_dask_cluster_that_would_all_start_here_are_refused(
    door: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Prefect there are no tasks that a cluster could run: its shards are engines of this machine."""
    runs, shards = tmp_path / "runs", {"runtime.shards": 9, "runtime.task_runner": "dask"}
    if door == "train":
        words = [word for key, value in shards.items() for word in ("--set", f"{key}={value}")]
        enter = partial(command, "train", TINY, "--runs", runs, "--no-prefect", *words)
    elif door == "compare":
        path = study(tmp_path, "shards")
        path.write_text(path.read_text().replace("runtime.shards: 9}", "runtime.shards: 9, runtime.task_runner: dask}"))
        enter = partial(command, "compare", path, "--runs", runs)
    else:
        experiment = load_experiment(TINY, shards)
        begun = RunDirectory.create_or_open(experiment, runs)
        begin_after(begun.path, 0, experiment.runtime)
        enter = partial(command, "resume", begun.path)
    with pytest.raises(BadInput):
        enter()
    said = capsys.readouterr().err
    assert "runtime.shards is 9, and this machine has 2 cores" in said and "oversubscribe" in said
    assert "crl resume RUN --shards N" in said


def test_a_dask_cluster_is_one_that_somebody_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers may be anywhere: their number is no matter of this machine."""
    made = load_experiment(TINY, {"runtime.shards": 9, "runtime.task_runner": "dask"})
    found = dict(machine_checks(made))
    assert "runtime.shards" not in found
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://there:8786")
    found["runtime.task_runner"]()
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")
    with pytest.raises(BadInput, match="DASK_SCHEDULER_ADDRESS names no cluster") as raised:
        found["runtime.task_runner"]()
    assert "leave runtime.task_runner out" in str(raised.value)


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment(TINY, {"runtime.shards": 9, "runtime.task_runner": "dask"})
    begun = RunDirectory.create_or_open(experiment, tmp_path)
    begin_after(begun.path, 0, experiment.runtime)
    driven: list[int] = []

    def driver(directory: RunDirectory, runtime: Runtime, live: Any) -> Any:
        driven.append(runtime.shards)
        raise BadInput("it is not run here")

    monkeypatch.setattr("crl.cli.train._driver", driver)
    for shards in ("9", "8"):
        with pytest.raises(BadInput):
            command("resume", begun.path, "--shards", shards)
    assert driven == [8]
