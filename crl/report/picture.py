"""The round tables of a run as an SVG picture. That of the README is made by `crl/cli/readme.py`."""

from __future__ import annotations

import io
import re
from pathlib import Path

from crl.paths import quoted
from crl.report.round_tables import round_tables
from crl.report.summary import summarize

WIDTH = 132
"""Columns of the picture: the widest table fits."""


def picture(run_path: Path) -> str:
    """What `crl train` shows at its end, drawn as SVG."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for table in round_tables(summarize(run_path)):
        console.print(table)
        console.print()
    svg = console.export_svg(title=f"crl train {quoted(run_path.name)}", unique_id="crl")
    # Rich asks a web server for its font; a picture in the documentation asks nobody.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
