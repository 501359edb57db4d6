"""Stand-ins for packages that may be missing: just enough of each to reach what a bridge refuses."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """A module of this name in place of the real one, where there is one."""
    made = ModuleType(name)
    for member, value in members.items():
        setattr(made, member, value)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def textarena(monkeypatch: pytest.MonkeyPatch, folder: Path, sources: dict[str, str]) -> ModuleType:
    """TextArena with one game for each source, by its id; none of them can be started."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("textarena", "nltk")]:
        monkeypatch.delitem(sys.modules, name)
    registry = {}
    for name, source in sources.items():
        place = folder / "envs" / name
        place.mkdir(parents=True)
        (place / "env.py").write_text(source)
        registry[name] = SimpleNamespace(entry_point=f"textarena.envs.{name}.env:Game")

    def make(name: str, **arguments: Any) -> Any:
        raise SyntaxError(f"{name} is broken")

    found = module(monkeypatch, "textarena", __file__=str(folder / "__init__.py"), make=make, Wrapper=type("W", (), {}))
    module(monkeypatch, "textarena.envs.registration", ENV_REGISTRY=registry)
    return found


def reasoning_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """reasoning-gym with the dataset `sums`: one item a seed, `highest` + 1 of them; its scorer breaks on `?`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)

    class Sums:
        def __init__(self, seed: int, size: int, highest: int = 1000) -> None:
            assert highest > 0, "highest must be positive"
            self.number = seed % (highest + 1)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"question": f"{self.number} + 1?", "answer": str(self.number + 1)}

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            if answer == "?":
                raise ValueError("no number")
            return 1.0 if answer == entry["answer"] else 0.01

    datasets = {"sums": (Sums, None), "composite": (Sums, None), "ransom_note": (Sums, None)}
    module(monkeypatch, "reasoning_gym")
    module(monkeypatch, "reasoning_gym.factory", DATASETS=datasets, create_dataset=lambda name, **more: Sums(**more))


class Passage:
    """A TextWorld game: go east to win. What TextWorld shows around the story is there too."""

    _jericho = SimpleNamespace(is_fully_supported=False)

    def __init__(self, path: str, infos: dict[str, Any]) -> None:
        self.path, self.infos, self.closed = path, infos, False

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def _state(self, feedback: str, won: bool, score: int) -> Any:
        told = self.infos.get("admissible_commands")
        return SimpleNamespace(
            feedback=feedback, won=won, lost=False, score=score, max_score=2,
            objective="Go  east." if told else None,
            admissible_commands=["go east", "look"] if told else None,
            policy_commands=["go east"] if told and not won else [],
        )  # fmt: skip

    def reset(self) -> Any:
        return self._state("  $$_$$ |_ \n\nGo  east.\n-= Hall =-\nA hall.\n\n>      -= Hall =-0/0", False, 0)

    def step(self, command: str) -> tuple[Any, int, bool]:
        if command == "crash":
            raise OSError("the interpreter died")
        won = command == "go east"
        said = "You win.\n\n*** The End ***\nWould you like to RESTART?\n>" if won else "A hall.\n>"
        if command == "xyzzy":
            said = "That's not a verb I recognise."
        state = self._state(said, won, 2 * won)
        return state, 2 * won, won

    def close(self) -> None:
        self.closed = True


def textworld(monkeypatch: pytest.MonkeyPatch) -> None:
    """TextWorld whose every file is the game above, but for files that hold `damaged`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "textworld"]:
        monkeypatch.delitem(sys.modules, name)

    def start(path: str, infos: dict[str, Any]) -> Passage:
        if b"damaged" in Path(path).read_bytes():
            raise ValueError("no story file")
        return Passage(path, infos)

    class Game:
        @staticmethod
        def load(path: str) -> Path:
            return Path(path)

    def compile_game(game: Path, options: Any) -> None:
        if b"damaged" in game.read_bytes():
            raise ValueError("no game")
        Path(options.path).write_bytes(game.read_bytes() + f", compiled at {time.time_ns()}".encode())
        Path(options.path).with_suffix(".json").write_bytes(game.read_bytes())

    generator = SimpleNamespace(compile_game=compile_game)
    module(
        monkeypatch, "textworld", start=start, EnvInfos=dict, Game=Game, GameOptions=SimpleNamespace,
        generator=generator, __version__="1.7.0",
    )  # fmt: skip
