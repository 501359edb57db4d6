"""A problem of a run, as verification names it, and what verification knows about a run while it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.run.files import EMPTY, OF_NOTHING, sha256_file
from crl.run.journal import Committed
from crl.run.lineage import Ancestor, Lineage
from crl.run.manifest import Manifest, StageKey, key_of
from crl.run.pruned import Pruned

FromRows = Callable[[int, str], bool]
"""Whether a stage of a round is a function of recorded rows, so that its files can be made again."""
NO_FILE = "no such file"


def no_recipe(round_number: int, stage: str) -> bool:
    """Without the recipe nobody knows."""
    return False


class Severity(StrEnum):
    """What a problem means for going on."""

    damaged = "damaged"
    lost = "lost"
    data = "data"
    derived = "derived"
    housekeeping = "housekeeping"


@dataclass(frozen=True)
class Problem:
    """One file that is not what was recorded."""

    file: str
    """Run-relative path."""
    stage: str | None
    round: int | None
    expected: str
    """A SHA-256 where there is one."""
    found: str
    mend: str
    """The exact command."""
    severity: Severity = Severity.damaged
    redo: str = ""
    """The command where `mend` is `crl mend` and that fails."""

    def __str__(self) -> str:
        note = "" if self.severity is Severity.damaged else f" ({self.severity})"
        file, found = on_one_line(self.file), on_one_line(self.found).replace(OF_NOTHING, EMPTY)
        return f"{file}{note}\n  expected {self.expected}\n  found    {found}\n  mend     {self.mend}"


@dataclass
class Record:
    """What is known about a run while it is verified."""

    run_path: Path
    deep: bool
    stages: Mapping[StageKey, Manifest | RecordDamaged]
    """Every complete stage, in order."""
    pruned: list[Pruned]
    committed: dict[tuple[int, str], Committed]
    """What the journal says, as it was before the stages were listed."""
    from_rows: FromRows
    digest_of: Callable[[Path], str] = sha256_file
    """How files are read: to open a run, only those that changed (`intact`)."""
    stale: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict)
    """Manifests that are whole and not those of their place: what was expected and found."""
    lineage: Lineage = field(default_factory=Lineage)
    """Which rounds another run made; none where that cannot be read (`crl verify` says so)."""

    def __post_init__(self) -> None:
        self.copies = _copies(self.stages, self.committed)
        """Stray copies of stages: nobody made them in their place, and nothing read them. They are no part of it."""
        self.stages = {place: each for place, each in self.stages.items() if place not in self.copies}
        self.manifests = {place: each for place, each in self.stages.items() if isinstance(each, Manifest)}
        self.unreadable = {place: each for place, each in self.stages.items() if isinstance(each, RecordDamaged)}

    def damaged(self, file: str, round_number: int, stage: str, expected: str, found: str) -> Problem:
        """A file of a stage: made again where the stage is a function of rows, else the stage is taken back."""
        redo = self.redo(round_number, stage)
        mend = f"crl mend {quoted(self.run_path)}" if self.from_rows(round_number, stage) else redo
        return Problem(file, stage, round_number, expected, found, mend, redo=redo)

    def redo(self, round_number: int, stage: str) -> str:
        parent = self.lineage.parent
        if parent is not None and self.lineage.maker(round_number, stage) is not None:
            return fork_again(self.run_path, parent)
        return f"crl redo {quoted(self.run_path)} --from {key_of(round_number, stage)}"

    def resume(self) -> str:
        return f"crl resume {quoted(self.run_path)}"


def _copies(
    stages: Mapping[StageKey, Manifest | RecordDamaged], committed: Mapping[StageKey, Committed]
) -> dict[StageKey, StageKey]:
    """Stages that hold another one's manifest, and that one: nobody read them and the journal knows of no commit."""
    whole = {place: each.digested for place, each in stages.items() if isinstance(each, Manifest)}
    read = {key for place, each in whole.items() if place == (each.round, each.stage) for key in each.inputs}
    return {
        place: own
        for place, each in whole.items()
        if (own := (each.round, each.stage)) != place and own in stages and key_of(*place) not in read
        and place not in committed
    }  # fmt: skip


def fork_again(run_path: Path, parent: Ancestor) -> str:
    """The command that makes a fork again, under another name: its first rounds are another run's to make."""
    name, kept = f"{run_path.absolute().name}-again", " --keep-rollouts" if parent.kept else ""
    return f"crl fork {quoted(parent.experiment)} --round {parent.round} --name {quoted(name)}{kept}"


def on_one_line(text: str) -> str:
    """A text with names from outside, for a line of its own: a newline in one must not look like a line of ours."""
    return text.replace("\n", "\\n")


def move_away(run_path: Path, path: Path) -> str:
    """The command that keeps a file under `damaged/` of the run."""
    aside = run_path / "damaged"
    return f"mkdir -p {quoted(aside)} && mv {quoted(path)} {quoted(aside)}/"
