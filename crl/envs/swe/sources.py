"""Where the tasks of a config come from: rows of a file over local clones, or the tasks that ship."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from crl.envs.swe.repository import Clones
from crl.envs.swe.rows import Row, load_rows
from crl.envs.swe.tasks import Tasks, split
from crl.paths import possible_path

if TYPE_CHECKING:
    from crl.envs.swe.config import SweConfig

WHERE = "method.families[].environment."


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


def source_of(config: SweConfig, folder: Path) -> Source:
    """The source of a config. `folder`: for what is not kept.

    Raises BadInput where a row, a repository or a commit is missing.
    """
    assert config.rows is not None
    tasks, clones = tasks_of(config), Clones(_repositories(config, config.rows))
    found = clones.check([*tasks.training, *tasks.evaluation])
    rows = [Path(name) for name in (config.rows, config.held_out_rows) if name is not None]
    those = [each.parent if each.name == ".git" else each for each in found]
    cache = _cache(config)
    return Source(tasks, clones.of, (clones.folder, cache, *rows, *those), cache, lasting=True)


def tasks_of(config: SweConfig) -> Tasks:
    """The tasks that a config names. Raises BadInput where a row cannot be read, or a side has none."""
    assert config.rows is not None
    rows = _rows(config.rows, f"{WHERE}rows")
    held_out = None if config.held_out_rows is None else _rows(config.held_out_rows, f"{WHERE}held_out_rows")
    return split(rows, held_out, config.held_out_from, where=f"{WHERE}rows")


@lru_cache(maxsize=8)
def _rows(name: str, where: str) -> list[Row]:
    return load_rows(name, where=where)


def _repositories(config: SweConfig, rows: str) -> Path:
    where = f"{WHERE}repositories"
    if config.repositories is not None:
        return possible_path(config.repositories, "the repositories", where=where, home=True)
    path = possible_path(rows, "the rows", where=where, home=True)
    folder = path if path.is_dir() else path.parent
    return folder / "repos" if (folder / "repos").is_dir() else folder


def _cache(config: SweConfig) -> Path:
    name = config.cache or os.environ.get("CRL_SWE_CACHE") or "~/.cache/crl-swe"
    return possible_path(name, "the cache of trees", where=f"{WHERE}cache", home=True)
