"""The recipe of a method and of a run, and what a run's record holds by it: its banks, the rows that a stage reads.

This is for readers outside of stages, which read through `context.py`. Every file is checked against what was recorded
and nothing is repaired: RecordDamaged names the file and the command that mends it.
"""

from __future__ import annotations

from crl.bank.changes import open_snapshot
from crl.bank.snapshot import Snapshot
from crl.checks.suites import bring
from crl.config import Method
from crl.config.registry import load_object
from crl.errors import BadInput
from crl.paths import quoted
from crl.records import rows_of
from crl.rounds.bank_tables import publishing_stage, tables_of
from crl.rounds.behavior import with_behavior
from crl.rounds.draws import with_draws
from crl.rounds.fall_back import guarded
from crl.rounds.judge_stages import with_judge
from crl.rounds.stage import R, Recipe, RowsOf, Stage, forked
from crl.run.directory import RunDirectory
from crl.run.lineage import method_in
from crl.run.manifest import key_of


def recipe_of(method: Method) -> Recipe:
    """The recipe that a method names. Raises BadInput where its builder cannot be imported."""
    reference = method.recipe.BUILDER
    try:
        builder = load_object(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"the recipe {method.recipe.kind!r} cannot be loaded from {reference}: {error}",
            expected="module:function, a function that takes a Method and returns a Recipe",
            where="BUILDER of its config class",
        ) from error
    recipe = with_draws(with_judge(builder(method), method), method)
    recipe = guarded(with_behavior(recipe, method), method)
    bring(recipe.row_types)
    return recipe


def recipe_in(run: RunDirectory) -> Recipe:
    """The recipe of a run: that of its method, and in the rounds that a fork begins with that of who made them.

    Raises as :func:`recipe_of`, and RecordDamaged where the lineage of a fork is not what was written.
    """
    ancestors = run.lineage.ancestors
    if not ancestors:
        return recipe_of(run.method)
    methods = [*map(method_in, ancestors), run.method]
    recipe = recipe_of(methods[0])
    for ancestor, before, method in zip(ancestors, methods, methods[1:], strict=False):
        recipe = forked(recipe_of(method), recipe, before, ancestor.round)
    return recipe


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
        places = recipe.read_keys(run.method, round_number, stage, read)
        for place in places:
            if not run.is_complete(*place):
                raise BadInput(
                    f"round {round_number} of {run.path} has not come so far",
                    expected=f"stage {place[1]} of round {place[0]} to be complete",
                    next_step=f"`crl status {quoted(run.path)}` says what is complete",
                )
        return [row for place in places for row in rows_of(row_type, run.read(*place, row_type))]

    return rows


def stages_behind(run: RunDirectory, recipe: Recipe, round_number: int, stage: Stage) -> dict[str, str] | None:
    """Digest of every stage that a stage reads, by `0007/distill`; None where one of them is not complete."""
    found = {}
    for place in recipe.inputs(run.method, round_number, stage):
        if not run.is_complete(*place):
            return None
        found[key_of(*place)] = run.manifest(*place).digest
    return dict(sorted(found.items()))
