"""The story of one experience: everything that happened to it, with every text, its writer, its sources and its uses.

One list of events, gathered by `why.py`; `story_view.py` shows it. What an entry was before it was merged into another
one is a story inside the story of that other one; what it was in another experiment, before it was imported, likewise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MADE = ("import", "add", "update", "merge")
"""Kinds of events that made a version; all but `update` brought the entry into the bank."""
LEFT = ("merged", "drop", "evict")
"""Kinds of events with which the entry left the bank."""
KINDS = (*MADE, *LEFT, "keep", "rejected")
"""Kinds of events: a merge looked at the entry and kept it, or a change was refused."""


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """A game that an experience was distilled from."""

    episode_id: str
    success: bool | None = None
    """None where the record does not hold the game: it was played in another experiment."""
    goal: str | None = None
    guided_by: str | None = None
    """Entry that guided it."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a model was shown and what it wrote."""

    operation_id: str
    distillation_id: str
    generation_id: str
    prompt: str | None
    """None where the token record is not in this run."""
    output: str | None
    checkpoint: str | None
    """Run-relative directory of its weights, or the base model's name."""
    pruned: bool
    """Whether retention has deleted that directory since."""
    updates: int | None
    """Updates those weights had gone through."""
    weights_digest: str | None
    role: str | None
    """The model's role; None as `prompt`."""


@dataclass(frozen=True, slots=True)
class Use:
    """One game that a version guided."""

    episode_id: str
    round: int
    success: bool
    similarity: float | None
    """Cosine of the game's description and the text."""
    outcome: float | None
    """+1 or −1; None where it was not credited: the game broke, or the round is not complete."""
    free_mean: float | None
    guided_minus_free: float | None


@dataclass(frozen=True, slots=True)
class Tried:
    """What a trial found of a text before it was believed."""

    round: int | None
    """Round of its episodes; None where it was not tried."""
    pairs: int
    wins_with: int
    wins_without: int
    difference: float | None
    admitted: bool


@dataclass(frozen=True, slots=True)
class EvaluationUse:
    """One held-out game that a version guided. It earns no credit."""

    evaluation_id: str
    round: int
    success: bool


@dataclass(frozen=True, slots=True)
class Import:
    """What an imported entry was where it comes from."""

    experiment: str
    round: int
    snapshot: str
    """Digest of the bank it was taken from."""
    entry_id: str
    family: str
    version: int
    uses: int
    """Guided games there; here they are counted from 0."""
    mean_outcome: float | None
    story: dict[str, Any]
    """:meth:`Story.plain` of it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to an entry: a version was made, kept or refused, or the entry left the bank."""

    round: int
    event_id: str
    kind: str
    """One of :data:`MADE` or :data:`LEFT`, `keep` (a merge looked at it and kept it), or `rejected`."""
    version: int | None
    """The version it made, 1 when it came into the bank; else the one that was there; None outside of the bank."""
    operation_id: str | None
    before: str | None = None
    """Text of the entry until then; None where it had none."""
    text: str | None = None
    """The text it made or kept; of a rejected one, the text that was wanted; None where the entry left."""
    asked: str | None = None
    """Of a rejected one, the kind of the operation."""
    reason: str | None = None
    """Why it was rejected, dropped or evicted."""
    other: str | None = None
    """The entry that it was merged into, or that holds the text of a rejected one already."""
    writing: Writing | None = None
    """The output behind a version or a rejected one; None for an import."""
    tried: Tried | None = None
    """The trial of the text it made or wanted; None where notes are not tried."""
    content_digest: str | None = None
    embedder_cut: bool = False
    """Whether the embedder reads only the beginning of the text."""
    parents: tuple[Story, ...] = ()
    """Of a merge: the entries it replaced, up to that moment."""
    episodes: tuple[SourceEpisode, ...] = ()
    imported: Import | None = None
    uses: tuple[Use, ...] = ()
    """Games that the version guided, the oldest first."""
    evaluations: tuple[EvaluationUse, ...] = ()

    @property
    def mean_outcome(self) -> float | None:
        """Credit: mean of +1 / −1 over the credited uses; None without any."""
        return mean(use.outcome for use in self.uses)

    @property
    def guided_minus_free(self) -> float | None:
        """Mean difference to the free games of the same groups; None without any."""
        return mean(use.guided_minus_free for use in self.uses)

    @property
    def note(self) -> str | None:
        """Where it came from, where it went, or why, as a phrase."""
        if self.kind == "rejected":
            return f"{self.asked}: {told_reason(self.reason or '', self.other)}"
        if self.kind == "merged":
            return f"into {self.other}"
        if self.imported is not None:
            return f"from {self.imported.experiment}, round {self.imported.round}"
        return f"of {', '.join(parent.entry_id for parent in self.parents)}" if self.parents else self.reason

    @property
    def departure(self) -> str:
        """Of one with which the entry left, how: as a phrase."""
        how = {"merged": f"merged into {self.other}", "drop": "dropped", "evict": "evicted"}[self.kind]
        return f"left the bank in round {self.round}: {how}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one entry, up to a moment."""

    entry_id: str
    family: str
    events: tuple[Event, ...]
    """The oldest first."""
    known_until: int
    """Newest round whose bank is published."""

    @property
    def versions(self) -> tuple[Event, ...]:
        """The events that made a version, the oldest first."""
        return tuple(event for event in self.events if event.kind in MADE)

    @property
    def refused(self) -> tuple[Event, ...]:
        """Changes that were asked for and not made."""
        return tuple(event for event in self.events if event.kind == "rejected")

    @property
    def ending(self) -> Event | None:
        """How it left the bank; None while it is there, and for an entry that never came."""
        moves = [event for event in self.events if event.kind in MADE + LEFT]
        return moves[-1] if moves and moves[-1].kind in LEFT else None

    @property
    def uses(self) -> tuple[Use, ...]:
        """Every use, the oldest first."""
        return tuple(use for version in self.versions for use in version.uses)

    @property
    def fate(self) -> str:
        """What became of it, as a phrase."""
        if not self.versions:
            return "it never came into the bank"
        return self.ending.departure if self.ending else f"in the bank after round {self.known_until}"

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON; with the sums that people ask for."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def history(self) -> list[dict[str, Any]]:
        """The events in short as plain data for JSON: what was asked, what the text was and became, how it did."""
        names = ("round", "event_id", "kind", "version", "operation_id", "before", "note", "mean_outcome")
        return [
            {name: getattr(event, name) for name in names}
            | {"after": event.text, "output": event.writing and event.writing.output, "uses": len(event.uses)}
            for event in self.events
        ]


def told_reason(reason: str, repeats: str | None) -> str:
    """A reason code with the entry that it is about; an entry that an update left unchanged is named anyway."""
    return reason if repeats is None or reason == "unchanged" else f"{reason} of {repeats}"


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None where nothing is."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def story_of(plain: dict[str, Any]) -> Story:
    """The inverse of :meth:`Story.plain`: the story of an imported entry comes out of another experiment's JSON."""
    return _adapter().validate_python(plain)


@cache
def _adapter() -> TypeAdapter[Story]:
    from pydantic import TypeAdapter

    return TypeAdapter(Story)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Story):
        fields |= {"fate": value.fate, "uses": len(value.uses), "mean_outcome": mean(u.outcome for u in value.uses)}
    if isinstance(value, Event):
        fields |= {"mean_outcome": value.mean_outcome, "guided_minus_free": value.guided_minus_free}
    return fields
