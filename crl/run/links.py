"""Links in the record: all of it is written in the run, and whatever a link leads to may change unseen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from crl.paths import quoted
from crl.run.directory import is_round
from crl.run.experiment_file import EXPERIMENT
from crl.run.lineage import LINEAGE
from crl.run.problem import Problem, Record, move_away

_RECORD = (EXPERIMENT, LINEAGE, "rounds", "bank", "decisions", "imports")


def links(record: Record) -> Iterator[Problem]:
    """Files, stages, rounds that are elsewhere, also where what is found there is right."""
    for path in (link for name in _RECORD for link in _links(record.run_path / name)):
        file, mend = path.relative_to(record.run_path), _copied(path)
        number, stage = None, None
        match file.parts:
            case ("rounds", name, inner) if is_round(name):
                number, stage, mend = int(name), inner, record.redo(int(name), inner)
        if not path.exists():  # there is no stage to take back, and no file to copy
            mend = move_away(record.run_path, path)
        expected, found = "no link: a record is whole in its run", f"a link to {path.readlink()}"
        yield Problem(file.as_posix(), stage, number, expected, found, mend)


def _links(place: Path) -> Iterator[Path]:
    """Links at and below a place, without following any; what attempts have not committed starts with a dot."""
    if place.is_symlink():
        yield place
        return
    for parent, directories, names in os.walk(place):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        yield from (path for name in [*directories, *sorted(names)] if (path := Path(parent, name)).is_symlink())


def _copied(link: Path) -> str:
    """The command that puts what a link leads to into its place."""
    beside = link.with_name(f"{link.name}-copied")
    return f"cp -rL {quoted(link)} {quoted(beside)} && rm {quoted(link)} && mv {quoted(beside)} {quoted(link)}"
