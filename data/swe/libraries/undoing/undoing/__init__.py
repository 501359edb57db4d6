"""Undo and redo."""

from undoing.history import Edit, History
from undoing.text import TextBuffer

__all__ = ["Edit", "History", "TextBuffer"]
