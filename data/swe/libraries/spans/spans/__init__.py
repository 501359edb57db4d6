"""Sets of whole numbers as spans."""

from spans.spanset import SpanSet
from spans.text import parse_spans

__all__ = ["SpanSet", "parse_spans"]
