"""What a stage reads of a bank: what the rounds wrote since the process read it last, however far back its base is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.made_run import Size, writing
from crl.records import BankChange, Row
from crl.rounds.context import StageContext
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory


class Counted:
    """A run that remembers what was read of it."""

    def __init__(self, run: RunDirectory) -> None:
        self.path, self._run = run.path, run
        self.tables: list[tuple[int, type[Row]]] = []

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        self.tables.append((round_number, row_type))
        return self._run.read(round_number, stage, row_type)


def opened(path: Path, number: int) -> tuple[Any, list[tuple[int, type[Row]]]]:
    run = RunDirectory.open(path)
    recipe, reader = recipe_of(run.method), Counted(run)
    nothing: Any = None
    context = StageContext(
        method=run.method, recipe=recipe, stage=recipe.stage(run.method, number, "plan"), round_number=number,
        reader=reader, writer=nothing, services=nothing, progress=lambda metrics: None,
    )  # fmt: skip
    return context.bank(), reader.tables


def test_a_round_costs_what_changed_and_not_what_is_there(tmp_path: Path) -> None:
    with writing(tmp_path, Size(entries=60, changes=4, groups=2), 1) as made:
        for _ in range(8):
            made.round()
        whole, first = opened(made.path, 9)
        assert len(first) == 10 and len(whole)
        again, nothing = opened(made.path, 9)
        assert nothing == [] and again.table.equals(whole.table)
        made.round()
        _, more = opened(made.path, 10)
        assert {number for number, _ in more} == {9} and (9, BankChange) in more
