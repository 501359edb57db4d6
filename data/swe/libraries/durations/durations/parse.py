"""Read durations such as `1h 30m`, `90 seconds`, `1:30:00` and plain numbers of seconds."""

import re

from durations.units import ORDER, UNITS, unit_of

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class DurationError(ValueError):
    """Text that is no duration."""


def parse_duration(text: str) -> float:
    """Seconds of a duration. Raises DurationError.

    A clock has minutes and seconds (`2:30`) or hours, minutes and seconds (`1:02:30`); behind a larger part, minutes
    and seconds are below 60. Parts with units may be separated by blanks or commas.
    """
    body = text.strip()
    sign = 1.0
    if body[:1] in ("+", "-"):
        sign = -1.0 if body[0] == "-" else 1.0
        body = body[1:].lstrip()
    if not body:
        raise DurationError("empty duration")
    if _NUMBER.fullmatch(body):
        return sign * float(body)
    clock = _CLOCK.fullmatch(body)
    if clock:
        return sign * _clock(clock[1], clock[2], clock[3], text)
    return sign * _parts(body, text)


def _clock(hours: str | None, minutes: str, seconds: str, text: str) -> float:
    if float(seconds) >= 60 or (hours is not None and int(minutes) >= 60):
        raise DurationError(f"minutes and seconds are below 60: {text!r}")
    return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def _parts(body: str, text: str) -> float:
    total, at, last = 0.0, 0, -1
    while at < len(body):
        match = _PART.match(body, at)
        if match is None:
            raise DurationError(f"no duration: {text!r}")
        unit = unit_of(match[2])
        if unit is None:
            raise DurationError(f"unknown unit {match[2]!r} in {text!r}")
        rank = ORDER.index(unit)
        if rank == last:
            raise DurationError(f"the unit {unit!r} comes twice in {text!r}")
        if rank < last:
            raise DurationError(f"units go from large to small: {text!r}")
        total += float(match[1]) * UNITS[unit]
        last = rank
        at = match.end()
        while at < len(body) and body[at] in " ,":
            at += 1
    return total
