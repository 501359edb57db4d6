"""Which stages a round of a run has to have: those of its recipe, but for observing ones that came after it.

A version of the project may bring a stage that only observes (`Stage.observes`). Runs that began before go on without
going back: every manifest names the stages its round was to have when it was made, and an observing stage is not due
where the stage before it was committed by a version that did not name it.
"""

from __future__ import annotations

from crl.errors import RecordDamaged
from crl.recipes.stage import Recipe, Stage
from crl.run.directory import RunDirectory

STAGES_OF_ROUND = "stages"
"""Where a manifest's provenance names the stages of its round, in order."""


def stages_due(run: RunDirectory, recipe: Recipe, round_number: int) -> tuple[Stage, ...]:
    """The stages of a round, in order; complete ones are among them."""
    listed = recipe.stages_of(run.method, round_number)
    return tuple(
        stage
        for place, stage in enumerate(listed)
        if not (stage.observes and place > 0 and _came_later(run, round_number, stage, before=listed[place - 1]))
    )


def _came_later(run: RunDirectory, round_number: int, stage: Stage, before: Stage) -> bool:
    if run.is_complete(round_number, stage.name) or not run.is_complete(round_number, before.name):
        return False
    try:
        return stage.name not in run.manifest(round_number, before.name).provenance.get(STAGES_OF_ROUND, ())
    except RecordDamaged:
        return False  # `crl verify` names it, and nothing runs before it is mended
