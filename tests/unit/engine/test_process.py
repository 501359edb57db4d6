"""A supervised process: its lines, its log, how it ended, and that nothing of its group is left."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from crl.engine.process import ProcessGroup, describe_exit
from tests.processes import PATIENCE_SECONDS, ended, kill, wait_until

FAMILY = """
import signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import time; time.sleep(3600)"]
child = subprocess.Popen(sleeper, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
if "leaves" not in sys.argv:
    time.sleep(3600)
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_every_line_is_told_whole_and_the_last_are_kept() -> None:
    told: list[str] = []
    process = ProcessGroup(
        python("import os; print('x' * 3000); print(os.environ['WORD']); raise SystemExit(7)"),
        environment={"WORD": "said"},
        on_line=told.append,
    )
    assert (process.running, process.exit_code, process.pid) == (False, None, None)
    process.start()
    assert process.wait(PATIENCE_SECONDS) == 7 == process.exit_code
    assert told == ["x" * 3000, "said"] and process.last_lines(1) == ["said"]
    assert describe_exit(process.exit_code) == "ended with exit code 7"
    process.start()
    assert process.wait(PATIENCE_SECONDS) == 7 and told[2:] == told[:2], "it can be started again"


def test_a_log_goes_on_with_a_restart_and_an_earlier_one_is_kept_beside(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("earlier\n")
    process = ProcessGroup(python("import os; print(os.getcwd())"), log=log, folder=tmp_path)
    for times in (1, 2):
        process.start()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.last_lines(5) == [str(tmp_path)] * times
    assert (tmp_path / "log.txt.1").read_text() == "earlier\n"


@pytest.mark.parametrize("way", ["stops", "deaf", "leaves", "is cancelled"])
def test_nothing_of_the_group_is_left_in_whatever_way_it_ends(way: str) -> None:
    told: list[str] = []
    process = ProcessGroup(python(FAMILY, way), on_line=told.append)
    process.start()
    wait_until(lambda: told, "it has started its children")
    family = [psutil.Process(int(pid)) for pid in told[0].split()]
    try:
        if way == "leaves":
            wait_until(lambda: not process.running, "it has left by itself")
        assert process.wait(0.01) is None or way == "leaves"
        if way == "is cancelled":
            process.cancel()
            assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        process.stop(0.2 if way == "deaf" else PATIENCE_SECONDS)
        codes = {"stops": -signal.SIGTERM, "leaves": 0}
        assert process.exit_code == codes.get(way, -signal.SIGKILL)
        wait_until(lambda: all(map(ended, family)), "the family is gone")
        process.kill()  # once more does no harm
    finally:
        kill(family)
