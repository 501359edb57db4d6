"""`crl evaluate`: held-out seeds with the weights of a round, with and without its bank; the run is not changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.places import RunArgument
from crl.cli.screen import console
from crl.errors import BadInput
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.config import SeedRange
    from crl.recipes.stage import Recipe
    from crl.records import Evaluation
    from crl.run.directory import RunDirectory


def evaluate(
    run: RunArgument,
    round: Annotated[int | None, typer.Option(min=0, help="Round to evaluate; default the latest.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="START:COUNT", help="Other held-out seeds than those of the experiment.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows to this Parquet file.")] = None,
) -> None:
    """Evaluate a round of a run, with and without its bank. Reads the record and writes nothing into it."""
    from crl.engine.jobs import default_recipe, load_recipe
    from crl.engine.services import EngineServices, prepare_environment
    from crl.recipes.evaluate_again import evaluate_again
    from crl.run.directory import RunDirectory

    chosen_seeds = _seeds(seeds)
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"--out {out}: there is no directory {out.parent}", expected="a directory that exists")
    directory = RunDirectory.open(find_run(run))
    recipe = load_recipe(default_recipe(), directory.method)
    number = _latest(directory, recipe) if round is None else round
    if not _ready(directory, recipe, number):
        raise BadInput(
            f"round {number} of {directory.path} is not complete enough to evaluate",
            expected=f"a round from 0 to {_latest(directory, recipe)}",
            next_step="`crl status` shows what is complete",
        )
    _require_weights(directory, recipe, number)
    # Before torch is imported: this process is the engine here.
    os.environ.update(prepare_environment(directory.method.threads))
    services = EngineServices(directory)
    try:
        rows = evaluate_again(directory, directory.method, recipe, number, services, seeds=chosen_seeds)
    finally:
        services.close()
    _print(rows, number)
    if out is not None:
        _save(rows, out)


def _seeds(text: str | None) -> SeedRange | None:
    from crl.config import SeedRange

    if text is None:
        return None
    start, separator, count = text.partition(":")
    if not (separator and start.isdigit() and count.isdigit() and int(count) > 0):
        raise BadInput(f"--seeds {text!r}", expected="START:COUNT, such as 2000000:32")
    return SeedRange(start=int(start), count=int(count))


def _ready(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether everything that the evaluation of a round reads is complete."""
    stages = recipe.preparation if number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None:
        return False
    resolved = [recipe.resolve(directory.method, number, read.stage, read.offset) for read in stage.reads]
    return all(place is None or directory.is_complete(*place) for place in resolved)


def _pruned(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether retention deleted the weights that the evaluation of a round needs."""
    from crl.recipes.weights import CHECKPOINT
    from crl.records import Weights
    from crl.run.prunelog import pruned

    place = recipe.resolve(directory.method, number, "update_actor", 0)
    if place is None:
        return False
    deleted = {f"rounds/{entry.round:04d}/{entry.stage}/{CHECKPOINT}" for entry in pruned(directory.path)}
    rows = directory.read(*place, Weights).to_pylist()
    return any(
        row["role"] == "actor" and row["checkpoint"] in deleted and not (directory.path / row["checkpoint"]).is_dir()
        for row in rows
    )


def _require_weights(directory: RunDirectory, recipe: Recipe, number: int) -> None:
    """Raise BadInput for a round whose weights retention deleted: that is no damage, and is said before loading."""
    if not _pruned(directory, recipe, number):
        return
    ready = [each for each in directory.rounds() if _ready(directory, recipe, each)]
    left = [str(each) for each in ready if not _pruned(directory, recipe, each)]
    raise BadInput(
        f"the actor's weights of round {number} were deleted by retention",
        expected=f"one of the rounds {', '.join(left)}" if left else "a round whose weights were kept",
        where=str(directory.path),
        next_step="runtime.keep_every and runtime.keep_checkpoints say which weights later rounds keep",
    )


def _latest(directory: RunDirectory, recipe: Recipe) -> int:
    ready = [number for number in directory.rounds() if _ready(directory, recipe, number)]
    if not ready:
        raise BadInput(f"{directory.path} has no round to evaluate yet", next_step="`crl resume` goes on with it")
    return max(ready)


def _print(rows: list[Evaluation], number: int) -> None:
    from rich.table import Table

    from crl.report.rates import Rate

    table = Table(title=f"round {number}, held-out seeds", title_justify="left")
    for name in ("family", "arm", "won", "success [95 %]", "actions per game", "invalid actions", "guided"):
        table.add_column(name, justify="left" if name in ("family", "arm") else "right")
    for family, arm in sorted({(row.family, row.arm) for row in rows}):
        mine = [row for row in rows if (row.family, row.arm) == (family, arm)]
        turns = sum(row.turns for row in mine)
        rate = Rate(sum(row.success for row in mine), len(mine))
        table.add_row(
            family,
            arm.replace("_", " "),
            str(rate),
            f"{rate.percent} [{rate.span}]",
            f"{turns / len(mine):.1f}",
            f"{sum(row.invalid_actions for row in mine) / max(turns, 1):.0%}",
            str(sum(row.guided for row in mine)),
        )
    console().print(table)


def _save(rows: list[Evaluation], out: Path) -> None:
    import pyarrow.parquet as pq

    from crl.records import Evaluation, table_of

    pq.write_table(table_of(Evaluation, rows), out)
    console().print(f"{len(rows)} rows written to {out}")
