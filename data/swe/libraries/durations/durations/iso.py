"""The durations of ISO 8601: `P3DT4H30M`. Years and months have no fixed length and are refused."""

import re

from durations.parse import DurationError
from durations.units import UNITS

_ISO = re.compile(
    r"(?P<sign>[-+])?P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?P<time>T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:[.,]\d+)?)S)?)?"
)


def parse_iso(text: str) -> float:
    """Seconds of a duration in the form of ISO 8601. A comma may be the decimal point. Raises DurationError."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        raise DurationError(f"no ISO duration: {text!r}")
    given = {unit: match[unit] for unit in "wdhms" if match[unit] is not None}
    if not given or match["time"] == "T":
        raise DurationError(f"an ISO duration without a part: {text!r}")
    total = sum(float(number.replace(",", ".")) * UNITS[unit] for unit, number in given.items())
    return -total if match["sign"] == "-" else total


def to_iso(seconds: float) -> str:
    """The shortest such text with days as its largest unit; zero is `PT0S`."""
    sign = "-" if seconds < 0 else ""
    left = abs(seconds)
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    date = f"{int(days)}D" if days else ""
    time = f"{int(hours)}H" if hours else ""
    time += f"{int(minutes)}M" if minutes else ""
    time += f"{left:.6f}".rstrip("0").rstrip(".") + "S" if left else ""
    if not date and not time:
        return "PT0S"
    return f"{sign}P{date}" + (f"T{time}" if time else "")
