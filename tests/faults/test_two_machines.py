"""An update over two machines, which two network namespaces stand for: what each has in common is the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from crl.config.load import load_experiment
from crl.engine.driver import Driver
from crl.run.directory import RunDirectory
from tests import tiny_run
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.engine.harness import digests, leftovers

pytestmark = pytest.mark.slow
SETTINGS = {
    "name": "both",
    "method.recipe": {"kind": "baseline"},
    "method.roles.actor.sampling": {"max_new_tokens": 4, "constrain": "actions"},
    "method.roles.actor.deepspeed": {"zero_stage": 2, "ranks": 2, "micro_batch": 2},
    "method.families.0.environment.size_max": 3,
    "method.families.0.evaluation_seeds.count": 2,
    "method.evaluation.every": 2,
    "runtime.retries": 0,
    "runtime.oversubscribe": True,
}
ROUNDS = 2


@dataclass(frozen=True)
class Machines:
    """Two network namespaces that reach each other."""

    names: tuple[str, str]
    hostfile: Path
    endpoint: str

    def run(self, number: int, *command: str | Path) -> subprocess.Popen[str]:
        """A command of this project on one of them."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[number], sys.executable, "-m", "crl", *map(str, command)],
            cwd=tiny_run.ROOT, env={**os.environ, "PYTHONPATH": str(tiny_run.ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def pids(self, number: int) -> list[int]:
        """Every process on one of them."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[number]], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs Linux and iproute2 (Debian: apt install iproute2)")
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces are made")
    names = (f"crl-{os.getpid()}-a", f"crl-{os.getpid()}-b")
    try:
        for name in names:
            ip("netns", "add", name)
        # Each sees its own end of the cable only.
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.213.7.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        hostfile = tmp_path / "hosts"
        hostfile.write_text(f"# two machines\n{names[0]} slots=1\n{names[1]} slots=1\n")
        yield Machines(names, hostfile, "10.213.7.1:29613")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def workers(pids: list[int]) -> list[int]:
    """Those of some processes that are ranks."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            words = psutil.Process(pid).cmdline()
            if "crl.engine.worker" in words and "crl.engine.launch" not in words:  # not the launcher
                found.append(pid)
    return found


def test_one_of_two_machines_is_lost_and_a_resume_gives_the_digests_of_one(machines: Machines, tmp_path: Path) -> None:
    experiment = load_experiment(tiny_run.ROOT / "conf/tiny.yaml", SETTINGS)
    alone = RunDirectory.create_or_open(experiment, tmp_path / "alone" / experiment.name)
    with Driver(alone, experiment.runtime) as driver:
        driver.run_rounds(ROUNDS)

    run_path = tmp_path / "runs" / experiment.name
    nodes = {
        "hostfile": str(machines.hostfile), "endpoint": machines.endpoint, "interface": "cable",
        "shell": "ip netns exec {host}",
    }  # fmt: skip
    settings = {**SETTINGS, "runtime.nodes": nodes, "runtime.runs": str(tmp_path / "runs")}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    training = machines.run(0, "train", "conf/tiny.yaml", "--rounds", str(ROUNDS), "--no-prefect", *options)
    first = run_path / "rounds/0001"

    def begun() -> bool:
        return training.poll() is not None or any(first.glob(".tmp*update_actor*")) or (first / "update_actor").is_dir()

    wait_until(begun, "the update has begun", PATIENCE_SECONDS)
    lost = workers(machines.pids(1))
    assert len(lost) == 1, training.communicate()[0] if training.poll() is not None else "no rank on the second machine"
    for pid in machines.pids(1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    said, _ = training.communicate(timeout=PATIENCE_SECONDS)
    assert training.returncode != 0 and "engine" in said, said
    wait_until(lambda: not machines.pids(0) and not machines.pids(1), "nothing of it is left on either", 60)
    assert not (first / "update_actor").exists()

    resumed = machines.run(0, "resume", run_path)
    said, _ = resumed.communicate(timeout=PATIENCE_SECONDS)
    assert resumed.returncode == 0, said
    run = RunDirectory.open(run_path)
    assert digests(run) == digests(alone)
    assert not leftovers(run)
    files = run.manifest(1, "update_actor").digested.files
    assert "checkpoint/deepspeed/optimizer-rank00001.safetensors" in files, "the second machine trained"
    wait_until(lambda: not machines.pids(1), "nothing is left on the second machine", 60)
