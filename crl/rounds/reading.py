"""Reading the record from outside a stage: the bank after a round, the rows a stage reads, the digests behind it.

Every file is checked against what was recorded and nothing is repaired: RecordDamaged names the file and the command
that mends it. Stages read through `context.py`.
"""

from __future__ import annotations

from typing import TypeVar

from crl.bank.changes import open_snapshot
from crl.bank.snapshot import Snapshot
from crl.errors import BadInput
from crl.paths import quoted
from crl.records import Row, rows_of
from crl.rounds.banks import publishing_stage, tables_of
from crl.rounds.stage import Recipe, RowsOf, Stage
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of

R = TypeVar("R", bound=Row)


def recorded_bank(run: RunDirectory, recipe: Recipe, round_number: int) -> Snapshot:
    """The bank after a round. Raises BadInput where the round has not published one, RecordDamaged."""
    place = publishing_stage(recipe, run.method, round_number)
    newest = max(run.rounds(), default=-1)
    # Of a round with later ones the stage was there: that it is gone is damage. Where rounds overlap, one may be ahead.
    if place is None or (not run.is_complete(*place) and place[0] >= newest - run.method.overlap):
        raise BadInput(
            f"round {round_number} of {run.path} has published no bank",
            expected="a round whose `consolidate` is complete",
            next_step=f"`crl status {quoted(run.path)}` says what is complete",
        )
    return open_snapshot(place[0], tables_of(recipe, run.method, run.read))


def recorded_rows(run: RunDirectory, recipe: Recipe, round_number: int, stage: Stage) -> RowsOf:
    """Rows of the reads of a stage, as it sees them in a round. Raises BadInput where a stage is not complete yet."""

    def rows(row_type: type[R], name: str) -> list[R]:
        read = stage.read(name)
        place = recipe.resolve(run.method, round_number, read.stage, read.offset)
        if place is None:
            return []
        if not run.is_complete(*place):
            raise BadInput(
                f"round {round_number} of {run.path} has not come so far",
                expected=f"stage {place[1]} of round {place[0]} to be complete",
                next_step=f"`crl status {quoted(run.path)}` says what is complete",
            )
        return rows_of(row_type, run.read(*place, row_type))

    return rows


def stages_behind(run: RunDirectory, recipe: Recipe, round_number: int, stage: Stage) -> dict[str, str] | None:
    """Digest of every stage that a stage reads, by `0007/distill`; None where one of them is not complete."""
    found = {}
    for read in stage.reads:
        place = recipe.resolve(run.method, round_number, read.stage, read.offset)
        if place is None:
            continue
        if not run.is_complete(*place):
            return None
        found[key_of(*place)] = run.manifest(*place).digest
    return dict(sorted(found.items()))
