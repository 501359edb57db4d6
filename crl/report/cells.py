"""Figures as the cells of a round's tables have them; a dash where a round has none."""

from __future__ import annotations

from crl.report.rates import NOTHING


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
