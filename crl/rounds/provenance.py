"""What a stage notes beside its rows, in the provenance of its manifest: games that broke, and how long its work took.

Rows hold no clock times and no tracebacks, which differ from machine to machine. Broken games are counted by task
family while a stage plays, told in its log, and too many of them are an environment that is out of order.

The share is counted over the whole stage, however its games were spread over parts, and for each task family: one dead
family of a mixture is found among many that live. A family is judged once :data:`FEWEST` of its games broke, as one
level that breaks costs all members of a group; where the games of the whole stage broke, there is no such minimum.

A game counts as broken where it has an error: the environment raised, died, was too slow, gave what cannot be played,
or its first prompt did not fit. What an experience model cannot predict is not counted: that is a model at work. What a
judge gave no score is shown among them, and no fault of the environment.

A timing is of one kind of work in one stage, such as `retrieval`: how many batches, items in them, seconds in all and
of the longest batch. Timings of a stage's parts are added up. In SQL: the view `timings`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from crl.errors import EnvironmentBroken
from crl.faults import location_in
from crl.protocols import Start
from crl.records.play import UNSCORED
from crl.rollout.live import without_start
from crl.rollout.play import PlayedEpisode
from crl.text.unicode import escaped

BROKEN = "broken"
"""Their key in the provenance of a stage: by task family what was played and what broke."""
FEWEST = 4
"""Broken games from which on a task family is judged alone."""
_told: tuple[tuple[int, str], set[tuple[str, str, str | None]]] = ((-1, ""), set())
"""Of the stage that this process is in: which kinds of break are in its log."""
TIMINGS = "timings"
"""Their key in the provenance of a stage, by kind of work."""


class Game(NamedTuple):
    """One game, or one start of a game that is played in a later stage."""

    family: str
    seed: int
    error: str | None = None
    details: str | None = None


def add_games(provenance: dict[str, Any], games: Iterable[Game], *, of: tuple[int, str]) -> None:
    """Count games in the provenance of a stage; `of` is its round and name. The first of each kind of break is written
    to the log at once."""
    for game in games:
        family = provenance.setdefault(BROKEN, {}).setdefault(game.family, {"games": 0, "broken": 0, "kinds": []})
        family["games"] += 1
        if game.error is None:
            continue
        family["broken"] += not game.error.startswith(UNSCORED)
        location = location_in(game.details)
        kind = _kind_in(family["kinds"], game.error, location)
        if kind is not None:
            kind["games"] += 1
            continue
        family["kinds"].append(
            {"error": game.error, "location": location, "games": 1, "seed": game.seed, "details": game.details}
        )
        _tell(game, location, of)


def _tell(game: Game, location: str | None, of: tuple[int, str]) -> None:
    global _told
    if _told[0] != of:
        _told = (of, set())
    kind = (game.family, game.error or "", location)
    if kind in _told[1]:  # another part of the stage had one
        return
    _told[1].add(kind)
    told = f"a game of family {game.family}, seed {game.seed}, broke: {game.error}"
    print(escaped(told), *map(escaped, (game.details or "").splitlines()), sep="\n  ", file=sys.stderr, flush=True)


def games_of(played: Sequence[PlayedEpisode]) -> list[Game]:
    """Played episodes as games. One that could not be started when it was planned was counted there."""
    return [
        Game(each.episode.family, each.episode.environment_seed, each.episode.error, each.details)
        for each in played
        if not without_start(each.episode.goal, each.turns[0].observation if each.turns else "")
    ]


def games_from(starts: Sequence[Start], task_seeds: Sequence[tuple[str, int]]) -> list[Game]:
    """Starts that cannot be played, as games; `task_seeds` are the family and the seed of each."""
    return [Game(*task, start.error, start.details) for start, task in zip(starts, task_seeds, strict=True)]


def _games_of_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of two parts of a stage as those of both."""
    found = {family: {**counted, "kinds": [dict(kind) for kind in counted["kinds"]]} for family, counted in one.items()}
    for family, counted in other.items():
        mine = found.setdefault(family, {"games": 0, "broken": 0, "kinds": []})
        mine["games"] += counted["games"]
        mine["broken"] += counted["broken"]
        for kind in counted["kinds"]:
            known = _kind_in(mine["kinds"], kind["error"], kind["location"])
            if known is None:
                mine["kinds"].append(dict(kind))
            else:
                known["games"] += kind["games"]
    return found


def require_games(provenance: Mapping[str, Any], limit: float, where: str) -> None:
    """Raise EnvironmentBroken where more than `limit` of the games of a stage, or of one of its families, broke."""
    counted: Mapping[str, Any] = provenance.get(BROKEN, {})
    games, broken = (sum(each[name] for each in counted.values()) for name in ("games", "broken"))
    all_of_it = broken > limit * games
    for family, each in counted.items():
        if each["broken"] > limit * each["games"] and (all_of_it or each["broken"] >= FEWEST):
            kinds = [kind for kind in each["kinds"] if not kind["error"].startswith(UNSCORED)]
            first = max(kinds, key=lambda kind: kind["games"])
            raise EnvironmentBroken(
                f"{each['broken']} of {each['games']} games of family {family} broke. "
                f"{first['games']} of them: {first['error']}; the first, seed {first['seed']}:\n"
                f"{first['details'] or 'the environment gave no reason'}",
                expected=f"at most {limit:.0%} broken games (runtime.broken_episodes_limit)",
                where=f"{where}, environment of family {family}",
                next_step=f"{EnvironmentBroken.ADVICE}. runtime.broken_episodes_limit: 1 goes on without these games",
            )


def unscored_games(provenance: Mapping[str, Any]) -> int:
    """How many games a judge gave no score."""
    kinds = (kind for each in provenance.get(BROKEN, {}).values() for kind in each["kinds"])
    return sum(kind["games"] for kind in kinds if kind["error"].startswith(UNSCORED))


def has_broken(provenance: Mapping[str, Any]) -> bool:
    """Whether any game broke."""
    return any(each["broken"] for each in provenance.get(BROKEN, {}).values())


@contextmanager
def naming(family: str) -> Iterator[None]:
    """An environment that is out of order inside is that of this family."""
    try:
        yield
    except EnvironmentBroken as error:
        error.where = error.where or f"environment of family {family}"
        raise


def _kind_in(kinds: Sequence[dict[str, Any]], error: str, location: str | None) -> dict[str, Any] | None:
    return next((kind for kind in kinds if (kind["error"], kind["location"]) == (error, location)), None)


def add_time(provenance: dict[str, Any], work: str, *, items: int, seconds: float) -> None:
    """Add one batch to the timings in a stage's provenance; none without items."""
    if not items:
        return
    batch = {"batches": 1, "items": items, "seconds": round(seconds, 6), "longest": round(seconds, 6)}
    timings = provenance.setdefault(TIMINGS, {})
    timings[work] = _added(timings[work], batch) if work in timings else batch


def joined(provenance: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of several parts of a stage as those of the stage: timings and games that broke are added up, else
    the first is kept."""
    timings = dict(provenance.get(TIMINGS, {}))
    for work, found in more.get(TIMINGS, {}).items():
        timings[work] = _added(timings[work], found) if work in timings else found
    games = _games_of_both(provenance.get(BROKEN, {}), more.get(BROKEN, {}))
    return {
        **more, **provenance, **({TIMINGS: timings} if timings else {}), **({BROKEN: games} if games else {})
    }  # fmt: skip


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batches": one["batches"] + other["batches"],
        "items": one["items"] + other["items"],
        "seconds": round(one["seconds"] + other["seconds"], 6),
        "longest": max(one["longest"], other["longest"]),
    }
