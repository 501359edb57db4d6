"""Justified paragraphs and columns."""

from collections.abc import Sequence

from wrapping.lines import wrap


def fill_justified(text: str, width: int) -> str:
    """Lines of exactly `width`, but for the last of each paragraph and those of a single word.

    Blanks that are left over go to the gaps from the left, one each.
    """
    lines = wrap(text, width, hyphens=False)
    for index, line in enumerate(lines):
        ends = index + 1 == len(lines) or not lines[index + 1]
        if not ends:
            lines[index] = _justified(line, width)
    return "\n".join(lines)


def _justified(line: str, width: int) -> str:
    words = line.split(" ")
    gaps = len(words) - 1
    if gaps < 1:
        return line
    each, extra = divmod(width - sum(map(len, words)), gaps)
    parts = []
    for index, word in enumerate(words[:-1]):
        parts.append(word + " " * (each + (1 if index < extra else 0)))
    return "".join(parts) + words[-1]


def columns(items: Sequence[str], width: int, gap: int = 2) -> str:
    """Items in as many columns of equal width as fit, read downwards; at least one column.

    All columns but the last are as wide as the longest item and the gap. An item that is longer than the width is
    not cut.
    """
    if width < 1 or gap < 0:
        raise ValueError("width must be positive and gap not negative")
    if not items:
        return ""
    cell = max(len(item) for item in items)
    count = max(1, (width + gap) // (cell + gap))
    height = -(-len(items) // count)
    rows = []
    for row in range(height):
        cells = items[row::height]
        rows.append("".join(item.ljust(cell + gap) for item in cells).rstrip())
    return "\n".join(rows)
