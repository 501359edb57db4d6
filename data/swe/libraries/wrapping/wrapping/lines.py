"""Break text into lines."""

import re

_HYPHEN = re.compile(r"(?<=[^\W\d_]-)(?=[^\W\d_])")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


def wrap(text: str, width: int, indent: str = "", hang: str = "", hyphens: bool = True) -> list[str]:
    """The lines of a text, none longer than `width`.

    `indent` is put in front of the first line of each paragraph, `hang` in front of its others. Paragraphs are
    separated by one empty line. `hyphens`: words may break behind a hyphen. An empty text has no lines.
    """
    if width <= max(len(indent), len(hang)):
        raise ValueError("width must be larger than the indents")
    lines: list[str] = []
    for paragraph in _PARAGRAPH.split(text.strip()):
        if not paragraph:
            continue
        if lines:
            lines.append("")
        lines += _paragraph(paragraph.split(), width, indent, hang, hyphens)
    return lines


def _paragraph(words: list[str], width: int, indent: str, hang: str, hyphens: bool) -> list[str]:
    lines: list[str] = []
    line, empty = indent, True
    for word in words:
        pieces = _HYPHEN.split(word) if hyphens else [word]
        glue = "" if empty else " "
        for piece in pieces:
            if len(line) + len(glue) + len(piece) > width and not empty:
                lines.append(line)
                line, glue, empty = hang, "", True
            room = width - len(line) - len(glue)
            while len(piece) > room:
                lines.append(line + glue + piece[:room])
                piece = piece[room:]
                line, glue = hang, ""
                room = width - len(line)
            line += glue + piece
            glue, empty = "", False
    lines.append(line)
    return lines
