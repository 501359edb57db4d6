"""Rows for people: a table where it fits, else one record per row, with one line per column. No word is ever broken.

Ids, numbers and commands have to be whole, to be compared and copied. So only a column of words wraps, and only between
words; where that is not enough the table is turned on its side. Without a terminal nothing wraps at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_GAP = 2
"""Spaces between columns."""
_READABLE = 28
"""A column of words is never made narrower than this to keep the form of a table."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of a few columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Cells are `Text`, or become it as they are."""
    words: Collection[str] = field(default_factory=frozenset)
    """Columns that may wrap between words."""
    right: Collection[str] = field(default_factory=frozenset)
    """Columns that are set to the right: numbers."""
    title: str = ""
    packed: bool = False
    """Whether a record has several short columns on one line, where the table does not fit."""

    def __post_init__(self) -> None:
        from rich.text import Text

        rows = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in self.rows]
        object.__setattr__(self, "rows", rows)

    def natural_width(self) -> int:
        """Columns of a terminal that the table takes with nothing wrapped."""
        return sum(self._natural()) + _GAP * (len(self.columns) - 1)

    def rendered(self, width: int | None) -> RenderableType:
        """The rows for a terminal of this width; for None, a table in which nothing wraps."""
        natural = self._natural()
        room = None if width is None else width - _GAP * (len(self.columns) - 1)
        if room is None or sum(natural) <= room:
            return self._table(natural)
        narrow = [
            min(wide, max(_READABLE, self._longest_word(place))) if name in self.words else wide
            for place, (name, wide) in enumerate(zip(self.columns, natural, strict=True))
        ]
        if sum(narrow) <= room:
            return self._table(_widened(narrow, natural, room))
        assert width is not None
        return self._records(width)

    def _natural(self) -> list[int]:
        from rich.cells import cell_len

        widths = []
        for place, name in enumerate(self.columns):
            lines = [line for row in self.rows for line in row[place].plain.split("\n")]
            widths.append(max(map(cell_len, [name, *lines])))
        return widths

    def _longest_word(self, place: int) -> int:
        from rich.cells import cell_len

        words = [self.columns[place], *(word for row in self.rows for word in row[place].plain.split())]
        return max(map(cell_len, words))

    def _table(self, widths: Sequence[int]) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title or None, title_justify="left", box=None, header_style="bold", pad_edge=False,
                      padding=(0, _GAP, 0, 0))  # fmt: skip
        for name, wide in zip(self.columns, widths, strict=True):
            justify = "right" if name in self.right else "left"
            table.add_column(Text(name), justify=justify, width=wide, no_wrap=name not in self.words)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*row)
        return table

    def _records(self, width: int) -> Text:
        from rich.text import Text

        said = [Text(self.title, style="italic")] if self.title else []
        for number, row in enumerate(self.rows):
            if number:
                said.append(Text(""))
            said += self._packed(row, width) if self.packed else self._spread(row, width)
        return Text("\n").join(said)

    def _spread(self, row: Sequence[Text], width: int) -> list[Text]:
        """One line per column, values below each other."""
        from rich.text import Text

        label = max(map(len, self.columns)) + _GAP
        lines = []
        for name, cell in zip(self.columns, row, strict=True):
            for place, line in enumerate(_wrapped(cell, width - label)):
                head = Text(f"{name if place == 0 else '':<{label}}", style="bold")
                lines.append(head + line if line.plain else Text(head.plain.rstrip(), style="bold"))
        return lines

    def _packed(self, row: Sequence[Text], width: int) -> list[Text]:
        """As many short values per line as fit, each with its name; then what is in words, indented."""
        from rich.text import Text

        lines, texts = [Text("")], []
        for name, cell in zip(self.columns, row, strict=True):
            if name in self.words:
                texts += [Text(" " * 2 * _GAP) + line for line in _wrapped(cell, width - 2 * _GAP)]
                continue
            piece = Text(f"{name} ", style="bold") + cell
            if lines[-1].plain and lines[-1].cell_len + _GAP + piece.cell_len > width:
                lines.append(Text(""))
            lines[-1] = lines[-1] + Text(" " * _GAP) + piece if lines[-1].plain else piece
        return [*lines, *texts]


def _wrapped(cell: Text, width: int) -> list[Text]:
    """The lines of a cell, each broken between words where it is too long; a word that is too long stays whole."""
    from rich.cells import cell_len
    from rich.text import Text

    lines = []
    for line in cell.split("\n", allow_blank=True):
        while cell_len(line.plain) > width:
            space = line.plain.rfind(" ", 1, max(width, 1) + 1)
            if space < 0:
                space = line.plain.find(" ", 1)
            if space < 0:
                break
            lines.append(line[:space])
            line = line[space + 1 :]
        lines.append(line)
    return lines or [Text("")]


def _widened(narrow: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Widths between the two that together take the room: columns of words share what is left, the narrowest first."""
    widths = list(narrow)
    while sum(widths) < room:
        growing = [place for place, wide in enumerate(widths) if wide < natural[place]]
        if not growing:
            break
        widths[min(growing, key=lambda place: widths[place])] += 1
    return widths
