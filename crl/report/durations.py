"""Durations in words."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """A duration as people read it: 8 s, 2 min 05 s, 1 h 12 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
