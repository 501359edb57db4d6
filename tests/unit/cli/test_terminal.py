"""What commands print on a terminal of 80 columns, through a pseudo-terminal: rows whole, and longer ones paged."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

from crl.report.views import query
from tests.marks import sampled
from tests.tiny_run import ROOT

pytestmark = pytest.mark.slow


def on_a_terminal(*arguments: str, columns: int = 80, lines: int = 24, pager: str = "cat") -> list[str]:
    """The lines of `crl …`, without their colors."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - another process
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "crl", *arguments],
                  {**environment, "TERM": "xterm", "PAGER": pager, "PYTHONPATH": str(ROOT)})  # fmt: skip
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so at the end of a pseudo-terminal
            break
        if not piece:
            break
        said += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r", "").splitlines()


def test_a_wide_result_is_turned_on_its_side_with_every_id_whole(finished: Path) -> None:
    lines = on_a_terminal("sql", str(finished), "FROM evaluations ORDER BY evaluation_id")
    ids = [name for (name,) in query(finished, "SELECT evaluation_id FROM evaluations ORDER BY 1")[1]]
    assert [line.split()[1] for line in lines if line.startswith("evaluation_id ")] == ids
    assert lines[-1] == f"{len(ids)} rows" and max(map(len, lines)) <= 80


def test_a_narrow_result_is_a_table(finished: Path) -> None:
    lines = on_a_terminal(
        "sql", str(finished), "SELECT round, condition, won, games, low, high FROM success_by_condition"
    )
    assert lines[0].split() == ["round", "condition", "won", "games", "low", "high"] and lines[1].split()[1] == "random"


def test_what_is_longer_than_the_terminal_goes_to_the_pager(finished: Path) -> None:
    told = "SELECT round FROM turns WHERE round > 0 ORDER BY round"
    count = query(finished, "SELECT count(*) FROM turns WHERE round > 0")[1][0][0]
    assert count > 40
    assert on_a_terminal("sql", str(finished), told, pager="head -3") == ["round", "    1", "    1", f"{count} rows"]
    assert len(on_a_terminal("sql", str(finished), told, lines=count + 10, pager="head -3")) == count + 2


@pytest.mark.parametrize("columns", sampled([60, 80, 120], 3))
def test_the_bank_is_listed_with_every_id_on_one_line(finished: Path, columns: int) -> None:
    lines = on_a_terminal("bank", "show", str(finished), columns=columns)
    ids = [name for (name,) in query(finished, "SELECT entry_id FROM bank_at(latest_round())")[1]]
    words = {word for line in lines for word in line.split()}
    assert ids and set(ids) <= words
