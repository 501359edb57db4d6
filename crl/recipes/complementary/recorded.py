"""Demonstrations that a person recorded, played again (`warm_start.demonstrations: recorded`).

Each game is played once more with what was said in it, through rollout itself, so that its token record is exact and
its prompts are those of the experiment. A game that goes otherwise than it was recorded ends the stage: the environment
is another one. Answers that were refused stay in the game and are not learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated as A
from typing import ClassVar

from crl.checks.outside import require_sound
from crl.config import FamilyConfig, Method
from crl.config.recorded import RecordedGame, start_digest
from crl.errors import BadInput, CrlError, PromptTooLong, StageFailed
from crl.protocols import Environment, Start
from crl.recipes.complementary.config import config_of
from crl.records import Generation, OutsideRows, Row, Rules, table_of
from crl.rollout.actions import parse_action
from crl.rollout.environments import Readable
from crl.rollout.live import PROMPT_TOO_LONG
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import (
    WAVE,
    ScriptedRole,
    Watched,
    as_answer,
    demonstrate,
    demonstration,
    records_without,
)
from crl.rounds.waves import of_all

_WHERE = "method.recipe.warm_start.recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class GameRow(Row):
    """A recorded game, as Great Expectations looks at it before it is learned from."""

    table: ClassVar[str] = "recorded_games"
    rules: ClassVar[Rules] = Rules(
        key=("file", "number"),
        ordered=(("turns", "actions"),),
        ranges={"turns": (1, None), "actions": (1, None)},
        patterns={"start": "^[0-9a-f]{16}$"},
    )
    file: A[int, "its file, counted from 0"]
    number: A[int, "its place there"]
    seed: A[int, "environment seed"]
    start: A[str, "digest of goal and first observation"]
    turns: A[int, "turns"]
    actions: A[int, "of them with an action, which can be learned"]


def require_games(method: Method) -> None:
    """Raise BadInput where a recorded game breaks a rule: a checkpoint of Great Expectations, before any is played."""
    start = config_of(method).warm_start
    assert start is not None and start.recorded is not None
    listed = [
        GameRow(
            file=place,
            number=number,
            seed=game.seed,
            start=game.start,
            turns=len(game.turns),
            actions=sum(turn.action is not None for turn in game.turns),
        )
        for place, file in enumerate(start.recorded)
        for number, game in enumerate(file.games)
    ]
    next_step = "play those games again: crl env play NAME --record FILE"
    require_sound(OutsideRows(GameRow, table_of(GameRow, listed), _WHERE, next_step))


def recorded_games(method: Method) -> list[tuple[FamilyConfig, RecordedGame]]:
    """The games to learn from, each with the family whose environment it was played in; at most `actor_episodes`."""
    start = config_of(method).warm_start
    assert start is not None and start.recorded is not None
    families = [
        (next(family for family in method.families if family.environment == file.environment), game)
        for file in start.recorded
        for game in file.games
    ]
    return families[: start.actor_episodes]


def check_recorded(method: Method, environments: dict[str, Environment]) -> None:
    """Raise BadInput where a recorded game starts otherwise than it did when it was recorded."""
    for family, games in _waves(method):
        starts = Readable(environments[family.name]).reset_many([game.seed for game in games])
        for game, start in zip(games, starts, strict=True):
            _require_start(BadInput, family, game, start)


def played_again(ctx: StageContext, actor: ScriptedRole) -> list[PlayedEpisode]:
    """Every recorded game as an episode. Raises StageFailed where one goes otherwise than it was recorded."""
    played: list[PlayedEpisode] = []
    total = len(recorded_games(ctx.method))
    for family, games in _waves(ctx.method):
        environment = Watched(ctx.environment(family.name))
        starts = environment.reset_many([game.seed for game in games])
        for game, start in zip(games, starts, strict=True):
            _require_start(StageFailed, family, game, start)
        numbered = enumerate(zip(games, starts, strict=True), start=len(played))
        slots = [EpisodeSlot(demonstration(ctx, family, each, game.seed, start)) for each, (game, start) in numbered]
        turns: Counter[int] = Counter()

        def say(
            row: int,
            turns: Counter[int] = turns,
            games: Sequence[RecordedGame] = games,
            family: FamilyConfig = family,
            environment: Watched = environment,
        ) -> str:
            game, turn = games[row], turns[row]
            if turn >= len(game.turns):
                raise _otherwise(StageFailed, family, game, f"goes on after its {turn} recorded turns")
            turns[row] += 1
            said, action = game.turns[turn].text, game.turns[turn].action
            # What was typed, thoughts and all, where it means the same in this experiment's form.
            means = parse_action(said, environment.shown[row], ctx.method.rollout.action_format)
            return said if action is None or means == action else as_answer(ctx.method, action, environment.shown[row])

        finished = demonstrate(ctx, actor, environment, slots, say, of_all(ctx, len(played), total))
        for game, each in zip(games, finished, strict=True):
            if each.episode.error == PROMPT_TOO_LONG:
                raise PromptTooLong(
                    f"the first prompt of a recorded game of family {family.name} does not fit",
                    expected=f"room for it and an answer in {actor.context} tokens",
                    where=f"seed {game.seed}",
                    next_step="raise the actor's context, or leave the game out",
                )
            if each.episode.stop_reason != "context_limit" and (each.episode.success, each.episode.turns) != (
                game.success,
                len(game.turns),
            ):
                raise _otherwise(StageFailed, family, game, f"ends after {each.episode.turns} turns otherwise")
        played += finished
    return played


def without_refused(played: PlayedEpisode) -> list[Generation]:
    """The token records of an episode in which answers that were refused are read and not learned."""
    return records_without(played, [turn.turn for turn in played.turns if not turn.valid])


def _waves(method: Method) -> Iterator[tuple[FamilyConfig, list[RecordedGame]]]:
    of_family: dict[str, tuple[FamilyConfig, list[RecordedGame]]] = {}
    for family, game in recorded_games(method):
        of_family.setdefault(family.name, (family, []))[1].append(game)
    for family, games in of_family.values():
        for at in range(0, len(games), WAVE):
            yield family, games[at : at + WAVE]


def _require_start(error: type[CrlError], family: FamilyConfig, game: RecordedGame, start: Start) -> None:
    if start_digest(start.goal, start.observation) != game.start:
        raise _otherwise(error, family, game, f"starts otherwise: {start.observation!r:.200}")


def _otherwise(error: type[CrlError], family: FamilyConfig, game: RecordedGame, how: str) -> CrlError:
    return error(
        f"the recorded game of seed {game.seed} {how}",
        expected="the game as it was recorded: the environment is deterministic in its seed",
        where=f"family {family.name}, {_WHERE}",
        next_step="record the games once more in the environment as it is now",
    )
