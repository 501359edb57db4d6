"""What the bank held after a round: chosen rows of one snapshot, with their texts and their results so far.

Only the round asked for is read (its base and the changes since), and texts of the rows shown only: it is as quick for
a large bank as for a small one, and damage in another round does not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.errors import BadInput
from crl.paths import quoted
from crl.records import EntryScore, RetrievalCount, Row, rows_of
from crl.report.sorting import Sort
from crl.rounds.recipe import publishing_stage, recipe_in, recorded_bank
from crl.rounds.stage import PUBLISHES, Recipe
from crl.run.directory import RunDirectory

R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """One entry of a snapshot, with its usefulness so far."""

    entry_id: str
    family: str
    version: int
    created_round: int
    updated_round: int
    text: str
    retrieved: int
    """Times chosen to guide an episode, in any words, up to that round."""
    uses: int
    """Episodes credited that the text guided."""
    mean_outcome: float | None
    """Mean of +1 / −1 over these; None without any."""
    embedder_cut: bool
    """Whether the embedder reads only the beginning of the text, by which alone it is found."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Some entries of the bank after a round."""

    round: int
    entries: list[ShownEntry]
    total: int
    """Entries the question is about, shown or not."""


class BankAfter:
    """The bank after a round, and the results of its entries up to then."""

    def __init__(self, run: RunDirectory, round_number: int | None = None) -> None:
        """The newest published one where `round_number` is None. Raises BadInput where there is none."""
        self.run, self.recipe = run, recipe_in(run)
        self.round = banked_round(run, self.recipe, round_number)
        self.snapshot: Snapshot = recorded_bank(run, self.recipe, self.round)

    def rows(self, family: str | None = None) -> NDArray[np.int64]:
        """Rows of a family, all for None. Raises BadInput for a family that the run does not have."""
        if family is None:
            return np.arange(len(self.snapshot), dtype=np.int64)
        held = self.snapshot.table["family"]
        known = {*(each.name for each in self.run.method.families), *pc.unique(held).to_pylist()}
        if family not in known:
            raise BadInput(
                f"{self.run.path} has no task family {family!r}", expected=f"one of {', '.join(sorted(known))}"
            )
        return np.flatnonzero(pc.equal(held, family).to_numpy()).astype(np.int64)

    def sorted(self, rows: NDArray[np.int64], sort: Sort) -> NDArray[np.int64]:
        """The rows in an order; ties keep the oldest first."""
        if sort is Sort.age:
            return rows
        if sort is Sort.newest:
            keys = -self.snapshot.table["updated_round"].to_numpy()[rows]
            return rows[np.lexsort((-rows, keys))]
        uses, mean = self.uses_N[rows], self.mean_outcome_N[rows]
        if sort is Sort.uses:
            return rows[np.argsort(-uses, kind="stable")]
        sign = -1.0 if sort is Sort.credit else 1.0
        return rows[np.lexsort((-uses, np.where(uses > 0, sign * mean, np.inf)))]

    def table(self, rows: NDArray[np.int64]) -> pa.Table:
        """The rows as columns of `BankEntry`."""
        return self.snapshot.table.take(pa.array(rows))

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of the rows. Raises RecordDamaged."""
        table = self.table(rows)
        by_digest = load_texts(self.run.path, table)
        return [by_digest[digest] for digest in table["content_digest"].to_pylist()]

    def embeddings(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings [N, D] of the rows. Raises RecordDamaged."""
        return load_embeddings(self.run.path, self.table(rows))

    def entries(self, rows: NDArray[np.int64]) -> list[ShownEntry]:
        """The rows as people read them."""
        names = ("entry_id", "family", "version", "created_round", "updated_round", "embedder_cut")
        table = self.table(rows).select(names).to_pylist()
        texts, retrieved = self.texts(rows), self.retrieved_N[rows].tolist()
        uses, mean = self.uses_N[rows].tolist(), self.mean_outcome_N[rows].tolist()
        return [
            ShownEntry(**row, text=text, retrieved=count, uses=used, mean_outcome=outcome if used else None)
            for row, text, count, used, outcome in zip(table, texts, retrieved, uses, mean, strict=True)
        ]

    @cached_property
    def retrieved_N(self) -> NDArray[np.int64]:
        """Times every entry was chosen to guide an episode."""
        counts = self._newest(RetrievalCount, "plan")
        return self._column({row.entry_id: row.count for row in counts}).astype(np.int64)

    @cached_property
    def uses_N(self) -> NDArray[np.int64]:
        """Credited uses of every entry in its present words."""
        return self._column({row.entry_id: row.uses for row in self._scores}).astype(np.int64)

    @cached_property
    def mean_outcome_N(self) -> NDArray[np.float64]:
        """Mean outcome of these uses; 0 without any."""
        return self._column({row.entry_id: row.mean_outcome for row in self._scores})

    @cached_property
    def _scores(self) -> list[EntryScore]:
        """Those of the texts that the bank has."""
        scores = self._newest(EntryScore, "credit")
        held = self.snapshot.digests_of([score.entry_id for score in scores])
        return [score for score, digest in zip(scores, held, strict=True) if score.content_digest == digest]

    def _newest(self, row_type: type[R], stage: str) -> list[R]:
        """Cumulative rows of the newest round up to this one whose stage is complete: a round publishes its bank before
        it is credited."""
        for number in range(self.round, 0, -1):
            if self.run.is_complete(number, stage):
                return rows_of(row_type, self.run.read(number, stage, row_type))
        return []

    def _column(self, values: Mapping[str, float]) -> NDArray[np.float64]:
        """One value per row, from values by entry id; 0 where there is none."""
        column_N = np.zeros(len(self.snapshot))
        for row, value in zip(self.snapshot.rows_of(list(values)), values.values(), strict=True):
            if row is not None:
                column_N[row] = value
        return column_N


def snapshot(
    run_path: Path,
    round_number: int | None = None,
    family: str | None = None,
    *,
    sort: Sort = Sort.age,
    limit: int | None = None,
) -> Shown:
    """Entries of the bank after a round (the newest published one by default).

    Raises BadInput for a round without a bank and for a family the run does not have, RecordDamaged.
    """
    bank = BankAfter(RunDirectory.open(run_path), round_number)
    rows = bank.rows(family)
    return Shown(bank.round, bank.entries(bank.sorted(rows, sort)[:limit]), len(rows))


def banked_rounds(run: RunDirectory, recipe: Recipe) -> list[int]:
    """Rounds whose bank is published, in order."""
    found = []
    for number in run.rounds():
        place = publishing_stage(recipe, run.method, number)
        if place is not None and place[0] == number and run.is_complete(*place):
            found.append(number)
    return found


def banked_round(run: RunDirectory, recipe: Recipe, round_number: int | None) -> int:
    """The round if its bank is published, the newest such one for None. Raises BadInput."""
    if not recipe.has_bank:
        raise BadInput(
            f"recipe {recipe.name} of {run.path} keeps no bank", expected=f"a recipe with the stage `{PUBLISHES}`"
        )
    rounds = banked_rounds(run, recipe)
    if not rounds:
        raise BadInput(
            f"{run.path} has no bank yet",
            expected="a committed `initialize` or `consolidate` stage",
            next_step=f"`crl status {quoted(run.path)}` says what is missing",
        )
    if round_number is None:
        return rounds[-1]
    if round_number not in rounds:
        raise BadInput(
            f"round {round_number} of {run.path} has no bank",
            expected=f"a round from {rounds[0]} to {rounds[-1]}",
            next_step=f"`crl bank show {quoted(run.path)}` shows the newest one",
        )
    return round_number
