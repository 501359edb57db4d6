"""Lines of a process's output: complete when its mark has come, whatever stands before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from crl.engine.process import ProcessOutput

ROOT = Path(__file__).parents[3]
WRITER = r"""
import os, sys
from crl.engine.process import mark_end
print("first\rsecond\n\n", flush=True)
sys.stdout.write("kept back")
mark_end(1)
sys.stdin.readline()
os.write(2, b"error without end")
mark_end(2)
sys.stdin.readline()
os.close(1)
mark_end(3)
"""


def test_every_line_before_the_mark_was_told() -> None:
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        output = ProcessOutput(process.stdout, told.append)
        for job, expected in enumerate([["first", "second", "kept back"], ["error without end"], []], start=1):
            output.wait_for(job, 600)  # the third mark never comes: the end of the output does
            assert told == expected
            assert output.last(1) == expected[-1:] or not expected
            told.clear()
            if job < 3:
                process.stdin.write(b"\n")
                process.stdin.flush()


def test_a_watcher_that_breaks_does_not_stop_the_reading() -> None:
    with subprocess.Popen([sys.executable, "-c", "print('a' * 5000); print('b')"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = ProcessOutput(process.stdout, lambda text: 1 / 0)
        output.join(600)
    assert [len(line) for line in output.last(5)] == [2000, 1]
