"""A node of the tree: one letter further than its parent."""

from typing import Any

ABSENT: Any = object()
"""The value of a node at which no word ends."""


class Node:
    """`size` is the number of words at and below the node."""

    __slots__ = ("children", "size", "value")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.value: Any = ABSENT
        self.size = 0

    @property
    def is_word(self) -> bool:
        return self.value is not ABSENT
