"""What a game of ALFWorld teaches, in sentences that are true of it: for demonstrations to an extractor.

They say where the thing that the task asks for was found, what was done to it, and, of a game that was lost, what was
missing: the thing was never seen, seen and not taken, or held and not brought to its end. They are read off the goal,
the commands and the observations, with numbers left out, because another room numbers its things anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from crl.protocols import Lesson
from crl.records import Episode, Turn

_GOAL = re.compile(
    r"\b(?:look at|examine) (?:the |an? |some )?(\w+)|\b(?:an?|some|two|the) (?:clean |hot |cool |cold )?(\w+)"
)
_SEEN_AT = re.compile(r"(?:On|In) the ([a-z]+) \d+, you see|The ([a-z]+) \d+ is open\. In it, you see")
_TAKEN = re.compile(r"take ([a-z]+) \d+ from ([a-z]+) \d+")
_NUMBER = re.compile(r" \d+\b")
_MOST = 4


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new experience of a game, a better one than guided it, or nothing where that one was enough."""
    done = [turn.action for turn in turns if turn.valid and turn.action is not None]
    if episode.success and episode.guided:
        return Lesson("return")
    if not done:
        text = "An answer must be one command and nothing else, such as go to shelf 1."
    elif episode.success:
        text = _won(episode.goal, done)
    else:
        text = _lost(episode, turns, done)
    return Lesson("update" if episode.guided else "add", text)


def _won(goal: str, done: Sequence[str]) -> str:
    """The commands that did something, from the last time that the hand was filled for each thing."""
    steps = [_NUMBER.sub("", command) for command in done if not command.startswith(("go to", "look", "inventory"))]
    told = ", ".join(dict.fromkeys(step for step in steps if not step.startswith(("examine", "open", "close", "help"))))
    return f"To {_task(goal)}: {told}." if told else f"To {_task(goal)}: {_NUMBER.sub('', done[-1])}."


def _lost(episode: Episode, turns: Sequence[Turn], done: Sequence[str]) -> str:
    thing = wanted(episode.goal)
    taken = [found for command in done if (found := _TAKEN.fullmatch(command))]
    if any(found[1] == thing for found in taken):
        rest = _task(episode.goal)
        return f"Holding the {thing} was not enough: to {rest}, go on at once and do what is left."
    places = _sightings(thing, turns, episode.last_observation)
    if places:
        return f"A {thing} was seen at a {places[0]} and never taken: take it before anything else."
    if taken:
        return f"The task asks for a {thing}: taking a {taken[0][1]} did not help. Look for the {thing} first."
    looked = list(dict.fromkeys(_NUMBER.sub("", c.removeprefix("go to ")) for c in done if c.startswith("go to ")))
    if not looked:
        return f"No {thing} was found without going anywhere: go to one place after another and open what is closed."
    return f"No {thing} was seen at {_listed(looked)}: look for it in other places, and open what is closed."


def wanted(goal: str) -> str:
    """The thing that a task asks for: `mug` of `put a clean mug in shelf`."""
    found = _GOAL.search(goal)
    return (found[1] or found[2]) if found else "thing"


def _task(goal: str) -> str:
    return goal.strip().removesuffix(".")


def _sightings(thing: str, turns: Sequence[Turn], last: str | None) -> list[str]:
    """The places whose contents named a thing, in the order in which they were seen."""
    places: dict[str, None] = {}
    for text in [*(turn.observation for turn in turns), last or ""]:
        place = _SEEN_AT.search(text)
        if place and re.search(rf"\b{re.escape(thing)} \d", text[place.end() :]):
            places[place[1] or place[2]] = None
    return list(places)


def _listed(places: Sequence[str]) -> str:
    shown = ", ".join(places[:_MOST])
    return shown + (" and other places" if len(places) > _MOST else "")
