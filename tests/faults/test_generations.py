"""kill -9 of each process of a command, generation by generation: what it started ends with it, and the run goes on.

The stages are those of the engine tests and need no model; the update runs on two ranks and holds in its first attempt.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from crl.audit.verify import verify
from crl.run import guardian
from tests.faults.killing import MARK, WORKER, marked
from tests.processes import PATIENCE_SECONDS, command_line, ended, environ, kill, wait_until
from tests.study.studies import ARMS, NAME, fake, write
from tests.tiny_run import ROOT, command, crl, environment
from tests.unit.engine.harness import RECIPE

pytestmark = pytest.mark.slow
ORPHAN_SECONDS = 30.0
"""Until what a killed process started may live; usually it takes a second."""
TRAIN = ("command", "guardian", "engine", "launcher", "rank 0", "rank 1")
COMPARE = ("command", "guardian", "child", "guardian of the child", "engine")


class Tree:
    """A running command and every process below it."""

    def __init__(self, runs: Path, variables: dict[str, str], *arguments: str | Path) -> None:
        runs.mkdir(parents=True)
        self.mark = secrets.token_hex(8)
        self.output = runs.parent / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command(*arguments), cwd=ROOT, env=environment(runs, {**variables, MARK: self.mark}),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def generations(self) -> dict[str, psutil.Process]:
        """Its living processes by name."""
        return {self._name(each): each for each in marked(self.mark)}

    def _name(self, process: psutil.Process) -> str:
        words, rank = command_line(process), environ(process).get("RANK")
        if process.pid == self.process.pid:
            return "command"
        if guardian.__file__ in words:
            return "guardian" if str(self.process.pid) in words else "guardian of the child"
        if "crl.engine.launch" in words:
            return "launcher"
        if WORKER in words:
            return "engine" if rank is None else f"rank {rank}"
        if "crl.lab.study.child" in words:
            return "child"
        return "server" if any("flows.server" in word for word in words) else " ".join(words)

    def wait_whole(self, names: tuple[str, ...], marker: Path) -> dict[str, psutil.Process]:
        """Every generation, once the stage that holds is under way."""
        wait_until(lambda: marker.exists() or self.process.poll() is not None, "the stage is under way")
        assert self.process.poll() is None, self.said()
        wait_until(lambda: set(names) <= self.generations().keys(), lambda: f"{names} live: {self.said()}")
        return self.generations()

    def wait_gone(self) -> None:
        """Until nothing of it lives."""
        wait_until(lambda: not marked(self.mark), lambda: f"nothing lives of {self.generations()}", ORPHAN_SECONDS)

    def code(self) -> int:
        """Its exit code, when it has come to its end."""
        return self.process.wait(PATIENCE_SECONDS)

    def said(self) -> str:
        """What it printed."""
        return self.output.read_text(errors="replace")


@contextlib.contextmanager
def tree(runs: Path, variables: dict[str, str], *arguments: str | Path) -> Iterator[Tree]:
    """A command of which nothing lives on afterward."""
    made = Tree(runs, variables, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        kill(marked(made.mark))


def kill_one(victim: psutil.Process) -> None:
    """SIGKILL to one process; all that it started must end."""
    below = victim.children(recursive=True)
    victim.kill()
    wait_until(lambda: all(map(ended, [victim, *below])), lambda: f"all of {below} have ended", ORPHAN_SECONDS)


def experiment(folder: Path) -> Path:
    """conf/tiny.yaml with the stages of the engine tests, and two ranks."""
    made = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    made["method"]["recipe"] = {"kind": RECIPE}
    made["method"]["roles"]["actor"]["deepspeed"] = {"ranks": 2}
    made["runtime"] = {"oversubscribe": True, "retry_delay_seconds": 0.1}
    (folder / "prompts").symlink_to(ROOT / "conf" / "prompts")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("whom", "prefect"), [*((name, False) for name in TRAIN), ("command", True), ("guardian", True), ("server", True)]
)
def test_what_a_killed_process_of_a_training_run_started_ends_with_it(whom: str, prefect: bool, tmp_path: Path) -> None:
    runs, marker = tmp_path / "runs", tmp_path / "marker"
    variables = {"CRL_FAKE": json.dumps({"learn": ["hold_once", str(marker)]})}
    if whom == "server":  # Prefect would ask a server that is gone again and again, for minutes
        variables["PREFECT_CLIENT_MAX_RETRIES"] = "0"
    words = ["train", experiment(tmp_path), "--rounds", "1", "--prefect" if prefect else "--no-prefect"]
    with tree(runs, variables, *words) as training:
        found = training.wait_whole((*TRAIN, "server") if prefect else TRAIN, marker)
        kill_one(found[whom])
        if whom == "guardian":
            wait_until(lambda: "guardian" in training.generations(), "there is another guardian")
            found["command"].kill()
        elif whom != "command":
            Path(f"{marker}-go").touch()
            if whom == "server":
                assert training.code() == 1 and "crl: Prefect's server ended while the flow ran" in training.said()
            else:
                assert training.code() == 0 and "Traceback" not in training.said(), training.said()
        training.code()
        training.wait_gone()
    if whom in ("command", "guardian", "server"):
        crl(runs, "resume", "tiny", extra=variables)
    assert verify(runs / "tiny") == [] and (runs / "tiny/rounds/0001/total/manifest.json").is_file()


@pytest.mark.parametrize("whom", COMPARE)
def test_what_a_killed_process_of_a_study_started_ends_with_it(whom: str, tmp_path: Path) -> None:
    runs, marker = tmp_path / "runs", tmp_path / "marker"
    file = write(tmp_path, seeds=[11], arms={"baseline": ARMS["baseline"]}, compare_with=[])
    with tree(runs, fake(baseline_s11=f"sleep {marker}"), "compare", file) as study:
        found = study.wait_whole(COMPARE, marker)
        kill_one(found[whom])
        if whom.startswith("guardian"):
            wait_until(lambda: whom in study.generations(), "there is another guardian")
            found["child" if whom == "guardian of the child" else "command"].kill()
        if whom == "child":
            assert study.code() == 1 and "was ended by SIGKILL" in study.said() and "Traceback" not in study.said()
        elif whom == "engine":
            assert study.code() == 0, study.said()
        study.code()
        study.wait_gone()
    again = crl(runs, "compare", file, extra=fake())
    assert "1 runs, 1 of them finished" in again.stdout or "continues after round 1" in again.stdout
    assert verify(runs / NAME / f"{NAME}-baseline-s11") == []
