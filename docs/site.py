"""What mkdocs adds to the pages of this folder: the command line's page, and readable references in docstrings."""

from __future__ import annotations

import re
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from crl.cli import app

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=<code>)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `commands.md`, written from the commands themselves."""
    group = typer.main.get_command(app)
    _whole_sentences(group)
    page = get_docs_for_click(obj=group, ctx=typer.Context(group), name="crl", title="The command line")
    files.append(File.generated(config, "commands.md", content=page))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings refer to names in Sphinx's form; on the page the name alone remains."""
    return _ROLE.sub("", html)


def _whole_sentences(group: Any) -> None:
    """A list of commands shows the first paragraph of each help, where typer would cut it at 45 characters."""
    for command in getattr(group, "commands", {}).values():
        command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())
        _whole_sentences(command)
