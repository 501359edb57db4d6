"""Which runs are seeds of one method, and what a row of a table is called.

Two runs are seeds of one method where their methods are equal but for the seed: `method.seed`, and whatever else takes
its value in each of them (a study gives an environment's `world` the seed too). Whoever names a row says so themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crl.config import Method
from crl.lab.table.read import RunResults


@dataclass(frozen=True)
class Group:
    """The runs of one row."""

    label: str
    runs: tuple[RunResults, ...]


def grouped(runs: Sequence[tuple[str | None, RunResults]]) -> list[Group]:
    """Rows in the order of their first runs, from (name of the row or None, run)."""
    rows: list[tuple[str | None, list[RunResults]]] = []
    for label, run in runs:
        for other, members in rows:
            alike = label is None and all(same_but_seed(run.method, each.method) for each in members)
            if other == label and (label is not None or alike):
                members.append(run)
                break
        else:
            rows.append((label, [run]))
    return _told_apart([Group(label or _label(members), tuple(members)) for label, members in rows])


def same_but_seed(one: Method, other: Method) -> bool:
    """Whether two methods differ in their seeds and in nothing else: in `seed`, and in what has its value in an
    environment. Equal seeds are no two seeds."""
    if one.seed == other.seed:
        return False
    mine, theirs = (each.model_dump(mode="json", exclude={"seed"}) for each in (one, other))
    my_worlds, their_worlds = ([family.pop("environment") for family in each["families"]] for each in (mine, theirs))
    return mine == theirs and equal_but_seed(my_worlds, their_worlds, one.seed, other.seed)


def equal_but_seed(one: Any, other: Any, seed: int, other_seed: int) -> bool:
    """Whether two values of JSON are equal, where a number may also be the seed of its own side."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_but_seed(one[key], other[key], seed, other_seed) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            equal_but_seed(mine, theirs, seed, other_seed) for mine, theirs in zip(one, other, strict=True)
        )
    if type(one) is not type(other):
        return False
    return bool(one == other) or (type(one) is int and (one, other) == (seed, other_seed))


def _label(runs: Sequence[RunResults]) -> str:
    """The name of the run; of several the name without its seed: `study-baseline` of `study-baseline-s101`."""
    if len(runs) == 1:
        return runs[0].name
    stems = {re.sub(rf"[-_]?s?{run.method.seed}$", "", run.name) for run in runs}
    stem = stems.pop()
    return stem if stem and not stems else f"{runs[0].name} and {len(runs) - 1} more"


def _told_apart(groups: Sequence[Group]) -> list[Group]:
    """Rows that would have one name are called by where their first run is."""
    labels = [group.label for group in groups]
    return [Group(str(group.runs[0].path), group.runs) if labels.count(group.label) > 1 else group for group in groups]
