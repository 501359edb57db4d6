"""Ctrl-C and `kill` on a training run: from a terminal, and in the background of a script, which ignores Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from crl.run.directory import RunDirectory
from crl.run.lease import lease_state
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal, as_in_the_background, kill, wait_until
from tests.tiny_run import ROOT, command, environment
from tests.unit.engine.harness import RECIPE

pytestmark = pytest.mark.slow

Place = Callable[[], AbstractContextManager[None]]
PREFECT = ["--no-prefect", pytest.param("--prefect", marks=pytest.mark.slow)]


class Training:
    """`crl train` on stages without models, held in the first stage of round 1."""

    def __init__(self, folder: Path, place: Place, prefect: str) -> None:
        self.marker = folder / "held"
        self.path = folder / "runs" / "tiny"
        extra = {"CRL_FAKE": json.dumps({"draw": ["hold_once", str(self.marker)]})}
        fake = ["--set", f"method.recipe={{kind: '{RECIPE}'}}"]
        with place():
            self.process = subprocess.Popen(
                command("train", "conf/tiny.yaml", "--rounds", "1", prefect, *fake),
                cwd=ROOT,
                env=environment(folder / "runs", extra), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: self.marker.exists() or self.process.poll() is not None, "the stage is under way")
        assert self.process.poll() is None, self.process.communicate()
        self.engine = psutil.Process(int(self.marker.read_text()))

    def ended(self) -> tuple[int, str]:
        """Exit code, and what was said on standard error."""
        _, said = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, said


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Place, str], Training]]:
    trainings: list[Training] = []

    def start(place: Place, prefect: str) -> Training:
        trainings.append(Training(tmp_path, place, prefect))
        return trainings[-1]

    yield start
    for training in trainings:
        kill([training.engine])
        training.process.kill()
        training.process.communicate()


@pytest.mark.parametrize("prefect", PREFECT)
@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        (as_in_a_terminal, signal.SIGINT, 130),
        pytest.param(as_in_a_terminal, signal.SIGTERM, 143, marks=pytest.mark.slow),
        (as_in_the_background, signal.SIGTERM, 143),
    ],
)
def test_it_ends_in_order_and_says_how_to_go_on(
    started: Callable[[Place, str], Training], place: Place, number: signal.Signals, code: int, prefect: str
) -> None:
    training = started(place, prefect)
    os.killpg(training.process.pid, number)  # as a terminal does: Prefect's server is not spared
    ended, said = training.ended()
    assert ended == code, said
    assert "continue with: crl resume" in said and "Traceback" not in said
    assert not training.engine.is_running() or training.engine.status() == psutil.STATUS_ZOMBIE
    assert lease_state(training.path) is None, "the lease was given back"
    assert RunDirectory.open(training.path).complete_stages(0) == ["prepare"]


@pytest.mark.parametrize("prefect", PREFECT)
def test_in_the_background_ctrl_c_is_for_others(started: Callable[[Place, str], Training], prefect: str) -> None:
    training = started(as_in_the_background, prefect)
    training.process.send_signal(signal.SIGINT)
    training.marker.with_name("held-go").touch()
    ended, said = training.ended()
    assert ended == 0, said
    assert RunDirectory.open(training.path).complete_stages(1) == ["draw", "spread", "learn", "total"]


def test_a_closed_standard_output_is_no_traceback(room: Path) -> None:
    """`crl status room >&-`, and a reader that has seen enough."""
    command = f"{shlex.quote(sys.executable)} -m crl status {shlex.quote(str(room))}"
    for words in (f"{command} >&-", f"{command} | true"):
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.stderr == "" and done.returncode == 0, done.stderr
