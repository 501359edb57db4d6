"""Output of a command, kept in bounded memory: its beginning and its end, with a note where the middle was."""

from __future__ import annotations

from collections import deque

from crl.text.unicode import valid_text

_WIDEST = 4
"""Most bytes of a character."""


class Output:
    """Bytes as they come; at most `longest` characters of them are shown."""

    def __init__(self, longest: int) -> None:
        self._longest, self._room = longest, longest * _WIDEST
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0
        """Bytes so far."""

    def add(self, piece: bytes) -> None:
        """Take what was written; what is in the middle is forgotten."""
        self.total += len(piece)
        fits = self._room - len(self._head)
        if fits > 0:
            self._head += piece[:fits]
            piece = piece[fits:]
        if piece:
            self._tail.append(piece[-self._room :])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= self._room:
                self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """What is shown. Bytes that are no UTF-8 are U+FFFD."""
        tail = b"".join(self._tail)
        left_out = self.total - len(self._head) - len(tail)
        if left_out == 0:
            return cut(_decoded(bytes(self._head) + tail), self._longest)
        half = self._longest // 2
        first, last = _decoded(bytes(self._head))[:half], _decoded(tail)[-half:]
        return f"{first}\n[… about {self.total - len(first) - len(last)} characters left out …]\n{last}"


def cut(text: str, longest: int) -> str:
    """A text of at most `longest` characters and a note: its middle is left out where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[len(text) - half :]}"


def _decoded(content: bytes) -> str:
    return valid_text(content.decode("utf-8", errors="replace"))
