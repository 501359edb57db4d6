"""Generated bug-fix tasks: each a library with one bug made by a mutation, in one of many dresses.

A variant is a number. The bugs that `data/swe/variants` lists are gone through in a fixed order, all libraries mixed,
once per dress; so the first `bugs(split)` variants are different bugs, and all of them differ in content. Each is
verified: its tests were run when the list was made (data.swe.mutations.bugs).

    variants = Variants("train")
    variants[5].row()             # the same on every machine
    variants.draw(64, seed=7)     # 64 different ones
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from types import MappingProxyType
from typing import cast

from crl.errors import BadInput
from crl.paths import quoted
from crl.worlds.swe.dressing import dressed, dresses, renamer
from crl.worlds.swe.library import Library, Split, libraries
from crl.worlds.swe.shipped import Kind, Level, Task
from data.swe.mutations.reports import report_of, statement
from data.swe.mutations.trials import Observation
from data.swe.mutations.bugs import Known, digest_of, index_file

_MARK = "-v"


class Variants:
    """The variants of a split, of a level and a kind of bug where these are named: tasks, made when asked for."""

    def __init__(self, split: Split = "train", level: Level | None = None, kind: Kind | None = None) -> None:
        bugs = [
            (name, number)
            for name, library in libraries().items()
            if library.split == split
            for number, bug in enumerate(known_bugs(name))
            if level in (None, bug.level) and kind in (None, bug.kind)
        ]
        if not bugs:
            raise BadInput(
                f"there are no variants of split {split!r}, level {level!r}, kind {kind!r}",
                expected="a split, a level and a kind of bug of which there are some",
                where="crl.worlds.swe.variants",
                next_step="leave level or kind out; evaluation has the tasks written by hand alone",
            )
        random.Random("swe variants").shuffle(bugs)
        self._bugs = bugs
        self._dresses = min(dresses(libraries()[name]) for name, _ in bugs)

    @property
    def bugs(self) -> int:
        """How many different bugs there are, whatever the names of things."""
        return len(self._bugs)

    def __len__(self) -> int:
        return len(self._bugs) * self._dresses

    def __getitem__(self, number: int) -> Task:
        if not 0 <= number < len(self):
            raise IndexError(f"no variant {number} of {len(self)}")
        dress, index = divmod(number, len(self._bugs))
        return _task(*self._bugs[index], dress)

    def __iter__(self) -> Iterator[Task]:
        return (self[number] for number in range(len(self)))

    def draw(self, count: int, seed: int) -> list[Task]:
        """So many different variants."""
        return [self[number] for number in random.Random(f"swe draw {seed}").sample(range(len(self)), count)]


def variant(instance_id: str) -> Task:
    """The variant of a name such as `recency-v0012-3`. Raises BadInput for any other."""
    name, _, numbers = instance_id.partition(_MARK)
    number, _, dress = numbers.partition("-")
    known = name in libraries() and number.isdecimal() and dress.isdecimal()
    if not known or int(number) >= len(known_bugs(name)) or int(dress) >= dresses(libraries()[name]):
        raise BadInput(
            f"{instance_id!r} names no variant",
            expected="library-vNNNN-dress, such as recency-v0012-3",
            where="instance_id",
            next_step="take a name from a row",
        )
    return _task(name, int(number), int(dress))


@cache
def known_bugs(name: str) -> Sequence[Known]:
    """The bugs of a library that are listed, in order; none for one without a list."""
    place = index_file(libraries()[name])
    if not place.is_file():
        return ()
    records = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    return tuple(
        Known(**{**record, "fails": tuple(record["fails"]), "visible": tuple(record["visible"])}) for record in records
    )


def _task(name: str, number: int, dress: int) -> Task:
    plain, bug = libraries()[name], known_bugs(name)[number]
    broken = bug.applied(plain.files[bug.path])
    if digest_of(broken) != bug.digest:
        raise BadInput(
            f"the list of bugs of {name} is older than its code: {bug.path} differs",
            expected="a list made from the library as it is",
            where=str(index_file(plain)),
            next_step=f"python -m data.swe.mutations.bugs {quoted(name)}",
        )
    instance_id = f"{name}{_MARK}{number:04d}-{dress}"
    renamed = renamer(plain, dress)
    judging = next(iter(plain.judging))
    return Task(
        instance_id=instance_id,
        library=dressed(name, dress),
        level=cast(Level, bug.level),
        kind=cast(Kind, bug.kind),
        statement=renamed(_statement(plain, bug, instance_id)),
        broken=MappingProxyType({renamed(bug.path): renamed(broken)}),
        fail_to_pass=tuple(f"{judging}::{test}" for test in bug.fails),
        visible_failures=bug.visible,
    )


def _statement(library: Library, bug: Known, seed: str) -> str:
    found = [report_of(library, test, Observation(index, how, got)) for test, index, how, got in bug.seen]
    return statement([report for report in found if report is not None], library.name, seed)
