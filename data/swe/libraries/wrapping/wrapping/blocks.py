"""Blocks of lines, and sentences cut short."""


def dedent_block(text: str) -> str:
    """Remove the blanks that all lines begin with. Lines of blanks alone become empty and do not count."""
    lines = text.split("\n")
    margin: str | None = None
    for line in lines:
        if not line.strip():
            continue
        lead = line[: len(line) - len(line.lstrip(" \t"))]
        margin = lead if margin is None else _common(margin, lead)
    cut = len(margin or "")
    return "\n".join(line[cut:] if line.strip() else "" for line in lines)


def shorten(text: str, width: int, marker: str = "[…]") -> str:
    """The text with single blanks, cut between words so that it fits with the marker behind it.

    A text that fits has no marker. Where not even one word fits, the marker is all there is.
    """
    if len(marker) > width:
        raise ValueError("the marker does not fit the width")
    words = text.split()
    whole = " ".join(words)
    if len(whole) <= width:
        return whole
    kept = ""
    for word in words:
        longer = f"{kept} {word}" if kept else word
        if len(longer) + 1 + len(marker) > width:
            break
        kept = longer
    return f"{kept} {marker}" if kept else marker


def _common(first: str, second: str) -> str:
    size = 0
    while size < min(len(first), len(second)) and first[size] == second[size]:
        size += 1
    return first[:size]
