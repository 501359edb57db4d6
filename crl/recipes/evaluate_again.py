"""Evaluating a round again, outside the record: other held-out seeds, or a round that was not evaluated.

The same stage code runs against a writer that keeps its rows in memory; nothing of the run is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crl.config import Method, SeedRange
from crl.errors import BadInput
from crl.protocols import Services
from crl.recipes.context import Reader, StageContext
from crl.recipes.memory import MemoryWriter
from crl.recipes.stage import Recipe
from crl.records import Evaluation


def evaluate_again(
    reader: Reader,
    method: Method,
    recipe: Recipe,
    round_number: int,
    services: Services,
    *,
    seeds: SeedRange | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> list[Evaluation]:
    """Rows of an evaluation of a round, with and without its bank.

    `seeds` replaces the held-out seeds of every family. Raises BadInput where they overlap the training seeds or draw
    levels of training, or where the round has no evaluation stage to stand in for.
    """
    if seeds is not None:
        for family in method.families:
            if seeds.overlaps(family.train_seeds):
                raise BadInput(
                    f"seeds {seeds.start} to {seeds.start + seeds.count - 1} overlap the training seeds of family "
                    f"{family.name}",
                    expected="seeds that were never trained on",
                )
            first = family.environment.held_out_from
            if first is not None and seeds.start < first:
                raise BadInput(
                    f"seeds {seeds.start} to {seeds.start + seeds.count - 1} draw levels of training in family "
                    f"{family.name}",
                    expected=f"seeds from environment.held_out_from {first} on, which draw held-out levels",
                )
        families = [family.model_copy(update={"evaluation_seeds": seeds}) for family in method.families]
        method = method.model_copy(update={"families": families})
    stages = recipe.preparation if round_number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None or stage.parts is None or stage.run_part is None:
        raise BadInput(f"recipe {recipe.name} has no evaluation", expected="a recipe with the stage evaluate")
    writer = MemoryWriter()
    context = StageContext(
        method=method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=reader,
        writer=writer,
        services=services,
        progress=progress,
    )
    for part in range(stage.parts(context)):
        stage.run_part(context, part)
    return writer.rows(Evaluation)
