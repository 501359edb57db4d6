"""The console of every command: what it is given is shown as it is.

Apart from `shared.py`, as rich is slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from crl.report.terminal import Listing
from crl.text.unicode import UNSEEN, escaped


class PlainConsole(Console):
    """A console that escapes control characters. Its own colors and movements of the cursor are not touched."""

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich; escaped before, as rich drops some characters without a word."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that is printed comes through here, also the cells of a table."""
        shown = escaped_text(renderable) if isinstance(renderable, Text) else renderable
        for segment in super().render(shown, options):
            if segment.control or not UNSEEN.search(segment.text):
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)


def escaped_text(text: Text) -> Text:
    """The text with control characters escaped, and its styles around them."""
    places = sorted({place for found in UNSEEN.finditer(text.plain) for place in found.span()})
    if not places:
        return text
    made = text.blank_copy()
    for part in text.divide(places):
        made.append_text(Text(escaped(part.plain)) if UNSEEN.search(part.plain) else part)
    return made


def escaped_listing(listing: Listing) -> Listing:
    """The listing with its cells escaped: columns are measured before they are printed."""
    rows = [[escaped_text(cell) for cell in row] for row in listing.rows]
    return replace(listing, columns=[escaped(name) for name in listing.columns], rows=rows)
