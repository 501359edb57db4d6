"""What `flows/server.py` adds to Prefect's server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration

from flows.server import lock_at_the_beginning
from tests.operate import operation
from tests.processes import PATIENCE_SECONDS, client_of
from tests.tiny_run import ROOT

SCRIPT = """
import sqlite3, sys, threading, time, weakref
from flows.server import collect_beside

class Node:
    pass

holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("PRAGMA journal_mode = WAL")
holder.execute("CREATE TABLE t (x)")
waiting = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False, timeout=900)
node = Node()
node.itself, node.cursor = node, waiting.execute("SELECT 1 UNION SELECT 2")
freed, begun = weakref.ref(node), threading.Event()

collect_beside(full_seconds=0.1)
del node  # from here on only a collection finds the cursor

def write():
    waiting.set_trace_callback(lambda statement: begun.set())
    try:
        waiting.execute("BEGIN IMMEDIATE")
        print("it got the lock")
    except sqlite3.OperationalError as error:
        print(error)

holder.execute("BEGIN IMMEDIATE")
thread = threading.Thread(target=write)
thread.start()
begun.wait()
def asleep():
    with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"

seen = 0
while seen < 20:  # it has begun to wait for the lock, and sleeps between two tries
    seen = seen + 1 if asleep() else 0
    time.sleep(0.01)
while freed() is not None:
    time.sleep(0.01)
holder.execute("COMMIT")
thread.join()
"""


def test_whoever_reads_before_it_writes_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another transaction between the two, which is what a started run meets beside a training: it waits."""
    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", AioSqliteConfiguration.begin_transaction)
    lock_at_the_beginning()
    config = AioSqliteConfiguration(f"sqlite+aiosqlite:///{tmp_path / 'database'}")

    async def work() -> int:
        engine = await config.engine()
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE t (x)"))

        async def insert() -> None:
            async with await config.session(engine) as session, config.begin_transaction(session):
                await session.execute(sa.text("INSERT INTO t VALUES (1)"))

        async with await config.session(engine) as session:
            async with config.begin_transaction(session):
                await session.execute(sa.text("SELECT count(*) FROM t"))
                other = asyncio.create_task(insert())
                await asyncio.wait({other}, timeout=0.3)
                await session.execute(sa.text("INSERT INTO t VALUES (2)"))
            await other
            count = await session.scalar(sa.text("SELECT count(*) FROM t"))
        await engine.dispose()
        return int(count or 0)

    assert asyncio.run(work()) == 2


def test_who_holds_the_lock_commits_while_garbage_waits_for_whoever_wants_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "database")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stdout == "it got the lock\n", done.stdout + done.stderr


@pytest.mark.slow
def test_no_run_that_is_submitted_is_refused_beside_others_that_write(tmp_path: Path) -> None:
    """Thirty submissions of three people, while four processes report states. Prefect as it comes refuses most."""
    answers: list[tuple[str, int]] = []
    with operation(tmp_path, worker=False) as server, client_of(server.url) as first:
        identifier = first.get("/deployments/name/tidy/tidy").json()["id"]
        flow_id = first.get("/flows/name/tidy").json()["id"]
        ended = threading.Event()

        def report() -> None:
            with client_of(server.url) as client:
                while not ended.is_set():
                    made = client.post("/flow_runs/", json={"flow_id": flow_id, "state": {"type": "RUNNING"}})
                    answers.append(("report", made.status_code))

        def submit(number: int) -> None:
            with client_of(server.url) as client:
                made = client.post(f"/deployments/{identifier}/create_flow_run", json={"state": {"type": "SCHEDULED"}})
                answers.append(("submit", made.status_code))

        reporters = [threading.Thread(target=report) for _ in range(4)]
        for thread in reporters:
            thread.start()
        try:
            with ThreadPoolExecutor(3) as people:
                list(people.map(submit, range(30)))
        finally:
            ended.set()
            for thread in reporters:
                thread.join()
    assert answers.count(("submit", 201)) == 30 and {status for _, status in answers} == {201}
