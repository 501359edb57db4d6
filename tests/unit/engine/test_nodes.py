"""Ranks on several machines: the hostfile, what each machine is sent, and that nothing outlives who sent it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from crl.config import NodesConfig
from crl.config.nodes import Host
from crl.engine import launch, worker
from crl.engine.launch import VARIABLE, start_of
from crl.engine.listener import ADDRESS_VARIABLE, KEY_VARIABLE, WorkerListener, connect
from crl.errors import BadInput
from crl.preflight.numbers import machine_checks
from tests.processes import PATIENCE_SECONDS, free_port, wait_until
from tests.unit.engine.harness import digests, leftovers, make_driver, make_experiment

ROOT = Path(__file__).parents[3]
HERE = "env CRL_MACHINE={host}"
"""A shell that stays on this machine."""


def nodes_of(folder: Path, hosts: str = "one slots=1\ntwo slots=1\n", **settings: Any) -> NodesConfig:
    (folder / "hosts").write_text(hosts)
    return NodesConfig.model_validate(
        {"hostfile": folder / "hosts", "endpoint": f"127.0.0.1:{free_port()}", "shell": HERE, **settings}
    )


def test_ranks_fill_the_machines_of_the_hostfile_in_order(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "# ours\nworker-1 slots=4\n\nworker-2.lab  slots=4 # newer\nworker-3 slots=8\n")
    assert nodes.hosts_of(6) == [Host("worker-1", 4), Host("worker-2.lab", 2)]
    assert nodes.hosts_of(16)[-1] == Host("worker-3", 8)
    with pytest.raises(BadInput, match="16 slots") as caught:
        nodes.hosts_of(17)
    assert caught.value.where == "runtime.nodes.hostfile" and "17" in (caught.value.expected or "")


@pytest.mark.parametrize("line", ["worker-1", "worker-1 slots=0", "-oProxyCommand=x slots=1", "a b slots=2"])
def test_a_hostfile_of_another_form_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the hostfile has a line"):
        nodes_of(tmp_path, line + "\n").hosts()
    with pytest.raises(BadInput, match="cannot be read"):
        NodesConfig(hostfile=tmp_path / "nowhere", endpoint="a:1").hosts()


def test_ranks_are_held_against_the_machines_and_not_against_this_one(tmp_path: Path) -> None:
    experiment = make_experiment(ranks=64, nodes=nodes_of(tmp_path, "a slots=64\n").model_dump())
    for _, check in machine_checks(experiment):
        check()
    smaller = make_experiment(ranks=65, nodes=experiment.runtime.nodes)
    with pytest.raises(BadInput, match="64 slots"):
        for _, check in machine_checks(smaller):
            check()
    with pytest.raises(BadInput, match=r"runtime\.nodes"):
        for _, check in machine_checks(make_experiment(ranks=65)):
            check()


def test_each_machine_gets_its_part_and_the_key_on_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/shared/hub")
    monkeypatch.setenv("CRL_STARTED_BY", "1")
    nodes = nodes_of(tmp_path, "one slots=2\ntwo slots=2\n", interface="eth1")
    command, environment = start_of(3, nodes, {KEY_VARIABLE: "secret", "OMP_NUM_THREADS": "4"})
    assert command == [sys.executable, "-m", "crl.engine.launch", "nodes"]
    first, second = json.loads(environment[VARIABLE])
    assert first["shell"] == ["env", "CRL_MACHINE=one"]
    assert "--ranks 3 --first 2 --here 1" in " ".join(second["command"])
    for order in (first, second):
        assert "secret" not in " ".join([*order["shell"], *order["command"]])
        there = order["environment"]
        assert (there[KEY_VARIABLE], there["OMP_NUM_THREADS"], there["HF_HOME"]) == ("secret", "4", "/shared/hub")
        assert f"{there['MASTER_ADDR']}:{there['MASTER_PORT']}" == nodes.endpoint
        assert there["GLOO_SOCKET_IFNAME"] == there["NCCL_SOCKET_IFNAME"] == "eth1"
        assert "CRL_STARTED_BY" not in there, "a number of a process of this machine"


def test_workers_elsewhere_come_to_an_address_with_the_key(tmp_path: Path) -> None:
    address = nodes_of(tmp_path, "one slots=2\n").address_here()
    assert address == "127.0.0.1"
    with WorkerListener(1, address) as listener, connect(listener.environment()) as worker:
        there = listener.accept(PATIENCE_SECONDS)
        assert there is not None
        with there:
            worker.send_bytes(b"hello")
            assert there.recv_bytes() == b"hello"


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("localhost:29500", "stays on this machine (127.0.0.1)"),
        ("127.0.1.1:29500", "stays on this machine"),
        ("no..name:29500", "there is no way from here to no..name:29500"),
        ("127.0.0.1:99999", "there is no way from here to 127.0.0.1:99999"),
    ],
)
def test_an_endpoint_that_ranks_elsewhere_would_look_for_on_their_own_machine_is_refused_before_work_starts(
    endpoint: str, told: str, tmp_path: Path
) -> None:
    made = make_experiment(ranks=2, nodes=nodes_of(tmp_path, endpoint=endpoint).model_dump())
    with pytest.raises(BadInput) as raised:
        for _, check in machine_checks(made):
            check()
    assert told in raised.value.found and raised.value.where == "runtime.nodes.endpoint"
    assert "as an IP address" in str(raised.value.next_step)


def test_a_rank_that_does_not_reach_its_supervisor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"tcp:127.0.0.1:{free_port()}"
    monkeypatch.setattr(worker, "end_with_parent", lambda: None)
    monkeypatch.setattr(os, "_exit", sys.exit)  # this process is not the worker's
    for name, value in {ADDRESS_VARIABLE: address, KEY_VARIABLE: "00" * 32, "RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"rank 3 does not reach its supervisor at {address}: ConnectionRefusedError"):
        worker.main()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["its input ends", "it hears nothing"])
def test_what_runs_on_a_machine_ends_with_who_asked_for_it(lost: bool, tmp_path: Path) -> None:
    order = {
        "directory": str(tmp_path), "environment": {"WORD": "pid"}, "silence": 3.0 if lost else 3600.0,
        "command": [sys.executable, "-c", "import os, time; open(os.environ['WORD'], 'w').write(str(os.getpid())); "
                    "os.rename('pid', 'known'); time.sleep(3600)"],
    }  # fmt: skip
    agent = subprocess.Popen([sys.executable, str(ROOT / "crl/engine/node.py")], stdin=subprocess.PIPE, text=True)
    assert agent.stdin is not None
    agent.stdin.write(json.dumps(order) + "\n")
    agent.stdin.flush()

    def known() -> bool:
        agent.stdin.write("\n")
        agent.stdin.flush()
        return (tmp_path / "known").exists()

    wait_until(known, "the command runs")
    pid = int((tmp_path / "known").read_text())
    if not lost:
        agent.stdin.close()
    assert agent.wait(PATIENCE_SECONDS) == 128 + 9
    wait_until(lambda: not psutil.pid_exists(pid), "the command ended")


def test_every_machine_hears_that_this_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads three lines and fails is in the place of each."""
    monkeypatch.setattr(launch, "_BEAT_SECONDS", 0.0)
    monkeypatch.setattr(launch, "end_with_parent", lambda: None)
    made = [
        {"shell": ["sh", "-c", f"head -n 3 > {tmp_path}/{name}; exit 3"], "directory": "/", "command": []}
        for name in ("one", "two")
    ]
    monkeypatch.setenv(VARIABLE, json.dumps(made))
    assert launch.launch_nodes() == 3
    order, *beats = (tmp_path / "one").read_text().splitlines()
    assert json.loads(order)["silence"] == launch._SILENCE_SECONDS and beats == ["", ""]


def test_one_machine_that_fails_ends_the_others_and_its_exit_code_is_that_of_all(tmp_path: Path) -> None:
    stays = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'known'); time.sleep(3600)"
    fails = "import os, sys, time\nwhile not os.path.exists('known'): time.sleep(0.05)\nsys.exit(3)"
    made = [
        {"shell": ["env"], "directory": str(tmp_path), "environment": {}, "command": [sys.executable, "-c", code]}
        for code in (stays, fails)
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: json.dumps(made)}
    done = subprocess.run(
        [sys.executable, "-m", "crl.engine.launch", "nodes"], env=environment, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 3
    pid = int((tmp_path / "known").read_text())
    wait_until(lambda: not psutil.pid_exists(pid), "the other ended")


@pytest.mark.parametrize("shell", ["/usr/bin/ssh", "srun"])
def test_words_survive_the_shell_at_the_other_end_of_ssh(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[str]] = []

    def started(words: list[str], **options: object) -> None:
        taken.append(words)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.sys, "executable", "/my venv/python")
    monkeypatch.setattr(launch.subprocess, "Popen", started)
    monkeypatch.setattr(launch, "end_with_parent", lambda: None)
    monkeypatch.setenv(VARIABLE, json.dumps([{"shell": [shell, "gpu-1"]}]))
    with pytest.raises(KeyboardInterrupt):
        launch.launch_nodes()
    [[_, host, *words]] = taken
    assert host == "gpu-1"
    assert (shlex.split(" ".join(words)) if "ssh" in shell else words)[:2] == ["/my venv/python", "-P"]


@pytest.mark.slow
def test_two_launchers_make_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with a shell that stays here; tests/faults/test_two_machines.py has two machines."""
    monkeypatch.setattr(NodesConfig, "address_here", lambda nodes: "127.0.0.1")  # refused for machines that are two
    with make_driver(tmp_path / "a", ranks=2, nodes=nodes_of(tmp_path, interface="lo").model_dump()) as driver:
        driver.run_rounds(1)
        pids = driver._tracks[0].engines.ranks(2).pids
        machines = [psutil.Process(pid).environ()["CRL_MACHINE"] for pid in pids]
        assert sorted(machines) == ["one", "two"]
        found = digests(driver.run)
        assert not leftovers(driver.run)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "both launchers ended")
    with make_driver(tmp_path / "b", ranks=2) as driver:
        driver.run_rounds(1)
        assert digests(driver.run) == found
