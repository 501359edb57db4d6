"""`kill -9` while weights are handed over: of the server in each step of it, of the engine that trains and hands over.

A program that speaks vLLM's protocol stands in for it and ends itself, or its parent, where a list says so.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crl.audit.verify import require_intact
from crl.config.load import load_experiment
from crl.engine.driver import Driver
from crl.engine.events import Event, StageStarted
from crl.run.directory import RunDirectory
from tests.fake_vllm import interpreter, left_in_shared_memory
from tests.faults.killing import MARK, marked
from tests.processes import command_line, wait_until
from tests.tiny_run import CONFIG, ROOT
from tests.unit.engine.harness import digests

pytestmark = pytest.mark.slow

CHANGES: dict[str, Any] = {
    "method.roles.actor.engine": "vllm",
    "method.roles.extractor.engine": "vllm",
    "method.roles.extractor.lora": {"r": 2},
    "method.recipe.warm_start.actor_episodes": 16,
    "method.recipe.warm_start.extractor_episodes": 16,
    "method.recipe.warm_start.num_train_epochs": 1,
    "method.families.0.groups": 2,
    "method.families.0.evaluation_seeds.count": 2,
    "runtime.retries": 20,
    "runtime.retry_delay_seconds": 0.1,
}
KILLS = [
    ("start", "server"),
    ("read_weights", "server"),
    ("reset_prefix_cache", "engine"),
    ("update_weight_version", "server"),
    ("resume", "engine"),
    ("begin_files", "server"),
    ("take_file", "engine"),
    ("take_file", "server"),
    ("end_files", "engine"),
    ("pause", "engine"),
]


def play(folder: Path, kills: list[tuple[str, str]]) -> tuple[RunDirectory, list[str]]:
    """Two rounds, with these kills and one of the engine in each update; what servers were asked for."""
    folder.mkdir()
    log, mark = folder / "log", f"{os.getpid()}-{folder.name}"
    log.touch()
    (folder / "kills").write_text("\n".join(" ".join(each) for each in kills))
    python = str(interpreter(folder, log))
    servers = {"runtime.servers": {role: {"python": python} for role in ("actor", "extractor")}}
    experiment = load_experiment(ROOT / CONFIG, {**CHANGES, **servers})
    run = RunDirectory.create_or_open(experiment, folder / "runs")
    with Driver(run, experiment.runtime, environment={MARK: mark}) as driver:

        def kill(event: Event) -> None:
            if isinstance(event, StageStarted) and event.stage.startswith("update_") and event.attempt == 1 and kills:
                for pid in driver._tracks[0].engines.shard(0).pids:
                    os.kill(pid, signal.SIGKILL)

        driver.subscribe(kill)
        driver.set_target(2)
        driver.run_rounds(2)
    wait_until(lambda: not marked(mark), lambda: f"living: {[command_line(each) for each in marked(mark)]}")
    require_intact(run.path)
    return run, log.read_text().splitlines()


def test_a_run_that_is_killed_in_every_step_of_a_handover_writes_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    calm, asked = play(tmp_path / "calm", [])
    assert Counter(line.split()[1] for line in asked)["start"] == 2, "one server for each of two sets of weights"
    killed, asked = play(tmp_path / "killed", KILLS)
    assert (tmp_path / "killed" / "kills").read_text() == "", "every step was reached"
    assert Counter(line.split()[1] for line in asked)["start"] > len(KILLS)
    assert digests(killed) == digests(calm)
    assert not left_in_shared_memory()
