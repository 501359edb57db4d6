"""Patterns for paths."""

from globs.braces import expand
from globs.ignore import Ignore
from globs.matcher import Matcher
from globs.parts import PatternError

__all__ = ["Ignore", "Matcher", "PatternError", "expand"]
