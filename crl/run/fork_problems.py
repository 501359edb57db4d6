"""What verification finds of a fork: whether its lineage, and the rounds that it was given, are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.run.branch import FORKED
from crl.run.head import heads
from crl.run.journal import Journal
from crl.run.lineage import LINEAGE, Lineage, load_lineage
from crl.run.problem import NO_FILE, Problem, Record, fork_again


def readable_lineage(run_path: Path) -> Lineage:
    """The lineage of a run; an empty one where the file is damaged, which :func:`fork_problems` says."""
    try:
        return load_lineage(run_path)
    except RecordDamaged:
        return Lineage()


def has_lost_lineage(record: Record) -> bool:
    """Whether the run is a fork whose lineage is missing or damaged."""
    return record.lineage.parent is None and (
        (record.run_path / LINEAGE).exists() or _forked(record.run_path) is not None
    )


def fork_problems(record: Record) -> Iterator[Problem]:
    """A lineage that is missing or was changed; inherited stages that do not give the head that the parent had."""
    parent = record.lineage.parent
    if parent is None:
        if not has_lost_lineage(record):
            return
        try:
            load_lineage(record.run_path)
            found = NO_FILE
        except RecordDamaged as error:
            found = error.found
        yield Problem(LINEAGE, None, None, "the lineage of a fork, as the journal says", found, _again(record))
        return
    inherited = {place: each for place, each in record.stages.items() if place[0] <= parent.round}
    if any(isinstance(each, RecordDamaged) for each in inherited.values()):
        return  # named elsewhere: the head is that of all of them
    found_head = heads(inherited).get(parent.round, "none: there is no such round")
    if found_head != parent.head:
        expected = f"head {parent.head} after round {parent.round}, that of {parent.experiment}"
        again = fork_again(record.run_path, parent)
        yield Problem("rounds", None, parent.round, expected, f"head {found_head}", again)


def _forked(run_path: Path) -> dict[str, object] | None:
    return next((event for event in Journal(run_path).read() if event.get("event") == FORKED), None)


def _again(record: Record) -> str:
    """The command that makes the fork again, as far as the journal knows of what it was forked."""
    told = _forked(record.run_path) or {}
    parent, number = quoted(str(told.get("parent", "PARENT"))), quoted(str(told.get("round", "N")))
    name = quoted(f"{record.run_path.absolute().name}-again")
    return f"crl fork {parent} --round {number} --name {name}{' --keep-rollouts' if told.get('kept') else ''}"
