"""Where a run stands, from its record and its journal: what is missing, what failed last, what runs now, its forks.

A parent knows nothing of its forks: nothing is written into it. So the tree of a run and its forks is read from the
lineages of all runs of the same folder. A run that was deleted has its place in it as long as a fork of it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.errors import CrlError
from crl.run.directory import RunDirectory
from crl.run.experiment_file import differences
from crl.run.find import is_run
from crl.run.head import head_after
from crl.run.journal import STOPPED
from crl.run.lineage import Ancestor, Lineage, load_lineage

_MOST_CHANGES = 3
_LONGEST_VALUE = 40

if TYPE_CHECKING:
    from crl.run.directory import RunDirectory


def unfinished(path: Path | RunDirectory, events: Sequence[dict[str, Any]], *, since: int = 0) -> str | None:
    """The first stage that is missing up to the last round that was asked for; None where nothing is.

    Rounds before `since` are taken to be complete.
    """
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory

    run = path if isinstance(path, RunDirectory) else RunDirectory.open(path)
    recipe = recipe_in(run)
    asked = [int(event["last"]) for event in events if event.get("event") == "target"]
    last = max([since, *asked] if since else [*run.rounds(), *asked], default=0)
    for number in range(since, last + 1):
        for stage in recipe.stages_of(run.method, number):
            if not run.is_complete(number, stage.name):
                told = (
                    "no rounds were asked for yet" if never_asked(run.path, events) else f"of {last} rounds asked for"
                )
                return f"round {number}, {stage.name}, {told}"
    return None


def never_asked(path: Path, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a run has no round, and nobody has asked it for one: what began it ended early."""
    from crl.run.directory import round_numbers

    asked = any(event.get("event") == "target" for event in events)
    return not asked and not round_numbers(path)


def newest_head(path: Path) -> tuple[int, str] | None:
    """The newest complete round and its head; None where there is none, or something of it cannot be read."""
    from crl.rounds.recipe import recipe_in

    try:
        run = RunDirectory.open(path)
        recipe = recipe_in(run)
        for number in reversed(run.rounds()):
            if all(run.is_complete(number, stage.name) for stage in recipe.stages_of(run.method, number)):
                return number, head_after(path, number)
    except CrlError:
        pass
    return None


def stopped(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The event that says why no further round began; None where rounds were asked for since."""
    told = [event for event in events if event.get("event") in (STOPPED, "target")]
    return told[-1] if told and told[-1].get("event") == STOPPED else None


def last_failure(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest failed stage that was not committed afterward."""
    failed: dict[tuple[Any, Any], dict[str, Any]] = {}
    for event in events:
        place = (event.get("round"), event.get("stage"))
        if event.get("event") == "stage_failed":
            failed.pop(place, None)
            failed[place] = event
        elif event.get("event") == "stage_committed":
            failed.pop(place, None)
    return list(failed.values())[-1] if failed else None


def running_stages(events: Sequence[dict[str, Any]]) -> list[str]:
    """The stages that have started and not ended: one, or two where rounds overlap."""
    now: dict[tuple[Any, Any], str] = {}
    for event in events:
        kind, place = event.get("event"), (event.get("round"), event.get("stage"))
        if kind == "stage_started":
            now[place] = f"round {place[0]}, {place[1]}, attempt {event.get('attempt', 1)}"
        elif kind in ("stage_committed", "stage_failed"):
            now.pop(place, None)
        elif kind in ("attempt_started", "attempt_ended"):  # whoever was killed said nothing of the end
            now.clear()
    return list(now.values())


@dataclass
class Node:
    """One run of the tree."""

    name: str
    remark: str = ""
    """What became of it, where it is not there."""
    origin: str = ""
    """From which round of its parent it goes on, and what it changed; empty for the first."""
    children: dict[str, Node] = field(default_factory=dict)


def fork_lines(run_path: Path) -> list[str]:
    """The tree that a run is in as lines of text, the run marked; none where it is no fork and has none. Damaged
    lineages of other runs are left out."""
    run_path = Path(run_path).absolute()
    found = dict(_lineages(run_path.parent))
    own = found.get(run_path.name) or load_lineage(run_path)
    first = own.ancestors[0].experiment if own.ancestors else run_path.name
    root = Node(first)
    for name, lineage in found.items():
        if lineage.ancestors[0].experiment == first:
            root.remark = root.remark if root.children else _note(run_path.parent, first, lineage.ancestors[0])
            _place(root, name, lineage, run_path.parent)
    return [_line(root, run_path.name), *_below(root, run_path.name, "")] if root.children else []


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where two methods differ, as plain data: `recipe.merge.every 2 → 4`."""
    return [f"{key} {_short(before)} → {_short(after)}" for key, before, after in differences(old, new)]


def _lineages(root: Path) -> Iterator[tuple[str, Lineage]]:
    """The forks of a folder, by name."""
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            if is_run(path) and (lineage := load_lineage(path)).ancestors:
                yield path.name, lineage
        except (CrlError, OSError):
            continue


def _place(root: Node, name: str, lineage: Lineage, folder: Path) -> None:
    """Put a fork under its ancestors; those that are not there yet, or any more, are put first."""
    node = root
    for above, ancestor in zip(lineage.ancestors, lineage.ancestors[1:], strict=False):
        node = node.children.setdefault(ancestor.experiment, Node(ancestor.experiment))
        if not node.origin:
            # Its own file says it better, if it is there; what a fork of it kept says only how far that one goes back.
            node.origin = f"from round {above.round} or later"
            node.remark = _note(folder, ancestor.experiment, ancestor)
    parent = lineage.ancestors[-1]
    child = node.children.setdefault(name, Node(name))
    child.origin, child.remark = _origin(folder / name, parent), ""


def _origin(path: Path, parent: Ancestor) -> str:
    kept = ", with its rollouts of the next" if parent.kept else ""
    try:
        method = RunDirectory.open(path).method.model_dump(mode="json")
    except CrlError:
        return f"from round {parent.round}{kept}"
    changes = changes_between(parent.method, method)
    more = [f"and {len(changes) - _MOST_CHANGES} more"] if len(changes) > _MOST_CHANGES else []
    told = ", ".join([*changes[:_MOST_CHANGES], *more]) or "nothing changed"
    return f"from round {parent.round}{kept}: {told}"


def _note(folder: Path, name: str, ancestor: Ancestor) -> str:
    path = folder / name
    if not is_run(path):
        return "not here any more"
    try:
        same = head_after(path, ancestor.round) == ancestor.head
    except CrlError:
        return "damaged"
    return "" if same else "another run has its name now, or it was made again"


def _line(node: Node, this: str) -> str:
    told = node.name + (f", {node.origin}" if node.origin else "") + (f" ({node.remark})" if node.remark else "")
    return f"{told}  ← this run" if node.name == this else told


def _below(node: Node, this: str, indent: str) -> Iterator[str]:
    children = list(node.children.values())
    for index, child in enumerate(children):
        last = index == len(children) - 1
        yield f"{indent}{'└─' if last else '├─'} {_line(child, this)}"
        yield from _below(child, this, indent + ("   " if last else "│  "))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
