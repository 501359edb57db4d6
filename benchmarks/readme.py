"""What the README shows of a run, made from it: `python benchmarks/readme.py runs/quickstart`.

Writes docs/quickstart.svg (the tables), and replaces in README.md the code block behind each line
`<!-- from a run: NAME -->`; a name that the README does not have is printed, to be put there. Names: `ending` (the
words that `crl train` ends with) and `why` (the story of the experience that did best when it was used, its lines cut
at their right).
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from crl.cli.shared import an_entry, ending
from crl.paths import quoted
from crl.report.round_tables import round_tables
from crl.report.story import story_tree
from crl.report.summary import summarize
from crl.report.why import why
from crl.run.directory import RunDirectory

PICTURE, README = Path("docs/quickstart.svg"), Path("README.md")
COLUMNS = 108
"""Longest line of a block."""
_TABLES = 132
"""Columns of the picture: the widest table fits."""
_WIDE = 100_000


def blocks(run_path: Path) -> dict[str, str]:
    """The text of each block by its name. Raises BadInput where the run has no bank, RecordDamaged."""
    run = RunDirectory.open(run_path)
    stages = sum(len(run.complete_stages(number)) for number in run.rounds())
    shown = Path("runs") / run.experiment_name
    found = {"ending": "\n".join(ending(str(shown), stages, summarize(run_path)))}
    entry = an_entry(run_path)
    if entry is not None:
        found["why"] = _story(run_path, entry)
    return found


def inserted(text: str, found: dict[str, str]) -> tuple[str, list[str]]:
    """The README with its blocks replaced, and the names of those that it has no line for."""
    missing = []
    for name, block in found.items():
        place = re.compile(rf"(<!-- from a run: {name} -->\n+```\w*\n).*?(\n```)", re.DOTALL)
        if not place.search(text):
            missing.append(name)
        text = place.sub(lambda match, block=block: match[1] + block + match[2], text)  # type: ignore[misc]
    return text, missing


def _story(run_path: Path, entry: str) -> str:
    from rich.console import Console

    out = Console(file=io.StringIO(), width=_WIDE)
    out.print(story_tree(why(run_path, entry)))
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    return "\n".join(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2].rstrip()} …" for line in lines)


def picture(run_path: Path) -> str:
    """What `crl train` shows at its end, drawn as SVG."""
    from rich.console import Console

    console = Console(record=True, width=_TABLES, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for table in round_tables(summarize(run_path)):
        console.print(table)
        console.print()
    svg = console.export_svg(title=f"crl train {quoted(run_path.name)}", unique_id="crl")
    # Rich asks a web server for its font; a picture in the documentation asks nobody.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main(run_path: Path, folder: Path) -> None:
    """Write the picture and the README below `folder`; print what has no place."""
    found = blocks(run_path)
    (folder / PICTURE).write_text(picture(run_path) + "\n", encoding="utf-8")
    text, missing = inserted((folder / README).read_text(encoding="utf-8"), found)
    (folder / README).write_text(text, encoding="utf-8")
    for name in missing:
        print(f"<!-- from a run: {name} -->\n```\n{found[name]}\n```\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path.cwd())
