"""Demonstrations that a person recorded (`crl env play --record FILE`): the file, and what of it a method keeps.

The file is JSON lines. The first says what it is and in which environment it was played, each further one is a game:
its seed, what was seen, what was said in each turn and what came of it. No token is in it: a warm start says all of it
once more, in the chat format of its own model. The method keeps what is said, so that its digest covers the
demonstrations and a run needs the file no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from crl.config.base import LAST_SEED, Model
from crl.config.environments import ENVIRONMENTS, EnvironmentConfig
from crl.errors import BadInput
from crl.paths import possible_path

FORMAT = "crl-demonstrations-1"
"""What the first line of a file says it is."""
_MOST_BYTES = 16 * 2**20
"""Bytes of a file: what a person played by hand is far smaller."""


class RecordedTurn(Model):
    """One turn."""

    text: str = Field(description="What the player typed.")
    action: str | None = Field(None, description="What the environment got; null: the text named no action.")


class RecordedGame(Model):
    """One complete game."""

    seed: int = Field(ge=0, le=LAST_SEED, description="Environment seed.")
    start: str = Field(pattern="^[0-9a-f]{16}$", description="Digest of goal and first observation.")
    success: bool = Field(description="Whether it was won.")
    turns: list[RecordedTurn] = Field(min_length=1, max_length=10_000, description="Its turns.")


class RecordedConfig(Model):
    """The games of one file."""

    environment: Annotated[EnvironmentConfig, ENVIRONMENTS] = Field(description="The environment, with its settings.")
    games: list[RecordedGame] = Field(min_length=1, max_length=100_000, description="Games in order.")


def start_digest(goal: str, observation: str) -> str:
    """What a recorded game is known to start with."""
    return hashlib.sha256(f"{goal}\n{observation}".encode("utf-8", "backslashreplace")).hexdigest()[:16]


def first_line(environment: EnvironmentConfig) -> dict[str, Any]:
    """The first line of a file of games in an environment."""
    return {"format": FORMAT, "environment": environment.model_dump(mode="json")}


def read_recorded(path: Path) -> dict[str, Any]:
    """The plain data of a :class:`RecordedConfig`: the games of a file that ended, each line of it looked at.

    Raises BadInput naming the line for a file that is none, that is damaged, or in which no game ended.
    """
    lines = _lines(path)
    number, first = next(lines, (1, {}))
    if first.get("format") != FORMAT or not isinstance(first.get("environment"), dict):
        raise BadInput(
            f"{path} is not a file of recorded games",
            expected=f'a first line with "format": "{FORMAT}" and the environment',
            next_step="record one: crl env play NAME --record FILE",
        )
    games = []
    for number, game in lines:
        try:
            turns = [{"text": turn["text"], "action": turn["action"]} for turn in game["turns"]]
            if game["finished"]:
                start = start_digest(game["goal"], game["observation"])
                games.append({"seed": game["seed"], "start": start, "success": game["success"], "turns": turns})
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"line {number} of {path} is not a game: {type(error).__name__}: {error}",
                expected="an object with seed, goal, observation, turns (text, action), finished and success",
                next_step="remove the line, or record the game again",
            ) from None
    if not games:
        raise BadInput(
            f"{path} holds no finished game", expected="at least one", next_step="play one to its end and record it"
        )
    return {"environment": first["environment"], "games": games}


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with possible_path(path, "the file of recorded games").open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}",
            expected="a file that `crl env play --record` wrote",
            where="method.recipe.warm_start.recorded",
            next_step="correct the path: it is looked for beside the experiment file",
        ) from None
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path} is larger than {_MOST_BYTES:,} bytes", expected="games that a person played")
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInput(
                f"line {number} of {path} is not JSON",
                expected="one JSON object per line",
                next_step="remove the line: a killed session leaves the last one incomplete",
            ) from None
        if not isinstance(value, dict):
            raise BadInput(f"line {number} of {path} is not an object", expected="one JSON object per line")
        yield number, value


def with_recorded(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """The data of an experiment with the files that `warm_start.recorded` names read in, looked for from `base`."""
    place: Any = data
    for key in ("method", "recipe", "warm_start"):
        place = place.get(key) if isinstance(place, Mapping) else None
    if not isinstance(place, dict) or not place.get("recorded"):
        return data
    named = place["recorded"]
    listed = [
        read_recorded(base / each) if isinstance(each, str) else each
        for each in (named if isinstance(named, list) else [named])
    ]
    method = data["method"]
    warm_start = {**place, "recorded": listed}
    return {**data, "method": {**method, "recipe": {**method["recipe"], "warm_start": warm_start}}}
