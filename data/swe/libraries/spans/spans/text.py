"""Spans as people write them: `1-3,7`. Both ends are part of a span."""

import re

from spans.spanset import SpanSet

_PART = re.compile(r"(-?\d+)(?:\s*-\s*(-?\d+))?")


def parse_spans(text: str) -> SpanSet:
    """The set that a text names. Parts are separated by commas, in any order; blanks are allowed, an empty text too.

    Raises ValueError for a part that is no number and no span, and for one whose end is before its start.
    """
    found = SpanSet()
    if not text.strip():
        return found
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"no span: {part.strip()!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"the span {part.strip()!r} ends before it starts")
        found.add(first, last + 1)
    return found


def format_spans(spans: SpanSet) -> str:
    """The text of a set, which `parse_spans` reads back; a span of one number is that number."""
    parts = []
    for start, stop in spans:
        parts.append(str(start) if stop - start == 1 else f"{start}-{stop - 1}")
    return ",".join(parts)
