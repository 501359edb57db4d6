"""Reading the record as a stage would, from outside: the rows it reads and the digests of the stages behind it."""

from __future__ import annotations

from typing import TypeVar

from crl.errors import BadInput
from crl.recipes.stage import Recipe, RowsOf, Stage
from crl.records import Row, rows_of
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of

R = TypeVar("R", bound=Row)


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
                next_step=f"`crl status {run.path}` says what is complete",
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
