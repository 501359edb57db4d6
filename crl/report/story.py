"""The story of one experience: every text it ever had, who wrote it from what, where it was used, how it ended.

Plain values, gathered by `why.py`. What an entry was before it was merged into another one is a story inside the story
of that other one; what it was in another experiment, before it was imported, likewise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """A game that an experience was distilled from."""

    episode_id: str
    success: bool | None
    """None where the record does not hold the game: it was played in another experiment."""
    goal: str | None
    guided_by: str | None
    """Entry that guided it."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What the extractor was shown and what it wrote."""

    operation_id: str
    distillation_id: str
    generation_id: str
    prompt: str | None
    """None where the token record is not in this run."""
    output: str | None
    checkpoint: str | None
    """Run-relative directory of the extractor's weights, or the base model's name."""
    pruned: bool
    """Whether retention has deleted that directory since."""
    updates: int | None
    """Updates those weights had gone through."""
    weights_digest: str | None


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


@dataclass(frozen=True, slots=True)
class Kept:
    """A merge that looked at a version and kept it."""

    round: int
    event_id: str
    operation_id: str


@dataclass(frozen=True, slots=True)
class Version:
    """One text of an entry."""

    version: int
    """1 when it came into the bank, +1 with each update, as `bank.version`."""
    kind: str
    """add, update, merge or import."""
    round: int
    event_id: str
    text: str
    content_digest: str
    embedder_cut: bool
    """Whether the embedder reads only the beginning of the text."""
    parents: tuple[Story, ...]
    """Of a merge: the entries it replaced, up to that moment."""
    episodes: tuple[SourceEpisode, ...]
    writing: Writing | None
    """None for an import."""
    imported: Import | None
    uses: tuple[Use, ...]
    evaluations: tuple[EvaluationUse, ...]
    kept: tuple[Kept, ...]

    @property
    def mean_outcome(self) -> float | None:
        """Credit: mean of +1 / −1 over the credited uses; None without any."""
        return mean(use.outcome for use in self.uses)

    @property
    def guided_minus_free(self) -> float | None:
        """Mean difference to the free games of the same groups; None without any."""
        return mean(use.guided_minus_free for use in self.uses)


@dataclass(frozen=True, slots=True)
class Refused:
    """A change of the entry that was asked for and not made."""

    round: int
    event_id: str
    asked: str
    """Kind of the operation."""
    text: str | None
    """What it would have said."""
    reason: str
    repeats: str | None
    """The entry that holds the text already, where that is the reason."""
    writing: Writing | None

    @property
    def told(self) -> str:
        """What was asked for and why it was refused, as a phrase."""
        return f"{self.asked}: {told_reason(self.reason, self.repeats)}"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an entry left the bank."""

    round: int
    event_id: str
    kind: str
    """merge, drop or evict."""
    into: str | None
    """Entry it was merged into."""
    reason: str | None
    operation_id: str | None


@dataclass(frozen=True, slots=True)
class Life:
    """One stay of an entry in the bank. There are several only where an id came back after it had left."""

    versions: tuple[Version, ...]
    refused: tuple[Refused, ...]
    ending: Ending | None
    """None while it is in the bank."""


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one entry, up to a moment."""

    entry_id: str
    family: str
    lives: tuple[Life, ...]
    refused: tuple[Refused, ...]
    """What was asked of it while it was not in the bank."""
    known_until: int
    """Newest round whose bank is published."""

    @property
    def versions(self) -> tuple[Version, ...]:
        """Every version, the oldest first."""
        return tuple(version for life in self.lives for version in life.versions)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Every use, the oldest first."""
        return tuple(use for version in self.versions for use in version.uses)

    @property
    def fate(self) -> str:
        """What became of it, as a phrase."""
        ending = self.lives[-1].ending if self.lives else None
        if not self.lives:
            return "it never came into the bank"
        return f"in the bank after round {self.known_until}" if ending is None else told_ending(ending)

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON; with the sums that people ask for."""
        plain: dict[str, Any] = _plain(self)
        return plain


def told_reason(reason: str, repeats: str | None) -> str:
    """A reason code with the entry that it is about; an entry that an update left unchanged is told anyway."""
    return reason if repeats is None or reason == "unchanged" else f"{reason} of {repeats}"


def told_ending(ending: Ending) -> str:
    """How an entry left, as a phrase."""
    if ending.kind == "merge":
        return f"left the bank in round {ending.round}: merged into {ending.into}"
    how = {"drop": "dropped", "evict": "evicted"}.get(ending.kind, ending.kind)
    return f"left the bank in round {ending.round}: {how}" + (f" ({ending.reason})" if ending.reason else "")


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None where nothing is."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Story):
        fields |= {"fate": value.fate, "uses": len(value.uses), "mean_outcome": mean(u.outcome for u in value.uses)}
    if isinstance(value, Version):
        fields |= {"mean_outcome": value.mean_outcome, "guided_minus_free": value.guided_minus_free}
    return fields


def story_of(plain: dict[str, Any]) -> Story:
    """The inverse of :meth:`Story.plain`: the story of an imported entry comes out of another experiment's JSON."""
    lives = tuple(
        Life(
            versions=tuple(_version_of(each) for each in life["versions"]),
            refused=tuple(_refused_of(each) for each in life["refused"]),
            ending=None if life["ending"] is None else Ending(**life["ending"]),
        )
        for life in plain["lives"]
    )
    refused = tuple(_refused_of(each) for each in plain["refused"])
    return Story(plain["entry_id"], plain["family"], lives, refused, plain["known_until"])


def _version_of(plain: dict[str, Any]) -> Version:
    own = {field.name: plain[field.name] for field in dataclasses.fields(Version)}
    own |= {
        "parents": tuple(story_of(each) for each in plain["parents"]),
        "episodes": tuple(SourceEpisode(**each) for each in plain["episodes"]),
        "writing": _writing_of(plain["writing"]),
        "imported": None if plain["imported"] is None else Import(**plain["imported"]),
        "uses": tuple(Use(**each) for each in plain["uses"]),
        "evaluations": tuple(EvaluationUse(**each) for each in plain["evaluations"]),
        "kept": tuple(Kept(**each) for each in plain["kept"]),
    }
    return Version(**own)


def _refused_of(plain: dict[str, Any]) -> Refused:
    return Refused(**{**plain, "writing": _writing_of(plain["writing"])})


def _writing_of(plain: dict[str, Any] | None) -> Writing | None:
    return None if plain is None else Writing(**plain)
