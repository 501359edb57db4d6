"""The banks of a run as the record holds them: which stage publishes the bank of a round, and its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.bank.changes import TableOf, open_snapshot
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.errors import BadInput
from crl.recipes.stage import Recipe
from crl.records import Row
from crl.run.directory import RunDirectory

if TYPE_CHECKING:
    from crl.recipes.recovery import Recovery

PUBLISHES = "consolidate"
"""The stage that publishes the bank; in round 0 the preparation stage that stands for it does."""


def publishing_stage(recipe: Recipe, method: Method, round_number: int, offset: int = 0) -> tuple[int, str] | None:
    """(round, stage) that published the bank a round sees so many rounds back; None where there was no bank."""
    return recipe.resolve(method, round_number, PUBLISHES, offset)


def tables_of(recipe: Recipe, method: Method, read: Callable[[int, str, type[Row]], pa.Table]) -> TableOf:
    """Tables of the publishing stages by row type and round, read by `read(round, stage, row type)`."""

    def table_of(row_type: type[Row], round_number: int) -> pa.Table:
        place = publishing_stage(recipe, method, round_number)
        if place is None:
            raise BadInput(f"round {round_number} publishes no bank", expected="a recipe that keeps a bank")
        return read(*place, row_type)

    return table_of


def recorded_bank(run: RunDirectory, recipe: Recipe, round_number: int) -> Snapshot:
    """The bank after a round, to be looked at.

    What a damaged file held is made again from the rest of the record where that can be done, with a warning; stages
    do not: nothing is built on a damaged record. Raises BadInput where the bank is not published, RecordDamaged.
    """
    place = publishing_stage(recipe, run.method, round_number)
    if place is None or not run.is_complete(*place):
        raise BadInput(
            f"round {round_number} of {run.path} has published no bank",
            expected="a round whose `consolidate` is complete",
            next_step=f"`crl status {run.path}` says what is complete",
        )
    return open_snapshot(place[0], tables_of(recipe, run.method, _recovery(run, recipe).read))


def recorded_texts(run: RunDirectory, recipe: Recipe, entries: pa.Table) -> dict[str, str]:
    """Texts of rows of `BankEntry` by content digest, to be looked at; damage is met as by :func:`recorded_bank`."""
    return load_texts(run.path, entries, _recovery(run, recipe).shared)


def recorded_embeddings(run: RunDirectory, recipe: Recipe, entries: pa.Table) -> NDArray[np.float32]:
    """Embeddings [N, D] of rows of `BankEntry`, to be looked at; damage is met as by :func:`recorded_bank`."""
    return load_embeddings(run.path, entries, _recovery(run, recipe).shared)


def _recovery(run: RunDirectory, recipe: Recipe) -> Recovery:
    from crl.recipes.recovery import Recovery  # it runs stages, which read banks

    return Recovery(run, recipe)
