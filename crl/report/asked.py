"""Queries that people type, in a process of their own: none takes more time or memory than it may.

The process (`python -m crl.report.asked`) opens the session that :func:`crl.report.views.answering` locks, and writes
the rows as they come, so that neither side holds them all. DuckDB counts not all of its own memory (its functions on
lists, for one), and one call of such a function cannot be interrupted; so the system limits the process, and it is
ended when its time is over, or whoever asked is gone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from crl.errors import BadInput, CrlError, from_payload
from crl.report.views import answering

_BESIDE = 3 * 10**9
"""Bytes of addresses that libraries and threads take, whatever is asked."""
_GIGABYTE = 10**9

Rows = Iterator[list[list[Any]]]


@contextmanager
def asked(
    runs: Sequence[Path], sql: str, *, seconds: float, gigabytes: float, until: int | None = None
) -> Iterator[tuple[list[str], Rows]]:
    """Column names of one SELECT over the views of runs, and its rows as they come, in lists. Leaving the block ends
    the query.

    Values are those of JSON: numbers, texts, lists, objects; others are texts. Raises BadInput also where the query
    takes longer than `seconds`, or more memory than `gigabytes`; else as :func:`crl.report.views.answering`.
    """
    order = {"runs": [str(run) for run in runs], "sql": sql, "until": until, "memory": int(gigabytes * _GIGABYTE)}
    # A session of its own: Ctrl-C is for whoever asked, who ends it.
    process = subprocess.Popen(
        [sys.executable, "-m", "crl.report.asked"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()

    def lines() -> Iterator[dict[str, Any]]:
        ended = False
        for line in process.stdout or ():
            told = json.loads(line)
            if "error" in told:
                raise from_payload(told["error"])
            ended = "end" in told
            yield told
        if not ended:
            process.wait()
            raise _ended(process, sql, seconds if late.is_set() else None, gigabytes)

    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        told = lines()
        names = list(next(told)["names"])
        yield names, (each["rows"] for each in told if "rows" in each)
    finally:
        timer.cancel()
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                pipe.close() if pipe is not None else None
        process.wait()


def _ended(process: subprocess.Popen[bytes], sql: str, seconds: float | None, gigabytes: float) -> CrlError:
    """Why the process ended without a last word."""
    if seconds is not None:
        return BadInput(
            f"the query took longer than {seconds:g} s and was ended",
            expected="a query that ends by then",
            where=sql.strip()[:200],
            next_step="narrow it (WHERE round = …, LIMIT), or allow more: --seconds N",
        )
    said = (process.stderr.read() if process.stderr is not None else b"").decode("utf-8", "replace").strip()
    last = f": {said.splitlines()[-1][:200]}" if said else ""
    if process.returncode < 0 or "MemoryError" in last:
        how = f"signal {-process.returncode}" if process.returncode < 0 else "Python"
        return _too_much(sql, gigabytes, f"{how}{last}")
    return CrlError(
        f"the process of the query ended with exit code {process.returncode}{last}",
        expected="rows, or an error of the query",
        next_step="`crl doctor` looks at the installation",
    )


def _too_much(sql: str, gigabytes: float, how: str) -> BadInput:
    return BadInput(
        f"the query needs more than {gigabytes:g} GB of memory ({how})",
        expected="a query that takes less",
        where=sql.strip()[:200],
        next_step="narrow it (WHERE round = …, fewer columns), or allow more: --memory GB",
    )


def main() -> None:
    """Answer the question on the standard input, one JSON object a line: names, rows, and the end or the error."""
    out = sys.stdout
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_asker, daemon=True).start()
    memory = int(order["memory"])
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (memory + _BESIDE, memory + _BESIDE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def tell(told: dict[str, Any]) -> None:
        out.write(json.dumps(told, default=str) + "\n")
        out.flush()

    runs = [Path(run) for run in order["runs"]]
    try:
        with answering(runs, order["sql"], until=order["until"], memory=memory) as (names, batches):
            tell({"names": names})
            for rows in batches:
                tell({"rows": [[_plain(value) for value in row] for row in rows]})
        tell({"end": True})
    except CrlError as error:
        tell({"error": error.payload()})
    except MemoryError:
        tell({"error": _too_much(order["sql"], memory / _GIGABYTE, "Python").payload()})
    out.flush()
    os._exit(0)  # threads of DuckDB that still work on what nobody wants are not waited for


def _plain(value: Any) -> Any:
    """A value as JSON has it; keys of a map are texts."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _end_with_asker() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
