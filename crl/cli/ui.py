"""`crl ui`: Prefect's UI with all that training from it needs, in one command."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Prefect's server and UI.")] = 4200,
    pages_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the report pages; default the one after it.")
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Serve Prefect's UI with a worker, schedules, report pages. Ctrl-C stops all.

    Runs work in this folder. All of it listens on this machine only; CRL_UI_AUTH=user:password asks for a password.
    """
    # By name: nothing of the library imports the flows, or Prefect.
    importlib.import_module("flows.ui").serve(port, pages_port, with_parent=with_parent)
