"""The project's own recipe with mishaps: named stages break once, in the middle of real work, and then never again.

The kind `tests.faults.mishaps:MishapsConfig` selects it, `CRL_MISHAP` says what breaks where. What broke once is
known by a marker file that is made first, so whoever continues the run finds the stage as it always was, with the same
digest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from crl.config import Method
from crl.recipes.complementary.config import BankRecipeConfig
from crl.recipes.complementary.round import build as complementary
from crl.rounds.context import StageContext
from crl.rounds.stage import Recipe, Stage

RECIPE = "tests.faults.mishaps:MishapsConfig"
VARIABLE = "CRL_MISHAP"
EXCEPTION = "the test broke this stage"
HALT = "the test stops here"
_HELD_SECONDS = 3600.0
"""A stage held for an outside fault gives up after this time, so that a broken test ends."""


@dataclass(frozen=True)
class Mishap:
    """What breaks: `kind` in every one of `places` (`0001/collect`) once; `halt` fails whenever it is reached."""

    kind: str
    """exception | engine (killed from inside) | hang | disk | hold (waits to be killed, or for the file `go`)"""
    places: tuple[str, ...]
    folder: str
    """Where the markers lie."""
    halt: str | None = None

    def variables(self) -> dict[str, str]:
        """Environment that selects this mishap."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    def reached(self, place: str) -> bool:
        """Whether the mishap has begun in a place."""
        return self._marker(place, "reached").exists()

    def go(self, place: str) -> None:
        """Let a held stage go on."""
        self._marker(place, "go").touch()

    def _marker(self, place: str, what: str) -> Path:
        return Path(self.folder) / f"{place.replace('/', '-')}.{what}"

    def strike(self, place: str, run_path: Path) -> None:
        """Break here, if it is due."""
        if place == self.halt:
            raise RuntimeError(HALT)
        if place not in self.places:
            return
        try:
            self._marker(place, "reached").touch(exist_ok=False)
        except FileExistsError:
            return
        match self.kind:
            case "exception":
                raise RuntimeError(f"{EXCEPTION} ({place})")
            case "engine":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(_HELD_SECONDS)
            case "disk":
                fill(run_path.parent / BALLAST)
            case "hold":
                deadline = time.monotonic() + _HELD_SECONDS
                while not self._marker(place, "go").exists():
                    if time.monotonic() > deadline:
                        raise RuntimeError("held for too long")
                    time.sleep(0.05)
            case _:
                raise AssertionError(self.kind)


BALLAST = "ballast"


def fill(ballast: Path) -> None:
    """Write a file until not one more byte fits."""
    with ballast.open("ab", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


class MishapsConfig(BankRecipeConfig):
    """Complementary RL whose stages may break."""

    kind: str = RECIPE
    BUILDER: ClassVar[str] = f"{__name__}:build"


def build(method: Method) -> Recipe:
    """The recipe of a method, its stages liable to the mishap of the environment."""
    recipe = complementary(method)
    if VARIABLE not in os.environ:
        return recipe
    from tests.undrawn import draw_nothing  # where nothing breaks, charts are looked at

    draw_nothing()
    order: Mapping[str, Any] = json.loads(os.environ[VARIABLE])
    mishap = Mishap(**{**order, "places": tuple(order["places"])})
    return dataclasses.replace(
        recipe,
        preparation=tuple(_liable(stage, mishap) for stage in recipe.preparation),
        stages=tuple(_liable(stage, mishap) for stage in recipe.stages),
    )


def _liable(stage: Stage, mishap: Mishap) -> Stage:
    """Stages of an even number of letters break when their rows are written, the others before; parts at the second."""
    late = len(stage.name) % 2 == 0 and mishap.kind != "disk"

    def run(context: StageContext) -> None:
        place = f"{context.round:04d}/{stage.name}"
        if not late:
            mishap.strike(place, context.run_path)
        assert stage.run is not None
        stage.run(context)
        if late:
            mishap.strike(place, context.run_path)

    def run_part(context: StageContext, part: int) -> None:
        assert stage.parts is not None and stage.run_part is not None
        if part == min(1, stage.parts(context) - 1):
            mishap.strike(f"{context.round:04d}/{stage.name}", context.run_path)
        stage.run_part(context, part)

    if stage.parts is not None:
        return dataclasses.replace(stage, run_part=run_part)
    return dataclasses.replace(stage, run=run)
