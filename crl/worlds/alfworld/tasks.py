"""The six task families of ALFWorld, and which game a seed plays."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal, get_args

from crl.errors import BadInput
from crl.worlds.alfworld.files import GameFile, data_folders, games_of

Task = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASKS: tuple[Task, ...] = get_args(Task)


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
