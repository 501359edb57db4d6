"""More bug-fix tasks: the libraries that ship are broken in many places. A script, run once; it writes rows.

    python -m data.swe.mutations FOLDER [--bugs 20] [--names 1] [--seed 0] [--library recency] …

    FOLDER/rows.jsonl    the tasks that ship and those that were made; the column `split` tells which are held out
    FOLDER/repos/        a bare repository per library, with a branch per task

`swe` plays them as it plays any rows, and so does another trainer that knows SWE-Bench's format:

    environment: {kind: swe, rows: FOLDER/rows.jsonl}

Made tasks are all of libraries to train on. What is tried and kept is in `bugs.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from crl.worlds.swe.library import libraries
from crl.worlds.swe.repository import write_repository
from crl.worlds.swe.shipped import Task, shipped_tasks
from data.swe.mutations.bugs import bugs_of, renamed

TRAINED = sorted(name for name, library in libraries().items() if library.split == "train")


def write_rows(tasks: Iterable[Task], folder: Path) -> Path:
    """Rows and repositories of tasks; the file of the rows, which is replaced last, when all else is there."""
    tasks = list(tasks)
    trees: dict[str, dict[str, Mapping[str, str]]] = {}
    for task in tasks:
        trees.setdefault(task.library.name, {})[task.instance_id] = task.files
    commits = {
        instance_id: commit
        for name, those in trees.items()
        for instance_id, commit in write_repository(those, folder / "repos" / f"{name}.git").items()
    }
    lines = []
    for task in tasks:
        row = task.row().model_copy(update={"base_commit": commits[task.instance_id]})
        lines.append(json.dumps(row.model_dump(mode="json", by_alias=True, exclude={"image"}), ensure_ascii=False))
    unfinished = folder / f".rows.{os.getpid()}"
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return unfinished.replace(folder / "rows.jsonl")


def main(
    folder: Path,
    bugs: int = typer.Option(20, min=0, help="Bugs of each library, at most: some have fewer."),
    names: int = typer.Option(1, min=1, help="Choices of names that each bug is written under."),
    seed: int = typer.Option(0, help="Which bugs are tried first."),
    library: list[str] = typer.Option(TRAINED, help="Libraries that are broken; again for more than one."),  # noqa: B008
) -> None:
    """Write the tasks that ship, and tasks made by breaking their libraries, as rows with their repositories."""
    if unknown := set(library).difference(TRAINED):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: expected one of {', '.join(TRAINED)}")
    made: list[Task] = []
    for name in library:
        found = bugs_of(libraries()[name], bugs, seed)
        made += [renamed(task, number) for number in range(names) for task in found]
        typer.echo(f"{name}: {len(found)} bugs")
    rows = write_rows([*shipped_tasks().values(), *made], folder)
    typer.echo(f"{rows}: {len(shipped_tasks())} tasks that ship and {len(made)} that were made")


if __name__ == "__main__":
    typer.run(main)
