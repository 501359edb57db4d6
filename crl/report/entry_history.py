"""What happened to one entry, event by event: who asked for it, what the text was and became, how it did since."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crl.report.listing import Listing
from crl.report.story import Refused, Story, Version, mean

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of an entry."""

    round: int
    event_id: str
    kind: str
    """import, add, update, merge, keep, rejected; merged, drop or evict where it left."""
    version: int | None
    """The version it made; of what changed nothing, the one that stood."""
    operation_id: str | None
    output: str | None
    """The extractor output that asked for it."""
    before: str | None
    after: str | None
    """The text it made; of a rejected one, the text that was wanted."""
    note: str | None
    """Parents of a merge, reason of a rejection or an eviction, where it went."""
    uses: int
    """Uses of the version it made."""
    mean_outcome: float | None
    """Mean of +1 / −1 over them; None without any."""


def history(story: Story) -> list[Happening]:
    """Everything that happened to an entry, the oldest first."""
    found = [happening for life in story.lives for happening in _of_life(life.versions)]
    for life in story.lives:
        for refused in life.refused:
            standing = [each for each in life.versions if _moment(each.event_id) < _moment(refused.event_id)]
            found.append(_refused(refused, standing[-1] if standing else None))
        ending = life.ending
        if ending is not None:
            last = life.versions[-1]
            kind, note = (ending.kind, ending.reason) if ending.into is None else ("merged", f"into {ending.into}")
            found.append(
                Happening(
                    ending.round, ending.event_id, kind, last.version, ending.operation_id, None, last.text, None, note,
                    0, None,
                )
            )  # fmt: skip
    found += [_refused(refused, None) for refused in story.refused]
    return sorted(found, key=lambda happening: _moment(happening.event_id))


def plain(happenings: list[Happening]) -> list[dict[str, Any]]:
    """As plain data for JSON."""
    return [dataclasses.asdict(each) for each in happenings]


def history_listing(happenings: list[Happening]) -> Listing:
    """The events for a terminal, one per row; a rewritten text shows the words that went and came."""
    from rich.text import Text

    rows = []
    for each in happenings:
        made = each.kind in ("import", "add", "update", "merge")
        cells = (
            str(each.round),
            each.kind + (f" ({each.note})" if each.note else ""),
            "–" if each.version is None else str(each.version),
            each.operation_id or "–",
            str(each.uses) if made else "–",
            "–" if each.mean_outcome is None else f"{each.mean_outcome:+.2f}",
        )
        rows.append([*(Text(cell) for cell in cells), _text(each)])
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


def _text(happening: Happening) -> Text:
    from rich.text import Text

    if happening.kind == "rejected":
        return Text(f"wanted: {happening.after}" if happening.after is not None else "")
    if happening.after is None or happening.kind == "keep":
        return Text(f"was: {happening.before}" if happening.after is None and happening.before else "")
    if happening.before is None:
        return Text(happening.after)
    # Marks as well as colours: a file or a pipe has none.
    marked = {"same": ("{}", ""), "gone": ("[-{}-]", "red strike"), "new": ("{{+{}+}}", "green")}
    pieces = []
    for kind, piece in word_diff(happening.before, happening.after):
        mark, style = marked[kind]
        pieces.append(Text(mark.format(piece), style))
    return Text(" ").join(pieces)


def _of_life(versions: tuple[Version, ...]) -> Iterator[Happening]:
    before = None
    for version in versions:
        writing = version.writing
        note = f"of {', '.join(parent.entry_id for parent in version.parents)}" if version.parents else None
        if version.imported is not None:
            note = f"from {version.imported.experiment}, round {version.imported.round}"
        yield Happening(
            round=version.round,
            event_id=version.event_id,
            kind=version.kind,
            version=version.version,
            operation_id=writing.operation_id if writing else None,
            output=writing.output if writing else None,
            before=before,
            after=version.text,
            note=note,
            uses=len(version.uses),
            mean_outcome=mean(use.outcome for use in version.uses),
        )
        for kept in version.kept:
            yield Happening(
                kept.round, kept.event_id, "keep", version.version, kept.operation_id, None, version.text,
                version.text, None, 0, None,
            )  # fmt: skip
        before = version.text


def _refused(refused: Refused, standing: Version | None) -> Happening:
    return Happening(
        round=refused.round,
        event_id=refused.event_id,
        kind="rejected",
        version=standing.version if standing else None,
        operation_id=refused.writing.operation_id if refused.writing else None,
        output=refused.writing.output if refused.writing else None,
        before=standing.text if standing else None,
        after=refused.text,
        note=refused.told,
        uses=0,
        mean_outcome=None,
    )


def _moment(event_id: str) -> tuple[int, int]:
    number, index = re.findall(r"\d+", event_id)
    return int(number), int(index)
