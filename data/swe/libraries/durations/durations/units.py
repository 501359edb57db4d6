"""Units of time, from large to small."""

UNITS: dict[str, float] = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""Seconds of a unit."""

NAMES: dict[str, str] = {"w": "week", "d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond"}

ORDER = list(UNITS)


def unit_of(word: str) -> str | None:
    """The unit that a word names: its letter or its name in singular or plural, in any case. None if there is none."""
    word = word.lower()
    if word in UNITS:
        return word
    for unit, name in NAMES.items():
        if word in (name, name + "s"):
            return unit
    return None
