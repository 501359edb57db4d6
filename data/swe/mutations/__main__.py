"""The tasks that ship as a data set folder, which `swe` plays as it plays any other.

    python -m data.swe.mutations.__main__ FOLDER [--variants 2000] [--seed 0]

    FOLDER/rows.jsonl    the tasks written by hand, and generated variants to train on; the column `split` tells which
                         rows are held out
    FOLDER/repos/        a bare repository per library

The same arguments give the same rows and commits on every machine. A folder that is there is brought up to date.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import typer

from crl.errors import BadInput
from crl.worlds.swe.shipped import materialize_all, shipped_tasks
from crl.worlds.swe.variants import Variants

VARIANTS = 2000
"""Variants of a data set unless another number is asked for."""


def write_data_set(folder: Path, *, variants: int = VARIANTS, seed: int = 0) -> Path:
    """Write rows and repositories; the file of the rows. `rows.jsonl` is replaced last, when all else is there.

    Raises BadInput for a number of variants that cannot be drawn.
    """
    available = Variants()
    if not 0 <= variants <= len(available):
        raise BadInput(
            f"{variants} variants cannot be drawn",
            expected=f"a number from 0 to {len(available)}",
            where="variants",
            next_step="ask for fewer",
        )
    tasks = [*shipped_tasks().values(), *available.draw(variants, seed)]
    lines = []
    materialize_all(tasks, folder / "repos")
    for task in tasks:
        row = task.row()
        lines.append(json.dumps(row.model_dump(mode="json", by_alias=True, exclude={"image"}), ensure_ascii=False))
    unfinished = folder / f".rows.{os.getpid()}"
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return unfinished.replace(folder / "rows.jsonl")


def main(
    folder: Path,
    variants: int = typer.Option(VARIANTS, help="Generated tasks to train on."),
    seed: int = typer.Option(0, help="Which of them are drawn."),
) -> None:
    """Write the tasks that ship, and variants of them, as rows of SWE-Bench's format with their repositories."""
    try:
        rows = write_data_set(folder, variants=variants, seed=seed)
    except BadInput as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    typer.echo(f"{rows}: {len(shipped_tasks())} tasks and {variants} variants")


if __name__ == "__main__":
    typer.run(main)
