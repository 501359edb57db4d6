"""The same library under other names: package, classes and functions renamed everywhere, in code, tests and text.

`library.yaml` lists names with others that may take their place. A dress is a number: 0 keeps all names, and each other
number below `dresses(library)` is another choice. Behavior stays as it is, so what was verified of a bug holds in every
dress.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from crl.worlds.swe.library import Files, Library, libraries


def dresses(library: Library) -> int:
    """How many dresses a library has."""
    return math.prod(len(others) + 1 for others in library.renames.values())


def renamer(library: Library, dress: int) -> Callable[[str], str]:
    """What replaces the names in a text, as whole words."""
    names, left = {}, _spread(dress, dresses(library))
    for name, others in library.renames.items():
        left, choice = divmod(left, len(others) + 1)
        if choice:
            names[name] = others[choice - 1]
    if not names:
        return lambda text: text
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    return lambda text: words.sub(lambda match: names[match[0]], text)


@lru_cache(maxsize=256)
def dressed(name: str, dress: int) -> Library:
    """A library in a dress. `name` is the one that it ships under."""
    library = libraries()[name]
    renamed = renamer(library, dress)

    def files(those: Files) -> Files:
        return MappingProxyType({renamed(path): renamed(text) for path, text in those.items()})

    return replace(library, files=files(library.files), judging=files(library.judging))


def _spread(dress: int, total: int) -> int:
    """A permutation of the numbers below `total` that keeps 0: dresses in a row differ in most names."""
    stride = int(total * 0.618) | 1
    while math.gcd(stride, total) != 1:
        stride += 2
    return dress * stride % total
