"""The official game files: where they are, which can be played, the game that one of them holds, and which one a seed
plays.

`<data>/json_2.1.1/<split>/<task>-<object>-<…>-<scene>/<trial>/game.tw-pddl` is JSON with the keys `pddl_domain`,
`grammar`, `pddl_problem` and `solvable`. Like the `alfworld` package, games that are not known to be solvable and tasks
with movable receptacles or sliced objects are passed over. Nothing of the files is kept in this project.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from crl.errors import BadInput
from crl.worlds.alfworld.game import Game
from crl.worlds.alfworld.grammar import Grammar, Saying, alternatives_of, read_rules, symbols_of
from crl.worlds.alfworld.pddl import Unsupported, read_domain, read_problem
from crl.worlds.alfworld.speech import Wording, worded

RELEASE = "json_2.1.1"
GAME = "game.tw-pddl"
VARIABLE = "ALFWORLD_DATA"
DOWNLOAD = (
    "python3 -m venv /tmp/alfworld && /tmp/alfworld/bin/pip install alfworld && /tmp/alfworld/bin/alfworld-download"
)
"""Gets the game files. In an environment of its own: alfworld and what it needs are not pinned beside the project's."""
_TEXTS = ("pddl_domain", "grammar", "pddl_problem")
_PASSED_OVER = ("movable", "Sliced")
Task = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class GameFile:
    """A game that can be played."""

    path: Path
    task: str
    """Its task family, such as `pick_and_place_simple`."""

    @property
    def name(self) -> str:
        """Task and trial: the same on every machine."""
        return f"{self.path.parents[1].name}/{self.path.parent.name}"


def data_folders(data: Path | None) -> list[Path]:
    """Where the splits are looked for, in order: `data`, else $ALFWORLD_DATA, else ~/.cache/alfworld; and the same
    without the folder of the release."""
    chosen = data or Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "alfworld")
    root = Path(os.path.expandvars(chosen)).expanduser()
    return [root / RELEASE, root]


def games_of(data: Path | None, split: str, tasks: Collection[str]) -> tuple[GameFile, ...]:
    """The solvable games of a split, in an order that depends on their names only and mixes the tasks.

    Raises BadInput where the data is missing, a file is damaged, or no game is left.
    """
    folders = data_folders(data)
    found = next((folder / split for folder in folders if (folder / split).is_dir()), None)
    if found is None:
        raise missing(folders, split)
    games = [game for game in _solvable(found) if game.task in tasks]
    if not games:
        raise BadInput(
            f"the split {split!r} has no solvable game of the tasks {', '.join(tasks)}",
            expected=f"folders such as pick_and_place_simple-Mug-None-Shelf-20/trial_T20190909_000000_000000/{GAME}",
            where=str(found),
            next_step=f"choose other tasks, or get the files: {DOWNLOAD}",
        )
    return tuple(sorted(games, key=lambda game: hashlib.sha256(game.name.encode()).digest()))


def missing(folders: list[Path], split: str) -> BadInput:
    """The error of a split that is not there."""
    there = sorted({path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()})
    return BadInput(
        f"the games of ALFWorld's split {split!r} are missing"
        + (f"; found the folders {', '.join(there[:8])}" if there else ""),
        expected=f"folders of games (release 2.1.1, {GAME}) from github.com/alfworld/alfworld, MIT license, made from "
        "ALFRED (MIT license)",
        where="looked for " + " and ".join(str(folder / split) for folder in folders),
        next_step=f"get them (about 2 GB): {DOWNLOAD}; elsewhere than in "
        f"~/.cache/alfworld: set ${VARIABLE}, or `data` of the environment",
    )


@lru_cache(maxsize=16)
def _solvable(folder: Path) -> tuple[GameFile, ...]:
    """All games of a split that are known to be solvable. Its files are taken not to change while a process lives."""
    games = []
    for path in sorted(folder.glob(f"*/*/{GAME}")):
        name = path.parents[1].name
        if not any(word in name for word in _PASSED_OVER) and _read(path).get("solvable") is True:
            games.append(GameFile(path, name.partition("-")[0]))
    return tuple(games)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, f"it cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(path, f"it holds {type(found).__name__}, not an object")
    lacking = [key for key in _TEXTS if not isinstance(found.get(key), str)]
    if lacking:
        raise _damaged(path, f"it lacks the text of {', '.join(lacking)}")
    return found


def _damaged(path: Path, problem: str) -> BadInput:
    return BadInput(
        f"a game file of ALFWorld is damaged: {problem}",
        expected=f"JSON with the keys {', '.join(_TEXTS)} and solvable, as release 2.1.1 has them",
        where=str(path),
        next_step="get the files again: alfworld-download --force; or remove this game's folder",
    )


def load(path: Path, wording: Wording) -> Game:
    """The game of a file. Raises BadInput, with the name of the file, where it cannot be played."""
    try:
        game = _compiled(_read(path), wording)
        game.start()  # says its introduction: what the grammar lacks shows here and not in the middle of a run
        return game
    except (Unsupported, RecursionError, KeyError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def _compiled(texts: Mapping[str, Any], wording: Wording) -> Game:
    rules, actions = worded(*read_rules(texts["grammar"]), wording)
    grammar = Grammar(
        {name: alternatives_of(each) for name, each in rules.items()},
        {name: Saying(symbols_of(template), symbols_of(feedback)) for name, (template, feedback) in actions.items()},
    )
    return Game(read_domain(texts["pddl_domain"]), read_problem(texts["pddl_problem"]), grammar)


class Games:
    """The game of every seed.

    The games of a split have a fixed order that mixes the tasks; seed s plays game s modulo their number, and held-out
    seeds count from `held_out_from` on. So as many held-out seeds as the evaluation split has games play each of them
    once. A game of the evaluation split is no game of training, whatever folder it is found in.

    Raises BadInput where a split is missing or has no game.
    """

    def __init__(
        self,
        data: Path | None,
        *,
        train_split: str,
        evaluation_split: str,
        tasks: Collection[str],
        held_out_from: int | None,
    ) -> None:
        self._first = held_out_from
        self.training = games_of(data, train_split, tasks)
        self.evaluation: tuple[GameFile, ...] = ()
        if held_out_from is not None:
            self.evaluation = games_of(data, evaluation_split, tasks)
            held_out = {game.name for game in self.evaluation}
            self.training = tuple(game for game in self.training if game.name not in held_out)
        if not self.training:
            raise BadInput(
                f"every game of the split {train_split!r} is one of {evaluation_split!r}, which is held out",
                expected="games to train on",
                where=str(data_folders(data)[0]),
                next_step="choose another train_split or evaluation_split, or set held_out_from: null",
            )

    def of(self, seed: int) -> GameFile:
        """The game of a seed."""
        if self._first is not None and seed >= self._first:
            return self.evaluation[(seed - self._first) % len(self.evaluation)]
        return self.training[seed % len(self.training)]
