"""TextWorld games, and others that its interpreter plays: `.z8` files, each with the `.json` that TextWorld writes.

With the `.json` a game tells which commands are possible, when it is won, and a way to win it from here: the oracle. A
`.json` without its game is compiled once per machine, into `~/.cache/crl/textworld`. Other Z-machine games (`.z1` to
`.z8`) are played in free text where Jericho knows them, for only then does anybody know when they are won. TextWorld
plays no Glulx games (`.ulx`) from version 1.7 on.

A seed means a file: seeds go through the sorted files in turn. What is held out are the files of `held_out_games`, or a
quarter of all files by their content (`crl/envs/levels.py`).
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import HeldOutFrom
from crl.envs.levels import is_held_out
from crl.errors import BadInput
from crl.protocols import Actions, FreeText
from crl.worlds.bridges.packages import WHERE, BridgeConfig, package
from crl.worlds.bridges.wave import Episode, LeveledWave, Outcome, seed_of

_COMPILED = "~/.cache/crl/textworld"
"""Where games are that were compiled of a `.json`: compiling takes some ten seconds, and every slot needs them."""
_FORM = FreeText("a command, such as look, inventory, go north, take the key")
_GOAL = "Play the game: find out what it asks for, and do it."
_Z_MACHINE = re.compile(r"\.z[1-8]$")
_NOT_UNDERSTOOD = re.compile(
    r"not a verb I|didn't understand|can't see any such|only understood you as far|beg your pardon|don't know the word|"
    r"supply a noun|can't use multiple objects"
)
"""What Inform's parser and Infocom's say to a command that changes nothing."""
_NOT_TOLD = re.compile(r"^>?$|[$_|\\/]{2}|^>?\s*-= .* =-\s*-?\d+/\d+$|^Would you like to RESTART")
"""Lines of the screen that are no part of the story: the banner, the prompt with the status line, the end's menu."""


class TextWorldConfig(BridgeConfig):
    """TextWorld games: `.z8` files with their `.json`."""

    model_config = ConfigDict(title="TextWorld")

    PACKAGES: ClassVar[tuple[str, ...]] = ("textworld",)

    PATHS: ClassVar[tuple[str, ...]] = ("games", "held_out_games")

    kind: Literal["textworld"] = "textworld"
    games: str = Field(description="Path or pattern of the games, such as games/*.z8.")
    held_out_games: str | None = Field(
        None,
        description="Path or pattern of the held-out games; null: a quarter of `games`, by content.",
        exclude_if=lambda value: value is None,
    )
    commands: Literal["listed", "free"] = Field(
        "listed",
        description="listed: the actor chooses among the possible commands, if the game lists them; free: it "
        "writes any command.",
    )
    reward: Literal["success", "score"] = Field(
        "success", description="success: 1 or 0; score: share of the game's points."
    )
    max_turns: int = Field(50, ge=1, le=10_000, description="Turns after which an episode is lost.")
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _held_out_somewhere(self) -> TextWorldConfig:
        if self.held_out_games is not None and self.held_out_from is None:
            raise ValueError("held_out_games needs held_out_from: the first seed that plays them")
        return self

    @property
    def held_out_levels(self) -> int | None:
        """The number of held-out games. Raises BadInput where the package or a game is missing."""
        if self.held_out_from is None:
            return None
        return _Games(self).held_out

    def data_files(self) -> dict[str, list[Path]]:
        """The games, each with the `.json` beside it."""
        named = {"games": self.games, "held_out_games": self.held_out_games}
        return {name: _with_json(_matching(pattern)) for name, pattern in named.items() if pattern is not None}

    def make(self) -> LeveledWave:
        """A wave of games. Raises BadInput where the package or a game is missing, and for games of other kinds."""
        return _Wave(_Games(self), max_turns=self.max_turns)


def _matching(pattern: str) -> list[Path]:
    return sorted(Path(name) for name in glob.glob(str(Path(pattern).expanduser()), recursive=True))  # noqa: PTH207


def _with_json(games: list[Path]) -> list[Path]:
    return sorted({*games, *(path for game in games if (path := game.with_suffix(".json")).is_file())})


@dataclass(frozen=True)
class _File:
    path: Path
    content: str


class _Games:
    """The files of both sides, and a game per slot."""

    def __init__(self, config: TextWorldConfig) -> None:
        self._config = config
        self._textworld = package("textworld", extra="textworld")
        files = self._files(config.games, "games")
        self._training, self._held_out = files, list[_File]()
        if config.held_out_games is not None:
            self._held_out = self._files(config.held_out_games, "held_out_games")
            known = {file.content: file.path for file in files}
            twice = next((file for file in self._held_out if file.content in known), None)
            if twice is not None:
                raise BadInput(
                    f"{twice.path} is the same game as {known[twice.content]}",
                    expected="held-out games that training does not know",
                    where=f"{WHERE}.held_out_games",
                    next_step="take it out of one of the two",
                )
        elif config.held_out_from is not None:
            self._training = [file for file in files if not is_held_out(file.content)]
            self._held_out = [file for file in files if is_held_out(file.content)]
            if not self._training or not self._held_out:
                raise BadInput(
                    f"{len(files)} games leave none for {'training' if self._held_out else 'evaluation'}",
                    expected="games on both sides: by their content, about a quarter is held out",
                    where=f"{WHERE}.games",
                    next_step="name held_out_games, or set held_out_from: null: then its evaluation is on games that "
                    "training knows",
                )
        for file in [*self._training[:1], *self._held_out[:1]]:
            self._begun(file)

    def _files(self, pattern: str, field: str) -> list[_File]:
        """The files of a pattern, sorted by path. A `.json` beside its game is that game, and counts once.

        A game's content is that of its `.json` where it has one: what is compiled of it holds the date, so that on
        another day the same game would be on the other side.
        """
        found = _matching(pattern)
        games: dict[Path, Path] = {}
        for path in found:
            told = path.with_suffix(".json")
            games.setdefault(self._playable(path, field), told if told.is_file() else path)
        if not games:
            raise BadInput(
                f"no game is at {pattern}",
                expected="files *.z8, or *.json of TextWorld",
                where=f"{WHERE}.{field}",
                next_step="make some: tw-make tw-simple --rewards dense --goal detailed --seed 1 --output games/1.z8",
            )
        return [_File(path, hashlib.sha256(source.read_bytes()).hexdigest()) for path, source in games.items()]

    def _playable(self, path: Path, field: str) -> Path:
        """The file that is played. Raises BadInput for what cannot be."""
        if _Z_MACHINE.search(path.name):
            return path
        if path.suffix == ".json":
            beside = path.with_suffix(".z8")
            return beside if beside.is_file() else self._compile(path)
        glulx = path.suffix == ".ulx"
        raise BadInput(
            f"{path} is {'a Glulx game' if glulx else 'no game'} that TextWorld {self._textworld.__version__} plays",
            expected="*.z1 to *.z8, or *.json of TextWorld",
            where=f"{WHERE}.{field}",
            next_step="name the .json that is beside it: it is compiled for the Z-machine"
            if glulx
            else "let the pattern name games only",
        )

    def _compile(self, path: Path) -> Path:
        try:
            digest = hashlib.sha256(self._textworld.__version__.encode() + b"\0" + path.read_bytes()).hexdigest()
            target = _compiled() / digest[:32] / "game.z8"
            if target.is_file():
                return target
            with tempfile.TemporaryDirectory(dir=target.parent.parent) as made:
                place = Path(made) / digest[:32]
                place.mkdir()
                options = self._textworld.GameOptions()
                options.path = str(place / target.name)
                self._textworld.generator.compile_game(self._textworld.Game.load(str(path)), options)
                try:
                    place.rename(target.parent)
                except OSError:  # another process was first
                    if not target.is_file():
                        raise
        except Exception as error:
            raise BadInput(
                f"{path} cannot be compiled: {type(error).__name__}: {error}",
                expected="a .json that TextWorld wrote",
                where=f"{WHERE}.games",
                next_step="compile it with TextWorld, and name the .z8",
            ) from error
        return target

    def _game(self, file: _File) -> Any:
        infos = self._textworld.EnvInfos(
            feedback=True, won=True, lost=True, score=True, max_score=True, objective=True,
            admissible_commands=True, policy_commands=True,
        )  # fmt: skip
        tells = file.path.with_suffix(".json").is_file()
        if not tells:
            infos = self._textworld.EnvInfos(feedback=True, won=True, lost=True, score=True, max_score=True)
        try:
            game = self._textworld.start(str(file.path), infos)
        except Exception as error:
            raise BadInput(
                f"{file.path} cannot be started: {type(error).__name__}: {error}",
                expected="a game that TextWorld's interpreter plays",
                where=f"{WHERE}.games",
                next_step="make the game again, or leave it out",
            ) from error
        if not tells and not game._jericho.is_fully_supported:
            game.close()
            raise BadInput(
                f"nothing says when {file.path} is won",
                expected="the .json that TextWorld writes beside a game, or a game that Jericho knows",
                where=f"{WHERE}.games",
                next_step="put the .json beside it, or leave the game out",
            )
        return game

    def items(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Each game, and what starts it."""
        for file in (*self._held_out, *self._training):
            yield str(file.path), partial(self._begun, file)

    def _begun(self, file: _File) -> None:
        self._game(file).close()

    def begin(self, slot: int, seed: int) -> _Play:
        """The game of a seed."""
        first = self._config.held_out_from
        held_out = first is not None and seed >= first
        files = self._held_out if held_out else self._training
        file = files[(seed - (first or 0) if held_out else seed) % len(files)]
        return _Play(self._game(file), seed_of(seed), file.content, self._config)

    @property
    def held_out(self) -> int:
        """How many games are held out."""
        return len(self._held_out)


class _Wave(LeveledWave):
    """A wave of games, which are all of some files (protocol `Itemized`)."""

    def __init__(self, games: _Games, *, max_turns: int) -> None:
        super().__init__(games.begin, max_turns=max_turns)
        self.items = games.items


def _compiled() -> Path:
    """The folder of compiled games: in a home that nobody may write to (a container's), one of the user's in /tmp."""
    with contextlib.suppress(OSError, RuntimeError):  # no home at all
        found = Path(_COMPILED).expanduser()
        found.mkdir(parents=True, exist_ok=True)
        if os.access(found, os.W_OK):
            return found
    found = Path(tempfile.gettempdir()) / f"crl-textworld-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    return found


class _Play(Episode):
    """One game."""

    def __init__(self, game: Any, seed: int, content: str, config: TextWorldConfig) -> None:
        self._game, self._content, self._config = game, content, config
        game.seed(seed)
        self._state = game.reset()
        self.goal = " ".join((self._state.objective or _GOAL).split())

    @property
    def content(self) -> str:
        return self._content

    def observation(self) -> str:
        text = str(self._state.feedback or "")
        if self._state.objective:
            text = text.replace(self._state.objective, "")  # the goal says it
        lines = (line.strip() for line in text.splitlines())
        return "\n".join(line for line in lines if line and not _NOT_TOLD.search(line)) or "Nothing happens."

    def actions(self) -> Actions:
        listed = self._state.admissible_commands if self._config.commands == "listed" else None
        return tuple(listed) if listed else _FORM

    def act(self, action: str) -> Outcome:
        command = " ".join(action.split())[:200]
        self._state, _, over = self._game.step(command)
        won, lost = bool(self._state.won), bool(self._state.lost)
        legal = _NOT_UNDERSTOOD.search(str(self._state.feedback or "")) is None
        return Outcome(over=bool(over or won or lost), success=won, reward=self._worth(won), legal=legal)

    def _worth(self, won: bool) -> float:
        if self._config.reward == "success" or not self._state.max_score:
            return float(won)
        return float(self._state.score or 0) / float(self._state.max_score)

    def oracle(self) -> str | None:
        commands = getattr(self._state, "policy_commands", None)
        return str(commands[0]) if commands else None

    def close(self) -> None:
        self._game.close()
