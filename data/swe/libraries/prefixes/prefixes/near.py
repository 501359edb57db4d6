"""Words at a small distance, row by row of the table of distances, one row per node."""

from prefixes.node import Node


def near(root: Node, word: str, distance: int) -> list[str]:
    """Words below `root` at most so far from `word`, in no order. Branches that are too far are not entered."""
    found: list[str] = []
    first = list(range(len(word) + 1))
    if root.is_word and first[-1] <= distance:
        found.append("")
    waiting = [(letter, child, first) for letter, child in root.children.items()]
    while waiting:
        prefix, node, above = waiting.pop()
        row = _row(word, prefix[-1], above)
        if node.is_word and row[-1] <= distance:
            found.append(prefix)
        if min(row) <= distance:
            waiting += [(prefix + letter, child, row) for letter, child in node.children.items()]
    return found


def _row(word: str, letter: str, above: list[int]) -> list[int]:
    """Distances of one letter more to each beginning of `word`."""
    row = [above[0] + 1]
    for column, other in enumerate(word, start=1):
        changed = above[column - 1] + (other != letter)
        row.append(min(changed, above[column] + 1, row[column - 1] + 1))
    return row
