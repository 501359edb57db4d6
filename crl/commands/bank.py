"""`crl bank show`, `crl bank diff` and `crl bank why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crl.commands.places import RunArgument, find_run, shown

if TYPE_CHECKING:
    from crl.report.diff import BankDiff

app = typer.Typer(help="The experience bank: its entries, and why each is there.", no_args_is_help=True)


@app.command("show")
def show(
    run: RunArgument,
    round: Annotated[int | None, typer.Option(min=0, help="The bank after this round; default the newest.")] = None,
    family: Annotated[str | None, typer.Option(help="Only this task family.")] = None,
) -> None:
    """List the bank after a round: text, age, how often each entry guided an episode and with what outcome."""
    from rich.table import Table
    from rich.text import Text

    from crl.commands.screen import console
    from crl.report.bank import snapshot

    path = find_run(run)
    found = snapshot(path, round, family)
    out = console()
    if not found.entries:
        out.print(f"the bank after round {found.round} is empty{f' in family {family}' if family else ''}")
        return
    table = Table(title=f"bank after round {found.round}", title_justify="left", box=None, header_style="bold",
                  pad_edge=False)  # fmt: skip
    for name in ("entry", "family", "version", "round", "uses", "credit", "experience"):
        right = name in ("version", "round", "uses", "credit")
        # The id must be whole on one line: it is what `crl bank why` is given.
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "entry")
    for entry in found.entries:
        credit = "–" if entry.mean_outcome is None else f"{entry.mean_outcome:+.2f}"
        cells = (entry.entry_id, entry.family, entry.version, entry.updated_round, entry.uses, credit, entry.text)
        table.add_row(*(Text(str(cell)) for cell in cells))
    out.print(table)
    out.print(
        f"{len(found.entries)} entries; where one comes from: crl bank why {shown(path)} {found.entries[0].entry_id}"
    )


@app.command("diff")
def diff(
    run: RunArgument,
    round: Annotated[int, typer.Argument(metavar="ROUND", min=0, help="Round that published its bank.")],
) -> None:
    """Say what a round did to the bank: added, updated, merged, dropped, evicted, rejected, with texts and reasons."""
    from crl.report.diff import bank_diff

    show_diff(bank_diff(find_run(run), round))


def show_diff(diff: BankDiff) -> None:
    """Print a bank diff: its headline, then a row a change."""
    from crl.commands.screen import console
    from crl.report.diff import diff_table

    out = console()
    out.print(diff.headline(), soft_wrap=True)
    if diff.changes:
        out.print(diff_table(diff))


@app.command("why")
def why(
    run: RunArgument,
    entry: Annotated[str, typer.Argument(metavar="ID", help="Id of the experience, from `crl bank show`.")],
) -> None:
    """Say where an experience comes from and what became of it: episodes, prompt, extractor, parents, uses, credit."""
    from crl.commands.screen import console
    from crl.report.bank import why_tree

    console().print(why_tree(find_run(run), entry))
