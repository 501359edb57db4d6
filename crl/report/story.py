"""The story of one experience: everything that happened to it, with every text, its writer, its sources and its uses.

One list of events, gathered by `why.py`. What an entry was before it was merged into another one is a story inside the
story of that other one; what it was in another experiment, before it was imported, likewise. For a terminal it is a
tree, or a table with one row per event: what models wrote is text in these, never markup.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from crl.report.terminal import Listing

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from rich.text import Text
    from rich.tree import Tree

_SHORT = 200
"""Characters of a prompt or an output that are shown: the last ones, where prompts say what is asked."""
MADE = ("import", "add", "update", "merge")
"""Kinds of events that made a version; all but `update` brought the entry into the bank."""
LEFT = ("merged", "drop", "evict")
"""Kinds of events with which the entry left the bank."""
KINDS = (*MADE, *LEFT, "keep", "rejected")
"""Kinds of events: a merge looked at the entry and kept it, or a change was refused."""


Branch = tuple[str, list["Branch"]]
"""A text of the tree, and what is below it."""


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """A game that an experience was distilled from."""

    episode_id: str
    success: bool | None = None
    """None where the record does not hold the game: it was played in another experiment."""
    goal: str | None = None
    guided_by: str | None = None
    """Entry that guided it; of several, all of them."""


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
    """The trial of the text it made or wanted; None where none is tried."""
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
    def remark(self) -> str | None:
        """Where it came from, where it went, or why, as a phrase."""
        if self.kind == "rejected":
            return f"{self.asked}: {reason_words(self.reason or '', self.other)}"
        if self.kind == "merged":
            return f"into {self.other}"
        if self.imported is not None:
            return f"from {self.imported.experiment}, round {self.imported.round}"
        of = f"of {', '.join(parent.entry_id for parent in self.parents)}" if self.parents else None
        if self.reason is None:
            return of
        return f"{self.reason} {of}" if of else reason_words(self.reason, self.other)

    @property
    def departure(self) -> str:
        """Of one with which the entry left, how: as a phrase."""
        how = {"merged": f"merged into {self.other}", "drop": "dropped", "evict": "evicted"}[self.kind]
        why = "" if self.reason is None else f" ({reason_words(self.reason, self.other)})"
        return f"left the bank in round {self.round}: {how}{why}"


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
        names = ("round", "event_id", "kind", "version", "operation_id", "before", "remark", "mean_outcome")
        return [
            {name: getattr(event, name) for name in names}
            | {"after": event.text, "output": event.writing and event.writing.output, "uses": len(event.uses)}
            for event in self.events
        ]


def reason_words(reason: str, repeats: str | None) -> str:
    """A reason code with the entry that it is about; an entry that an update left unchanged is named anyway."""
    if repeats is None or reason == "unchanged":
        return reason
    said = {"contained": "says less than", "newer_version": "replaced by its newer version",
            "older_version": "won less often than"}  # fmt: skip
    return f"{said[reason]} {repeats}" if reason in said else f"{reason} of {repeats}"


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


def story_tree(story: Story, *, full: bool = False) -> Tree:
    """The whole story, parents' and sources' included; `full` shows prompts and outputs whole."""
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, branches: Iterable[Branch]) -> Tree:
        for text, below in branches:
            grow(tree.add(Text(text)), below)  # text in which brackets are not markup
        return tree

    head = f"experience {story.entry_id} (family {story.family}): {story.fate}"
    return grow(Tree(Text(head)), _branches(story, full))


def history_listing(story: Story) -> Listing:
    """The events, one per row; a rewritten text shows the words that went and came."""
    rows = []
    for event in story.events:
        rows.append([
            event.round, event.kind + (f" ({event.remark})" if event.remark else ""),
            "–" if event.version is None else event.version, event.operation_id or "–",
            len(event.uses) if event.kind in MADE else "–",
            "–" if event.mean_outcome is None else f"{event.mean_outcome:+.2f}", _changed(event),
        ])  # fmt: skip
    return Listing(
        ("round", "event", "version", "asked by", "uses", "credit", "text"), rows,
        words={"text"}, right={"round", "version", "uses", "credit"}, packed=True,
    )  # fmt: skip


def word_diff(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Runs of words of two texts, each `same`, `gone` or `new`; space between words does not count."""
    old, new = before.split(), after.split()
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "same", " ".join(old[i1:i2])
            continue
        if i2 > i1:
            yield "gone", " ".join(old[i1:i2])
        if j2 > j1:
            yield "new", " ".join(new[j1:j2])


def _changed(event: Event) -> Text:
    from rich.text import Text

    if event.kind == "rejected":
        return Text("" if event.text is None else f"wanted: {event.text}")
    if event.kind in LEFT:
        return Text(f"was: {event.before}")
    if event.kind == "keep" or event.before is None:
        return Text("" if event.kind == "keep" else event.text or "")
    # Marks as well as colors: a file or a pipe has none.
    marked = {"same": ("{}", ""), "gone": ("[-{}-]", "red strike"), "new": ("{{+{}+}}", "green")}
    pieces = [(marked[kind], piece) for kind, piece in word_diff(event.before, event.text or "")]
    return Text(" ").join(Text(mark.format(piece), style) for (mark, style), piece in pieces)


def _branches(story: Story, full: bool) -> list[Branch]:
    found: list[Branch] = []
    left, newest = False, found
    for event in story.events:
        if event.kind in MADE:
            found += [(f"came back in round {event.round}", [])] if left else []
            left, newest = False, _of_version(event, full)
            found.append((f"version {event.version}, {event.kind} in round {event.round}: {event.text}", newest))
        elif event.kind == "keep":
            newest.append((f"a merge looked at it and kept it in round {event.round}", []))
        elif event.kind == "rejected":
            wanted: list[Branch] = [] if event.text is None else [(f"wanted: {event.text}", [])]
            below = [*wanted, *_of_writing(event.writing, full), *_of_trial(event.tried)]
            found.append((f"refused in round {event.round}: {event.remark}", below))
        else:
            left = True
            if event is not story.ending:  # that is at the top already
                found.append((event.departure, []))
    if len(story.versions) > 1 and story.uses:
        found.append((f"all versions: {_sum_of_uses(story.uses)}", []))
    return found


def _of_version(version: Event, full: bool) -> list[Branch]:
    found: list[Branch] = []
    if version.embedder_cut:
        found.append(("the embedder reads only the beginning of it: it is found by that alone", []))
    if (origin := version.imported) is not None:
        credit = "" if origin.mean_outcome is None else f", credit {origin.mean_outcome:+.2f}"
        told = (
            f"imported from experiment {origin.experiment}, bank after round {origin.round} "
            f"({origin.snapshot[:12]}): there {origin.entry_id}, version {origin.version}, "
            f"used in {origin.uses} episodes{credit}"
        )
        found.append((told, _branches(story_of(origin.story), full)))
    elif not version.episodes:
        found.append(("made from no episode of its own" + (": see what it is from" if version.parents else ""), []))
    else:
        sources = (
            f"{each.episode_id} ({_outcome(each.success)}){f', guided by {each.guided_by}' if each.guided_by else ''}"
            for each in version.episodes
        )
        goals = dict.fromkeys(each.goal for each in version.episodes if each.goal)
        found.append((f"made from {', '.join(sources)}", [(f"goal: {goal}", []) for goal in goals]))
    found += [*_of_writing(version.writing, full), *_of_trial(version.tried)]
    for parent in version.parents:
        known = parent.fate if parent.versions else "nothing is known of it"
        found.append((f"from {parent.entry_id}: {known}", _branches(parent, full)))
    difference = version.guided_minus_free
    told = "" if difference is None else f", guided minus free {difference:+.2f}"
    uses: Branch = (f"{_sum_of_uses(version.uses)}{told}", [(_use(use), []) for use in version.uses])
    found.append(uses if version.uses else ("never used", []))
    if version.evaluations:
        won = sum(use.success for use in version.evaluations)
        rounds = ", ".join(map(str, sorted({use.round for use in version.evaluations})))
        count = len(version.evaluations)
        found.append((f"shown in {count} held-out game{_s(count)} after round {rounds}: {won} won (no credit)", []))
    return found


def _of_writing(writing: Writing | None, full: bool) -> list[Branch]:
    if writing is None:
        return []
    weights = "" if writing.weights_digest is None else f", weights {writing.weights_digest[:12]}"
    facts = [] if writing.updates is None else [f"{writing.updates} update{_s(writing.updates)}"]
    facts += ["pruned since"] if writing.pruned else []
    told = (f" ({', '.join(facts)})" if facts else "") + f"{weights}, output {writing.generation_id}"
    below: list[Branch] = []
    for name, text in (("prompt", writing.prompt), ("output", writing.output)):
        if text is not None:
            joined = " ".join(text.split())
            short = joined if len(joined) <= _SHORT else f"…{joined[-_SHORT:]}"
            below.append((f"{name}: {text if full else short}", []))
    return [(f"written by {writing.role or 'a model'} {writing.checkpoint or 'of unknown weights'}{told}", below)]


def _of_trial(tried: Tried | None) -> list[Branch]:
    if tried is None:
        return []
    if tried.difference is None:
        return [("not tried: it stays out of the bank", [])]
    told = (
        f"tried in round {tried.round} on {tried.pairs} layout{_s(tried.pairs)}: won {tried.wins_with} with it, "
        f"{tried.wins_without} without ({tried.difference:+.2f}): {'admitted' if tried.admitted else 'kept out'}"
    )
    return [(told, [])]


def _use(use: Use) -> str:
    parts = [f"{use.episode_id}: {_outcome(use.success)}"]
    if use.similarity is not None:
        parts.append(f"similarity {use.similarity:.2f}")
    if use.guided_minus_free is not None:
        parts.append(f"guided minus free {use.guided_minus_free:+.2f} (free mean {use.free_mean:+.2f})")
    return ", ".join(parts)


def _sum_of_uses(uses: Sequence[Use]) -> str:
    credit = mean(use.outcome for use in uses)
    told = "not credited yet" if credit is None else f"credit {credit:+.2f}"
    return f"used in {len(uses)} episode{_s(len(uses))}, {told}"


def _outcome(success: bool | None) -> str:
    return {True: "won", False: "lost", None: "outcome unknown"}[success]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
