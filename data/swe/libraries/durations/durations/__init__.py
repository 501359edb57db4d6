"""Lengths of time as text."""

from durations.form import format_duration, humanize
from durations.iso import parse_iso, to_iso
from durations.parse import DurationError, parse_duration

__all__ = ["DurationError", "format_duration", "humanize", "parse_duration", "parse_iso", "to_iso"]
