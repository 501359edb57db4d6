"""Durations as people read them."""

from durations.units import NAMES, UNITS

_SHOWN = ("w", "d", "h", "m", "s")


def format_duration(seconds: float, parts: int | None = None, zeros: bool = False) -> str:
    """Weeks to seconds, such as `1h 30m`; whole seconds, halves rounded up.

    With `parts`, at most so many are shown, counted from the largest that is not zero, and the rest is rounded to the
    last one shown. `zeros` shows zero parts between the first and the last too. Zero is `0s`.
    """
    if parts is not None and parts < 1:
        raise ValueError("parts must be at least 1")
    sign = "-" if seconds < 0 else ""
    whole = int(abs(seconds) + 0.5)
    if whole == 0:
        return "0s"
    if parts is not None:
        whole = _rounded(whole, parts)
    counts = _counts(whole)
    first = next(index for index, (_, count) in enumerate(counts) if count)
    last = max(index for index, (_, count) in enumerate(counts) if count)
    shown = [f"{count}{unit}" for unit, count in counts[first : last + 1] if count or zeros]
    return sign + " ".join(shown)


def humanize(seconds: float) -> str:
    """The duration in its largest unit, rounded half up: `1 day`, `2 minutes`; below half a second, `now`."""
    size = abs(seconds)
    if size < 0.5:
        return "now"
    unit = next((unit for unit in _SHOWN if size >= UNITS[unit]), "s")
    count = int(size / UNITS[unit] + 0.5)
    larger = _SHOWN.index(unit) - 1
    if larger >= 0 and count * UNITS[unit] >= UNITS[_SHOWN[larger]]:
        unit, count = _SHOWN[larger], 1
    return f"{count} {NAMES[unit]}{'' if count == 1 else 's'}"


def _counts(whole: int) -> list[tuple[str, int]]:
    counts = []
    for unit in _SHOWN:
        count, whole = divmod(whole, int(UNITS[unit]))
        counts.append((unit, count))
    return counts


def _rounded(whole: int, parts: int) -> int:
    """Rounded half up to the last of so many parts."""
    first = next(index for index, (_, count) in enumerate(_counts(whole)) if count)
    step = int(UNITS[_SHOWN[min(first + parts, len(_SHOWN)) - 1]])
    return (whole + step // 2) // step * step
