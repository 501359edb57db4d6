"""What the README shows of runs, made from them: `python benchmarks/readme.py runs/quickstart [RUN …]`.

Writes docs/quickstart.svg (the tables that `crl train` ends with) and docs/why.svg (the story of the experience that
did best when it was used, its lines cut at their right) from the first run, and replaces the table behind the line
`<!-- from runs -->` in README.md: held-out games won by every run, one row per seed, after the newest round that all
of them have.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.headline import inserted
from crl.cli.shared import an_entry
from crl.paths import quoted
from crl.report.round_tables import round_tables
from crl.report.story import story_tree
from crl.report.success import Rate
from crl.report.summary import random_policy, summarize
from crl.report.why import why
from crl.run.directory import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console

TABLES, STORY, README = Path("docs/quickstart.svg"), Path("docs/why.svg"), Path("README.md")
MARK = "<!-- from runs -->"
COLUMNS = 108
"""Longest line of a story."""
_TABLES = 132
"""Columns of the tables: the widest fits."""
_WIDE = 100_000


def tables(run_path: Path) -> str:
    """What `crl train` shows at its end, as SVG."""
    console = _console(_TABLES)
    for table in round_tables(summarize(run_path)):
        console.print(table)
        console.print()
    return _svg(console, f"crl train {quoted(run_path.name)}")


def story(run_path: Path) -> str | None:
    """What `crl bank why` shows of one experience, as SVG; None where the bank is empty."""
    entry = an_entry(run_path)
    if entry is None:
        return None
    wide, console = _console(_WIDE), _console(COLUMNS)
    wide.print(story_tree(why(run_path, entry)))
    for line in map(str.rstrip, wide.export_text().splitlines()):
        short = line if len(line) <= COLUMNS else f"{line[: COLUMNS - 2].rstrip()} …"
        console.print(short, markup=False, highlight=False)
    return _svg(console, f"crl bank why {quoted(run_path.name)} {entry}")


def _console(width: int) -> Console:
    from rich.console import Console

    return Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def _svg(console: Console, title: str) -> str:
    svg = console.export_svg(title=title, unique_id="crl")
    # Rich asks a web server for its font; a picture in the documentation asks nobody.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL) + "\n"


def success(run_paths: Sequence[Path]) -> str:
    """Held-out games won, as Markdown: one row per run, by seed. All runs are compared after the same round."""
    rows = []
    found = {path: summarize(path) for path in run_paths}
    last = min(max(each.round for each in rounds if each.with_bank.episodes) for rounds in found.values())
    for path, rounds in found.items():
        before = next(each for each in rounds if each.label == "0")
        after = next(each for each in rounds if each.round == last)
        seed = RunDirectory.open(path).method.seed
        rates = (random_policy(rounds), before.without_bank, after.with_bank, after.without_bank)
        rows.append((seed, f"|{seed}|{'|'.join(map(_won, rates))}|"))
    head = f"|seed|random|before|round {last}, with its bank|round {last}, without|"
    return "\n".join([head, "|-" * head[1:].count("|") + "|", *(row for _, row in sorted(rows))])


def _won(rate: Rate) -> str:
    return f"{rate.successes}/{rate.episodes}" if rate.episodes else "–"


def main(run_paths: Sequence[Path], folder: Path) -> None:
    """Write the pictures of the first run, and the table of all, below `folder`."""
    for path, svg in ((TABLES, tables(run_paths[0])), (STORY, story(run_paths[0]))):
        if svg is not None:
            (folder / path).write_text(svg, encoding="utf-8")
    page = folder / README
    page.write_text(inserted(page.read_text(encoding="utf-8"), success(run_paths), MARK), encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]], Path.cwd())
