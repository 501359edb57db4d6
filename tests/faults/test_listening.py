"""Nothing listens to the outside while a run trains: ranks, warm starts, Prefect's temporary server.

The others are seen where they are started: vLLM in tests/learning/test_vllm.py, `make ui` in
tests/flows/test_ui_command.py.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.learn.process_group import listen
from tests.listening import Listening
from tests.processes import PATIENCE_SECONDS, free_port
from tests.tiny_run import ROOT, environment, train

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CRL_HOSTS")


def seen(runs: Path, words: list[str], **variables: str) -> Listening:
    """What a command listens on, from its beginning to its end."""
    with Listening() as listening:
        around = {key: value for key, value in environment(runs).items() if key not in NAMES}
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env={**around, **listening.environment, **variables},
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return listening


@pytest.mark.slow
def test_with_ranks_and_a_temporary_server(tmp_path: Path) -> None:
    two = {"method__roles__actor__deepspeed": "{zero_stage: 2, ranks: 2, micro_batch: 2}"}
    words = train(1, "--prefect", **two, runtime__oversubscribe=True)
    # Where the cluster's own profile names a network for everybody.
    found = seen(tmp_path, ["-m", "crl", *words], GLOO_SOCKET_IFNAME="eth0", NCCL_SOCKET_IFNAME="eth0")
    assert found.outside == set()
    assert any("crl.engine.worker" in each for each in found.inside), "the ranks talk to each other"
    assert any("flows.server" in each for each in found.inside)


def test_what_listens_is_seen(tmp_path: Path) -> None:
    """The watch itself: for a moment on every address, on loopback, and for packets."""
    code = (
        "import socket\n"
        "everywhere = socket.create_server(('', 0)); everywhere.close()\n"
        "both = socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True)\n"
        "here = socket.create_server(('127.0.0.1', 0))\n"
        "packets = socket.socket(type=socket.SOCK_DGRAM); packets.bind(('', 0))\n"
        "import time; time.sleep(0.5)\n"
    )
    found = seen(tmp_path, ["-c", code])
    assert {each.split()[0] for each in found.outside} >= {"::", "0.0.0.0"}
    assert {each.split()[0] for each in found.inside} == {"127.0.0.1"}


def test_a_store_for_several_machines_listens_on_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with listen("localhost", free_port(), alone=True) as one_machine:
        assert one_machine.getsockname()[0] == "127.0.0.1"
    port = free_port()
    for address in ("localhost", "192.0.2.1"):  # a name for loopback; an address in front of this machine
        with pytest.raises(BadInput, match=r"runtime\.nodes\.interface"):
            listen(address, port)
        with monkeypatch.context() as patch:
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
            with listen(address, port) as found:
                assert found.getsockname() == ("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listen("localhost", taken.getsockname()[1], alone=True)
