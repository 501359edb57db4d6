"""Are the rows of a run as old as its recipe declares? Each is held against the bank and the weights of its round.

What a stage reads is a rule of round numbers. Retrievals name the round of the bank that was searched, token records
the weights that sampled them; in rounds that overlap (`method.overlap`) both have to be those of the declared round,
whatever was newest when the stage ran.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from crl.audit.replays import bank_problem
from crl.errors import RecordDamaged
from crl.records import Generation, Retrieval, Row, Weights, rows_of
from crl.rounds.context import BANK
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.verify import Problem


def staleness_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Stages whose rows were made with another round than declared. Files that cannot be read are `verify`'s."""
    found: list[Problem] = []
    for number in run.rounds():
        # Round 0 prepares: what it trains on was written by scripts.
        for stage in recipe.stages_of(run.method, number) if number else ():
            if run.is_complete(number, stage.name):
                try:
                    found += _of_stage(run, recipe, number, stage)
                except RecordDamaged:
                    continue
    return found


def _of_stage(run: RunDirectory, recipe: Recipe, number: int, stage: Stage) -> Iterator[Problem]:
    def problem(row_type: type[Row], expected: str, found: str) -> Problem:
        return bank_problem(run, (number, stage.name), row_type, expected, found)

    names = {read.name: read for read in stage.reads}
    if Retrieval in stage.writes and BANK in names:
        declared = max(0, number + names[BANK].offset)
        searched = set(run.read(number, stage.name, Retrieval)["bank_round"].to_pylist())
        if searched - {declared}:
            yield problem(Retrieval, f"searches of the bank of round {declared}, as declared", f"of {sorted(searched)}")
    if Generation not in stage.writes:
        return
    sampled = run.read(number, stage.name, Generation)
    method = run.method_of(
        number, stage.name
    )  # of a round that was inherited, the parent's: its roles own their weights
    for role in method.recipe.roles():
        if role not in names:
            continue
        place = recipe.resolve(method, number, names[role].stage, names[role].offset)
        if place is None or not run.is_complete(*place):
            continue
        rows = [row for row in rows_of(Weights, run.read(*place, Weights)) if row.role == method.owner(role)]
        digests = set(sampled.filter(pc.equal(sampled["role"], role))["weights_digest"].to_pylist())
        if digests - {row.weights_digest for row in rows}:
            expected = f"token records of the {role} of round {place[0]}, as declared"
            yield problem(Generation, expected, f"of weights {', '.join(sorted(digests))}")
