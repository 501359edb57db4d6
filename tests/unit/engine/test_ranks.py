"""An engine of several ranks under a launcher: who writes, who waits for whom, and what a death leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crl.engine.events import StageErrored
from tests.processes import wait_until
from tests.unit.engine.harness import digests, leftovers, make_driver
from tests.unit.engine.test_driver import gone

pytestmark = pytest.mark.slow


def test_an_update_runs_on_every_rank_and_commits_after_the_last(tmp_path, seen):
    with make_driver(tmp_path / "a", {"learn": ["kill_once", str(tmp_path / "marker")]}, ranks=2) as driver:
        driver.subscribe(seen.append)
        driver.run_rounds(2)
        engine = driver._tracks[0].engines.ranks(2)
        assert len(set(engine.pids)) == 2
        pids = engine.pids
        files = driver.run.manifest(2, "learn").digested.files
        assert {"rank0.txt", "rank1.txt", "metrics.parquet"} == set(files)
        killed = digests(driver.run)
        assert not leftovers(driver.run)
    assert all(gone(pid) for pid in pids)
    # A rank that dies takes its siblings along, and the stage is tried again by new ones.
    assert [event.error["type"] for event in seen if isinstance(event, StageErrored)] == ["EngineDied"]
    with make_driver(tmp_path / "b", ranks=2) as driver:
        driver.run_rounds(2)
        assert digests(driver.run) == killed


def test_kill_9_of_the_parent_takes_every_rank_and_the_launcher_along(tmp_path):
    marker = tmp_path / "marker"
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[3])]!r}
from pathlib import Path
from tests.unit.engine.harness import make_driver
with make_driver(Path({str(tmp_path)!r}), {{"learn": ["sleep", {str(marker)!r}]}}, ranks=2) as driver:
    driver.subscribe(lambda event: None)
    import threading
    threading.Thread(target=driver.run_rounds, args=(1,), daemon=True).start()
    import time
    while not Path({str(marker)!r}).exists(): time.sleep(0.05)
    engine = driver._tracks[0].engines.ranks(2)
    Path({str(tmp_path / "pids")!r}).write_text(" ".join(map(str, [engine._process.pid, *engine.pids])))
    time.sleep(3600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    listed = tmp_path / "pids"
    wait_until(lambda: listed.exists() and len(listed.read_text().split()) == 3, "launcher and ranks are known")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for pid in listed.read_text().split():
        wait_until(lambda pid=pid: gone(int(pid)), f"process {pid} is gone", 30)
