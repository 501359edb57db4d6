"""A bank as skills, the folders that coding agents read: written of a run, and read back from anybody.

    <skill>/SKILL.md                  front matter (name, description), then experiences of a task family, best first
    <skill>/references/more.md        those behind the first hundred, in the same form
    <skill>/references/episodes.md    the episodes behind each

SKILL.md is the truth: what is imported is what stands there, so a person may edit it. An experience is a block quote
under a heading of its own, so a text of any form comes back as it was. Of a file that somebody else wrote, a section is
an entry, with its heading; one that is too long is an entry per paragraph and list item. Whatever a file says of uses
is its writer's word: entries come back untried.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crl.bank.segments import text_digest
from crl.config.base import NAME_PATTERN
from crl.config.yaml_text import read_value
from crl.errors import BadInput
from crl.limits import RECORD_FILE_BYTES, SKILL_BYTES, read_limited
from crl.records import Row, table_of
from crl.report.story import Event, Story
from crl.run.files import canonical_json, sha256_bytes, whole_folder
from crl.text.answers import is_blank, odd_character
from crl.transfer import SKILL_FORMAT
from crl.transfer.gather import TABLES, ExportedEntry, Gathered, LineageRow, UseRow, story_json

SKILL, MORE, EPISODES = "SKILL.md", "references/more.md", "references/episodes.md"
_LONGEST_NAME, _LONGEST_DESCRIPTION, _LONGEST_GOAL = 64, 1024, 300
_FIRST = 100
"""Experiences in SKILL.md itself: agents read it whole."""
_MOST_SKILLS = 10_000
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FAMILY = re.compile(r"[a-z][a-z0-9_]{0,30}")
_OWN = re.compile(r"(?P<id>.+): (?P<uses>used in \d+ episodes?, \d+ won|never used)")
_HEADING = re.compile(r"(#{1,6})[ \t]")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]")
_INTRODUCTION = """# Experiences of `{family}`

A model wrote these about episodes of an agent; the best come first. Each is quoted as it was written: advice to weigh,
and no order. `{episodes}` names the episodes behind them.{more}
"""


def write_skills(bank: Gathered, target: Path) -> dict[str, int]:
    """Write a folder per task family; returns how many experiences each has, by the skill's name.

    Raises BadInput where the target exists or the bank is empty, DiskFull.
    """
    entries = sorted(bank.tables[ExportedEntry.table].to_pylist(), key=_by_credit)
    if not entries:
        raise BadInput(
            f"the bank of {bank.provenance['experiment']} after round {bank.provenance['round']} has no entry",
            expected="a bank with entries",
            next_step="name another round: --round N",
        )
    versions, uses = (bank.tables[each.table].to_pylist() for each in (LineageRow, UseRow))
    names = _names({entry["family"] for entry in entries})
    with whole_folder(target) as scratch:
        for family, name in names.items():
            listed = [entry for entry in entries if entry["family"] == family]
            first, more = listed[:_FIRST], listed[_FIRST:]
            also = f" {len(more)} more stand in `{MORE}`." if more else ""
            files = {
                SKILL: _front(name, family, listed, bank.provenance)
                + _INTRODUCTION.format(family=family, episodes=EPISODES, more=also)
                + _quoted(first),
                EPISODES: _episodes(family, listed, versions, uses),
            }
            if more:
                files[MORE] = f"# More experiences of `{family}`\n{_quoted(more)}"
            for relative, text in files.items():
                path = scratch / name / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
    return {name: sum(entry["family"] == family for entry in entries) for family, name in names.items()}


def _by_credit(entry: Mapping[str, Any]) -> tuple[float, int, int, str]:
    """Of equals the newest first."""
    mean = entry["mean_outcome"]
    return 2.0 if mean is None else -mean, -entry["uses"], -entry["order"], entry["entry_id"]


def _names(families: Iterable[str]) -> dict[str, str]:
    """A skill's name by family, each once."""
    names: dict[str, str] = {}
    for family in sorted(families):
        plain = re.sub("-+", "-", family.replace("_", "-")).strip("-")
        numbered = (f"{plain}-{number}" for number in range(2, len(names) + 3))
        names[family] = next(each for each in (plain, *numbered) if each not in names.values())
    return names


def _front(name: str, family: str, entries: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> str:
    goals = Counter(goal for entry in entries for goal in _goals(json.loads(entry["story"])))
    # A goal is an environment's text: one line, and no tag.
    plain = re.sub(r"\s+", " ", re.sub("[<>]", " ", goals.most_common(1)[0][0])).strip() if goals else ""
    plain = "".join(each for each in plain if each.isprintable()).rstrip(".")
    about = f", such as: {plain[:_LONGEST_GOAL]}{'…' if len(plain) > _LONGEST_GOAL else ''}" if plain else ""
    front = {
        "name": name,
        "description": f"Advice for tasks of the kind {family}{about}. {len(entries)} experiences of an agent, with "
        "how often each was used and how often that was won. For such tasks only.",
        "metadata": {
            "family": family,
            "experiment": provenance["experiment"],
            "round": str(provenance["round"]),
            "snapshot": provenance["snapshot_digest"],
        },
    }  # fmt: skip
    assert len(front["description"]) <= _LONGEST_DESCRIPTION
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=10**6)}---\n\n"


def _goals(story: Mapping[str, Any]) -> Iterator[str]:
    for event in story["events"]:
        yield from (episode["goal"] for episode in event["episodes"] if episode["goal"])
        for parent in event["parents"]:
            yield from _goals(parent)
        if event["imported"] is not None:
            yield from _goals(event["imported"]["story"])


def _quoted(entries: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for entry in entries:
        uses, mean = entry["uses"], entry["mean_outcome"]
        won = 0 if mean is None else round(uses * (1 + mean) / 2)
        words = f"used in {uses} episode{'s' if uses != 1 else ''}, {won} won" if uses else "never used"
        lines = (f"> {line}" if line else ">" for line in entry["text"].split("\n"))
        parts.append(f"\n## {entry['entry_id']}: {words}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _episodes(
    family: str,
    entries: Sequence[Mapping[str, Any]],
    versions: Sequence[Mapping[str, Any]],
    uses: Sequence[Mapping[str, Any]],
) -> str:
    """What each experience was made from, and the episodes that it guided, in any of its versions."""
    made: dict[str, list[str]] = {}
    for row in versions:
        outcomes = [*row["episode_successes"], *[None] * len(row["episode_ids"])]
        ends = {True: " (won)", False: " (lost)", None: ""}
        sources = [f"{name}{ends[won]}" for name, won in zip(row["episode_ids"], outcomes, strict=False)]
        of = sources or row["parents"]
        made.setdefault(row["entry_id"], []).append(
            f"- version {row['version']}, {row['kind']} in round {row['round']}"
            + (f", from {', '.join(of)}" if of else "")
        )
    for row in uses:
        near = "" if row["similarity"] is None else f", similarity {row['similarity']:.2f}"
        made.setdefault(row["entry_id"], []).append(
            f"- version {row['version']} guided {row['episode_id']}: {'won' if row['success'] else 'lost'}{near}"
        )
    parts = [f"# Episodes behind the experiences of `{family}`\n"]
    for entry in entries:
        lines = made.get(entry["entry_id"], [])
        if of_parents := [name for name in entry["episode_ids"] if not any(f" {name}" in line for line in lines)]:
            lines = [*lines, f"- what it was merged from was made from {', '.join(of_parents)}"]
        parts.append(f"\n## {entry['entry_id']}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Section:
    """A part of a file: a heading and what is below it, up to the next heading."""

    line: int
    level: int
    """0 of what is before the first heading."""
    heading: str
    lines: list[str]

    @property
    def own(self) -> re.Match[str] | None:
        """Its heading, where it is one that :func:`write_skills` writes."""
        return _OWN.fullmatch(self.heading) if self.level == 2 else None


def is_skills(path: Path) -> bool:
    """Whether a folder is a skill, or holds some."""
    return path.is_dir() and ((path / SKILL).exists() or any(path.glob(f"*/{SKILL}")))


def read_skills(path: Path, max_characters: int) -> Gathered:
    """The experiences of a skill, or of a folder of skills, as a bank that nobody has used. `max_characters`: of one;
    what is longer and has no parts is left as it is, for the import to leave out.

    Raises BadInput, with the file, for a link, a file that is too large, no UTF-8, no front matter with name and
    description, a name that is there twice, a control character.
    """
    listed: list[tuple[str, str, str, str]] = []
    contents: dict[str, bytes] = {}
    names: dict[str, Path] = {}

    def read(folder: Path, relative: str) -> bytes:
        content = _content(folder, relative, RECORD_FILE_BYTES - sum(map(len, contents.values())))
        contents[(folder / relative).relative_to(path).as_posix()] = content
        return content

    for folder in _folders(path):
        file = folder / SKILL
        texts = {SKILL: _decoded(file, read(folder, SKILL))}
        name, family, own, first = _read_front(file, texts[SKILL])
        if name in names:
            raise _refused(file, f"the name {name!r} is that of {names[name]}, too")
        names[name] = file
        if own and (folder / MORE).exists():
            texts[MORE] = _decoded(folder / MORE, read(folder, MORE))
        found = [
            (folder / relative, *each)
            for relative, content in texts.items()
            for each in _texts(content, first if relative == SKILL else 1, own, max_characters)
        ]
        for number, (where, line, claim, text) in enumerate(found, 1):
            if (odd := odd_character(text)) is not None:
                raise _refused(where, f"the section of line {line} holds the control character {odd!r}")
            source = f"{name}/{where.relative_to(folder).as_posix()}, line {line}"
            listed.append((f"{name}-{number:04d}", family, text, source + (f": {claim}" if claim else "")))
    if not listed:
        raise _refused(path, "it holds no text to learn from")
    # The last one is the oldest: of a family that is full the first of a file stay.
    entries = [_entry(*each, order) for order, each in enumerate(reversed(listed))]
    rows: dict[type[Row], list[Row]] = {each: [] for each in TABLES.values()} | {ExportedEntry: [*entries]}
    kept = re.sub("[^a-z0-9_-]+", "-", path.absolute().name.lower()).strip("-_")[:60]
    provenance = {
        "format": SKILL_FORMAT,
        "experiment": kept if re.fullmatch(NAME_PATTERN, kept) else "skills",
        "round": 0,
        "entries": len(entries),
        "snapshot_digest": sha256_bytes(canonical_json({name: sha256_bytes(each) for name, each in contents.items()})),
        "embedder": {"name": "", "digest": "", "dimension": None},
        "families": sorted({entry.family for entry in entries}),
    }
    return Gathered({each.table: table_of(each, rows[each]) for each in TABLES.values()}, provenance)


def _folders(path: Path) -> list[Path]:
    """The folders of skills, in order."""
    if (path / SKILL).exists() or (path / SKILL).is_symlink():
        return [path]
    found = []
    for child in sorted(path.iterdir()):
        if child.name.startswith("."):
            continue
        if child.is_symlink():
            raise _refused(child, "it is a link")
        if child.is_dir() and ((child / SKILL).exists() or (child / SKILL).is_symlink()):
            found.append(child)
        if len(found) > _MOST_SKILLS:
            raise _refused(path, f"there are more than {_MOST_SKILLS:,} skills")
    return found


def _content(folder: Path, relative: str, left: int) -> bytes:
    path = folder
    for part in Path(relative).parts:
        path = path / part
        if path.is_symlink():
            raise _refused(path, "it is a link")
    try:
        return read_limited(path, min(SKILL_BYTES, left))
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from None


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _refused(path, f"it is not UTF-8: byte {error.start}") from None


def _read_front(path: Path, text: str) -> tuple[str, str, bool, int]:
    """Name, task family, whether it is a file of ours, and the line behind the front matter."""
    lines = text.split("\n")
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() == "---"), None)
    if lines[0].rstrip() != "---" or end is None:
        raise _refused(path, "it does not begin with front matter: a line ---, name and description, a line ---")
    try:
        front = read_value("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())
        raise _refused(path, f"its front matter is no YAML: {told[:300]}") from None
    if not isinstance(front, dict):
        raise _refused(path, "its front matter holds no keys")
    name, description, more = front.get("name"), front.get("description"), front.get("metadata")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        wanted = f"at most {_LONGEST_NAME} lower case letters, digits and single hyphens"
        raise _refused(path, f"its name is {str(name)[:80]!r}, expected {wanted}")
    if not isinstance(description, str) or is_blank(description) or len(description) > _LONGEST_DESCRIPTION:
        raise _refused(path, f"it has no description of 1 to {_LONGEST_DESCRIPTION} characters")
    family = more.get("family") if isinstance(more, dict) else None
    if family is None:
        return name, name, False, end + 2
    if not isinstance(family, str) or not _FAMILY.fullmatch(family):
        raise _refused(path, f"its metadata name the task family {str(family)[:80]!r}")
    return name, family, True, end + 2


def _texts(text: str, first: int, own: bool, max_characters: int) -> Iterator[tuple[int, str, str]]:
    """The experiences in a file, from a line on: the line, what its heading says of uses, the text."""
    for section in _sections(text.split("\n")[first - 1 :], first):
        if own and (ours := section.own):
            yield section.line, f"{ours['id']}, {ours['uses']}", "\n".join(map(_unquoted, _trimmed(section.lines)))
        elif not own or section.level > 1:  # before its first experience stands what explains ours
            for part in _parts(section, max_characters):
                if not is_blank(part):
                    yield section.line, "", part


def _sections(lines: Sequence[str], first: int) -> Iterator[_Section]:
    section, fence = _Section(first, 0, "", []), ""
    for number, line in enumerate(lines, first):
        if mark := _FENCE.match(line):
            fence = mark[1] if not fence else "" if mark[1] == fence else fence
        marks = None if fence else _HEADING.match(line)
        if marks is None:
            section.lines.append(line)
            continue
        yield section
        heading = line[marks.end() :].strip()
        closed = heading.rstrip("#")  # Markdown may close a heading: ## Title ##
        section = _Section(number, len(marks[1]), closed.rstrip() if closed[-1:] in ("", " ", "\t") else heading, [])
    yield section


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Without blank lines at both ends."""
    held = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[held[0] : held[-1] + 1]) if held else []


def _unquoted(line: str) -> str:
    return line[2:] if line.startswith("> ") else line[1:] if line.startswith(">") else line


def _parts(section: _Section, max_characters: int) -> Iterator[str]:
    """A section with its heading; where that is too long, its paragraphs and list items, each with the heading."""
    lines, head = _trimmed(section.lines), f"{section.heading}\n" if section.heading else ""
    if not lines:  # a title
        return
    if len(whole := head + "\n".join(lines)) <= max_characters:
        yield whole
        return
    part: list[str] = []
    fence = False
    for line in [*lines, ""]:
        starts = not fence and (not line.strip() or bool(_ITEM.match(line)))
        if starts and part:
            yield head + "\n".join(part)
            part = []
        fence ^= bool(_FENCE.match(line))
        if line.strip() or fence:
            part.append(line)
    if part:  # a fence that nobody closed
        yield head + "\n".join(_trimmed(part))


def _entry(entry_id: str, family: str, text: str, source: str, order: int) -> ExportedEntry:
    digest = text_digest(text)
    event = Event(
        round=0, event_id=f"{entry_id}-read", kind="add", version=1, operation_id=None, text=text, reason=source,
        content_digest=digest,
    )  # fmt: skip
    return ExportedEntry(
        entry_id=entry_id, family=family, text=text, content_digest=digest, version=1, order=order,
        created_round=0, updated_round=0, operation_id=entry_id, distillation_id=entry_id, generation_id=entry_id,
        episode_ids=[entry_id], parents=[], retrieved=0, uses=0, mean_outcome=None,
        story=story_json(Story(entry_id, family, (event,), 0)),
    )  # fmt: skip


def _refused(path: Path, reason: str) -> BadInput:
    return BadInput(
        f"the skill cannot be imported: {path.name}: {reason}",
        expected="folders with a SKILL.md, as `crl bank export RUN --format skills` writes them and agents read them",
        where=str(path),
        next_step="correct that file, or import a folder without it",
    )
