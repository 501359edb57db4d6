"""Reading YAML that a person wrote: what is too deep, too large, or no value at all is an error with a line.

PyYAML alone ends such a text with RecursionError or ValueError, or expands nested aliases until the memory is full.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from crl.limits import DEEPEST

_MOST_NODES = 100_000
"""Values, with those behind an alias counted each time."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_AMBIGUOUS = re.compile(r"[-+]?(0[0-7_]+$|[0-9_]+:)")
_MERGE = "tag:yaml.org,2002:merge"
_MOST_NUMBER = 2**63
"""Whole numbers are smaller: the tables of a run hold 64 bits."""


def read_value(text: str) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's safe loader with limits, where a key that is there twice is an error.

    `1e-4` is a number, as in YAML 1.2, not text for want of a point (1.1). What both read as different values is
    refused: `010` (8 in YAML 1.1, 10 in 1.2) and `1:30:00` (5400 or text).
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node, counted. Aliases count as much as what they stand for."""
        event, before = self.peek_event(), self._nodes
        if self._depth == DEEPEST:
            raise _refused(f"found more than {DEEPEST} levels of nesting", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        assert node is not None
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:  # still being read
                raise _refused(f"found the alias {event.anchor!r} inside its own definition", event)
            self._nodes += self._sizes[id(node)]
        else:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
        if self._nodes > _MOST_NODES:
            raise _refused(f"found more than {_MOST_NODES:,} values; aliases count each time", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as it is written. Keys of a merge (`<<`) come in later, and give way to its own as ever."""
        node = super().compose_mapping_node(anchor)
        first: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # no mapping of ours can have it
            key = "<<" if key_node.tag == _MERGE else self.construct_object(key_node)
            if first.setdefault(key, key_node) is not key_node:
                line = first[key].start_mark.line + 1
                raise _refused(f"found the key {str(key)[:40]!r} twice, first in line {line}", key_node)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node. What looks like a number or a date and is none is an error with a line."""
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and _AMBIGUOUS.match(node.value):
            raise _refused(f"found {node.value[:40]!r}, a number that versions of YAML read differently: write a plain "
                           "one, or put a text in quotes", node)  # fmt: skip
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"found {str(node.value)[:40]!r}, which cannot be read as {kind}", node) from None
        if type(value) is int and not -_MOST_NUMBER <= value < _MOST_NUMBER:
            raise _refused(f"found {str(node.value)[:40]!r}, a whole number of more than 64 bits", node)
        return value


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _refused(found: str, place: yaml.Node | yaml.Event) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, found, place.start_mark)
