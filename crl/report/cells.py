"""Metrics as people read them: shares, differences, counts, durations; a dash where there is none.

Light: the command line imports it to start.
"""

from __future__ import annotations

NOTHING = "–"
"""What is written where there is nothing to tell."""


def words(name: str) -> str:
    """A name of the code as people write it: `share malformed`."""
    return name.replace("_", " ")


def cut(text: str, most: int) -> str:
    """A text up to so many characters; a longer one says how long it is."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text)} characters)"


def percent(value: float | None) -> str:
    """A share: `12.5 %`."""
    return NOTHING if value is None else f"{100 * value:.3g} %"


def signed(value: float | None) -> str:
    """A difference, with its sign: `+0.11`."""
    return NOTHING if value is None else f"{value:+.3g}"


def count(value: float | None) -> str:
    """A whole number: `24`."""
    return NOTHING if value is None else f"{value:.0f}"


def plain(value: float | None) -> str:
    """Three digits: `0.503`."""
    return NOTHING if value is None else f"{value:.3g}"


def seconds_text(seconds: float) -> str:
    """A duration as people read it: 8 s, 2 min 05 s, 1 h 12 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
