"""Which stage published the bank that a round sees, and the tables it is put together from."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from crl.bank.changes import TableOf
from crl.config import Method
from crl.errors import BadInput
from crl.records import Row
from crl.rounds.stage import PUBLISHES, Recipe


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
