"""What `flows/server.py` adds to Prefect's server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import PATIENCE_SECONDS
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

collect_beside()
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
    kept = [[] for _ in range(10_000)]
holder.execute("COMMIT")
thread.join()
"""


def test_who_holds_the_lock_commits_while_garbage_waits_for_whoever_wants_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "database")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stdout == "it got the lock\n", done.stdout + done.stderr
