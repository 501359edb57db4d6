"""Notes about shrines: what they claim, how they are written and read, and what a game teaches.

A note says a beginning of the rule, or what is refused after it, or both:

    Offer the red shrine the bell, then the cup.
    Offer the red shrine the bell, then the cup. It refuses the coin third.
    The red shrine refuses the stone first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crl.protocols import Lesson
from crl.records import Episode, Turn

ORDINALS = ("first", "second", "third", "fourth", "fifth")
_THINGS = r"\w+(?: and the \w+)*"
_REFUSES = rf"refuses the (?P<%s>{_THINGS}) (?P<%s>{'|'.join(ORDINALS)})\."
_NOTE = re.compile(
    r"Offer the \w+ shrine the (?P<taken>\w+(?:, then the \w+)*)\."
    rf"(?: It {_REFUSES % ('next', 'next_place')})?"
    rf"|The \w+ shrine {_REFUSES % ('first', 'first_place')}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Claim:
    """What a note says of a shrine: `taken` is a beginning of its rule, `refused` is not taken after it."""

    taken: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def share_right(self, rule: Sequence[str]) -> float:
        """Share of the things named that are right about a rule."""
        right = [thing == at for thing, at in zip(self.taken, rule, strict=False)]
        right += [False] * (len(self.taken) - len(right))
        following = rule[len(self.taken)] if len(self.taken) < len(rule) else None
        right += [thing != following for thing in self.refused]
        return sum(right) / len(right)


def write_claim(name: str, claim: Claim) -> str | None:
    """The note that makes a claim about a shrine; None where it claims nothing."""
    refused = " and the ".join(claim.refused)
    ordinal = ORDINALS[len(claim.taken)] if len(claim.taken) < len(ORDINALS) else "next"
    if claim.taken:
        text = f"Offer the {name} shrine the {', then the '.join(claim.taken)}."
        return f"{text} It refuses the {refused} {ordinal}." if refused else text
    return f"The {name} shrine refuses the {refused} {ordinal}." if refused else None


def read_claim(text: str) -> Claim | None:
    """The claim of a note; None where any of it is something else, which nobody could check."""
    found = _NOTE.fullmatch(text.strip())
    if found is None:
        return None
    taken = tuple(found["taken"].lower().split(", then the ")) if found["taken"] else ()
    refused, place = found["next"] or found["first"], found["next_place"] or found["first_place"]
    if refused and ORDINALS.index(place.lower()) != len(taken):
        return None
    return Claim(taken, tuple(refused.lower().split(" and the ")) if refused else ())


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """What a game teaches beyond the note that guided it: a new note, a better one, or nothing."""
    offered = [turn.action for turn in turns if turn.valid and turn.action]
    lost = episode.stop_reason == "failure"
    taken, refused = tuple(offered[:-1] if lost else offered), tuple(offered[-1:] if lost else ())
    name = _name(episode)
    told = write_claim(name, Claim(taken, refused))
    if told is None:  # nothing was offered
        return Lesson("return")
    if not episode.guided:
        return Lesson("add", told)
    note = read_claim(episode.experience or "") or Claim(())
    if episode.success:
        return Lesson("return") if note.taken == taken else Lesson("update", told)
    if taken == note.taken[: len(taken)] and len(taken) < len(note.taken):
        # Lost on the way that the note points out: the note is wrong if it was followed, else nothing is new.
        return Lesson("update", told) if refused == note.taken[len(taken) : len(taken) + 1] else Lesson("return")
    if taken == note.taken and (not refused or refused[0] in note.refused):
        return Lesson("return")
    return Lesson("update", told)


def _name(episode: Episode) -> str:
    """The shrine's name, from the goal: `Open the red shrine: …`."""
    found = re.search(r"\bthe (\w+) shrine\b", episode.goal)
    return found.group(1) if found else "last"
