"""What things are called: `Cabinet_bar__minus_00_dot_51…` is `cabinet 3`.

Things of one class are numbered from 1 against the order of their ids, as the `alfworld` package does it: the last id
of a class is its number 1. A basin has an id that ends with the name of its sink or bathtub's basin, and is a class of
its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_CODED = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))


def names_of(ids: Iterable[str]) -> dict[str, str]:
    """The name of every id. An id without a position has no number, and a blank after its name."""
    ordered = sorted(ids)
    classes = {each: _class(each) for each in ordered}
    left = Counter(name for name in classes.values() if name is not None)
    names: dict[str, str] = {}
    for each in ordered:
        name = classes[each]
        if name is None:
            names[each] = f"{_decoded(each)} "
            continue
        names[each] = f"{name} {left[name]}"
        left[name] -= 1
    return names


def _class(each: str) -> str | None:
    name, bar, _ = each.partition("_bar_")
    if not bar:
        return None
    return f"{name}basin" if "basin" in each else name


def _decoded(each: str) -> str:
    for code, sign in _CODED:
        each = each.replace(code, sign)
    return each
