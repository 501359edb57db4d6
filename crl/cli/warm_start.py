"""`crl warm-start`: models taught the form of their work, made once and shared by every arm of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crl.cli.shared import console


def warm_start(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file, such as conf/warm/realms.yaml.")],
    again: Annotated[
        bool, typer.Option("--again", help="Replace one of the same name made from other settings.")
    ] = False,
) -> None:
    """Make a warm start from generated demonstrations. Typed again, it finds what is there.

    Experiments name its models warm:NAME/actor and warm:NAME/extractor. The miniatures of the laboratory take 10 to 20
    minutes on two cores.
    """
    import os

    from crl.engine.services import prepare_environment
    from crl.lab.warm.config import load_warm_start
    from crl.lab.warm.make import RECORD, make

    settings = load_warm_start(file)
    # Before torch is imported: it reads them once.
    os.environ.update(prepare_environment(settings.threads))
    out = console()
    place = make(file, say=lambda line: out.print(line, soft_wrap=True), again=again)
    out.print(f"warm start {settings.name}: {place} (its record: {RECORD} and record/)", soft_wrap=True)
    out.print(f"models: warm:{settings.name}/actor and warm:{settings.name}/extractor")
