"""What a child process writes to its standard output and error: read line by line, and known when it is complete.

Lines and answers of an engine come in two ways, and a line may lag behind the answer to the job that wrote it. So a
worker ends the output of a job with a mark, and the supervisor waits for it: a line is passed on while its stage, and
its part, still run.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

_MARK = "\x1e"
"""ASCII's record separator: text has no use for it."""
_LINES_KEPT = 60
LINE_LENGTH = 2000
"""What is kept of a line."""

OnLine = Callable[[str], None]


def mark_end(number: int) -> None:
    """In the worker, whose `number`-th job is done: the mark comes after everything it wrote."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whatever a stage put in their place
            stream.flush()
    with contextlib.suppress(OSError):  # closed by a stage: then there is nothing to wait for
        os.write(1, f"\n{_MARK}{number}\n".encode())


class ProcessOutput:
    """Reads the output of one process in a thread until it ends, keeps its last lines and hands every line on."""

    def __init__(self, stream: IO[bytes], on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._marked = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(stream,), name="process-output", daemon=True)
        self._reader.start()

    def last(self, count: int) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)[-count:]

    def tell(self, text: str) -> None:
        """Keep the beginning of a line and hand it on whole."""
        self._lines.append(text[:LINE_LENGTH])
        if self._on_line is not None:
            with contextlib.suppress(Exception):  # whoever watches must not stop the reading
                self._on_line(text)

    def wait_for(self, number: int, seconds: float) -> None:
        """Until every line of the job of this number was handed on, the output ended, or this many seconds passed."""
        with self._news:
            self._news.wait_for(lambda: self._marked >= number, seconds)

    def join(self, seconds: float) -> None:
        """Until the output has ended, or this many seconds passed: a child that lives on may hold it open."""
        self._reader.join(seconds)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for content in stream:
                for text in re.split(r"[\r\n]+", content.decode(errors="replace")):
                    if text.startswith(_MARK) and text[1:].isdecimal():
                        self._pass(int(text[1:]))
                    elif text.strip():
                        self.tell(text)
        self._pass(sys.maxsize)

    def _pass(self, number: int) -> None:
        with self._news:
            self._marked = number
            self._news.notify_all()
