"""Where the tasks of a config come from, and which one a seed plays: rows of a file over clones, or tasks that ship."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crl.envs.levels import is_held_out
from crl.errors import BadInput
from crl.paths import possible_path
from crl.worlds.swe.library import DATA
from crl.worlds.swe.repository import Clones, write_repository
from crl.worlds.swe.rows import Row, load_rows
from crl.worlds.swe.settings import SweSettings
from crl.worlds.swe.shipped import Level, shipped_tasks
from crl.worlds.swe.shipped import tasks as tasks_that_ship

WHERE = "method.families[].environment."
_TRAINING = ("train", "training")


@dataclass(frozen=True, slots=True)
class Tasks:
    """The rows of training and those that are held out, each in its order.

    Seed s plays row s modulo their number; held-out seeds count from `held_out_from` on. So as many held-out seeds as
    there are held-out rows play each of them once.
    """

    training: Sequence[Row]
    evaluation: Sequence[Row]
    held_out_from: int | None

    def of(self, seed: int) -> Row:
        """The row of a seed."""
        if self.held_out_from is not None and seed >= self.held_out_from:
            return self.evaluation[(seed - self.held_out_from) % len(self.evaluation)]
        return self.training[seed % len(self.training)]


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


def source_of(config: SweSettings, folder: Path) -> Source:
    """The source of a config. `folder`: for what is not kept.

    Raises BadInput where a row, a repository or a commit is missing.
    """
    tasks = tasks_of(config)
    if config.rows is None:
        repository = folder / "shipped.git"
        write_repository({name: task.files for name, task in shipped_tasks().items()}, repository)
        return Source(tasks, lambda row: repository, (DATA,), folder / "cache")
    clones = Clones(_repositories(config, config.rows))
    found = clones.check([*tasks.training, *tasks.evaluation])
    rows = [Path(name) for name in (config.rows, config.held_out_rows) if name is not None]
    those = [each.parent if each.name == ".git" else each for each in found]
    cache = _cache(config)
    return Source(tasks, clones.of, (clones.folder, cache, *rows, *those), cache)


def tasks_of(config: SweSettings) -> Tasks:
    """The tasks that a config names. Raises BadInput where a row cannot be read, or a side has none."""
    if config.rows is None:
        return _shipped(config.level, config.held_out_from)
    rows = _rows(config.rows, f"{WHERE}rows")
    held_out = None if config.held_out_rows is None else _rows(config.held_out_rows, f"{WHERE}held_out_rows")
    return split(rows, held_out, config.held_out_from, where=f"{WHERE}rows")


@lru_cache(maxsize=32)
def _shipped(level: Level | None, held_out_from: int | None) -> Tasks:
    held_out = () if held_out_from is None else tasks_that_ship("evaluation", level)
    return Tasks(
        [task.row() for task in tasks_that_ship("train", level)], [task.row() for task in held_out], held_out_from
    )


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


def split(rows: Sequence[Row], held_out: Sequence[Row] | None, held_out_from: int | None, *, where: str) -> Tasks:
    """The tasks of rows.

    Args:
        held_out: rows that are held out, from a file of their own; None: those of `rows` whose column `split` is not
            train, and of rows without one a quarter, by a hash of what the task is about. No other row matters for it.
            A row about the same as a held-out one is not trained.
        held_out_from: None: all rows are of training.

    Raises BadInput where a side has no row.
    """
    if held_out_from is None:
        return Tasks(rows, (), None)
    if held_out is None:
        held_out = _held_out(rows)
    names, known = {row.instance_id for row in held_out}, {row.content for row in held_out}
    training = [row for row in rows if row.instance_id not in names and row.content not in known]
    if not training or not held_out:
        raise BadInput(
            f"of {len(rows)} rows {len(rows) - len(training)} are held out",
            expected="rows on both sides: to train on, and to evaluate with",
            where=where,
            next_step="add rows, name a file of held_out_rows, or set held_out_from: null, which holds none out",
        )
    return Tasks(training, tuple(held_out), held_out_from)


def _held_out(rows: Sequence[Row]) -> list[Row]:
    def held_out(row: Row) -> bool:
        name = (row.model_extra or {}).get("split")
        return name not in _TRAINING if isinstance(name, str) else is_held_out(row.content)

    return [row for row in rows if held_out(row)]
