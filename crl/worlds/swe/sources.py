"""Where the tasks of a config come from: rows of a file over local clones, or the tasks that ship."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from crl.paths import possible_path
from crl.worlds.swe.library import DATA
from crl.worlds.swe.repository import Clones, remove
from crl.worlds.swe.rows import Row, load_rows
from crl.worlds.swe.settings import SweSettings
from crl.worlds.swe.shipped import Level, Task, materialize
from crl.worlds.swe.shipped import shipped_tasks as all_tasks
from crl.worlds.swe.shipped import tasks as shipped_tasks
from crl.worlds.swe.tasks import Tasks, split
from crl.worlds.swe.variants import Variants, variant

WHERE = "method.families[].environment."
_ONE_OF = 4


@dataclass(frozen=True, slots=True)
class Source:
    """Tasks, and what an environment has to know of them."""

    tasks: Tasks
    repository: Callable[[Row], Path]
    """The git directory of a row's repository."""
    hidden: tuple[Path, ...]
    """What no command may read."""
    cache: Path
    """Where trees of repositories are kept."""
    lasting: bool
    """Whether they are kept for the next run: not those of tasks that are made by the thousand."""
    shipped: Path | None = None
    """Where repositories of tasks that ship are written; None: those of rows are the user's."""

    def forget(self, but: Iterable[Row]) -> None:
        """Remove repositories that were written, but those of some rows."""
        kept = {f"{row.instance_id}.git" for row in but}
        for place in [] if self.shipped is None else list(self.shipped.glob("*.git")):
            if place.name not in kept:
                remove(place)


class Mixed(Sequence[Row]):
    """Rows of training tasks that ship: of four, one is written by hand and three are generated, where there are both.

    A row is made when it is asked for: there are millions.
    """

    def __init__(self, written: Sequence[Task], generated: Variants | None) -> None:
        self._written, self._generated = written, generated
        both = len(written) > 0 and generated is not None
        self._every = _ONE_OF if both else 1
        self._count = _ONE_OF * len(generated) if generated is not None else len(written)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        round_, place = divmod(number, self._every)
        if self._generated is None or (self._every > 1 and place == 0):
            return self._written[round_ % len(self._written)].row()
        index = round_ * (self._every - 1) + place - 1 if self._every > 1 else number
        return self._generated[index % len(self._generated)].row()


def source_of(config: SweSettings, folder: Path) -> Source:
    """The source of a config. `folder`: for what is not kept.

    Raises BadInput where a row, a repository or a commit is missing.
    """
    tasks = tasks_of(config)
    if config.rows is None:
        shipped = folder / "shipped"
        return Source(tasks, lambda row: materialize(_task_of(row), shipped), (DATA,), folder / "cache", False, shipped)
    clones = Clones(_repositories(config, config.rows))
    found = clones.check([*tasks.training, *tasks.evaluation])
    rows = [Path(name) for name in (config.rows, config.held_out_rows) if name is not None]
    those = [each.parent if each.name == ".git" else each for each in found]
    cache = _cache(config)
    return Source(tasks, clones.of, (clones.folder, cache, *rows, *those), cache, lasting=True)


def tasks_of(config: SweSettings) -> Tasks:
    """The tasks that a config names. Raises BadInput where a row cannot be read, or a side has none."""
    if config.rows is None:
        return _shipped(config.tasks, config.level, config.held_out_from)
    rows = _rows(config.rows, f"{WHERE}rows")
    held_out = None if config.held_out_rows is None else _rows(config.held_out_rows, f"{WHERE}held_out_rows")
    return split(rows, held_out, config.held_out_from, where=f"{WHERE}rows")


@lru_cache(maxsize=32)
def _shipped(which: str, level: Level | None, held_out_from: int | None) -> Tasks:
    written = [] if which == "generated" else shipped_tasks("train", level)
    generated = None if which == "written" else Variants("train", level)
    held_out = [] if held_out_from is None else [task.row() for task in shipped_tasks("evaluation", level)]
    return Tasks(Mixed(written, generated), held_out, held_out_from)


def _task_of(row: Row) -> Task:
    written = all_tasks().get(row.instance_id)
    return variant(row.instance_id) if written is None else written


@lru_cache(maxsize=8)
def _rows(name: str, where: str) -> list[Row]:
    return load_rows(name, where=where)


def _repositories(config: SweSettings, rows: str) -> Path:
    where = f"{WHERE}repositories"
    if config.repositories is not None:
        return possible_path(config.repositories, "the repositories", where=where, home=True)
    path = possible_path(rows, "the rows", where=where, home=True)
    folder = path if path.is_dir() else path.parent
    return folder / "repos" if (folder / "repos").is_dir() else folder


def _cache(config: SweSettings) -> Path:
    name = config.cache or os.environ.get("CRL_SWE_CACHE") or "~/.cache/crl-swe"
    return possible_path(name, "the cache of trees", where=f"{WHERE}cache", home=True)
