"""`crl bank …`: what the bank held after a round, what changed, why an entry is there, what is near a text.

Export and import are in `bank_transfer.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crl.cli.bank_build import build_bank
from crl.cli.bank_transfer import export_bank, import_bank
from crl.cli.serve import serve_bank
from crl.cli.shared import (
    Format,
    Plain,
    RunArgument,
    console,
    print_listing,
    print_rows,
    say,
    say_json,
    show_diff,
    shown,
)
from crl.paths import quoted
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.report.bank import ShownEntry

app = typer.Typer(
    help="The experience bank after any round. Its entries, why each is there, what changed; export and import.",
    no_args_is_help=True,
)
app.command("build")(build_bank)
app.command("export")(export_bank)
app.command("import")(import_bank)
app.command("serve")(serve_bank)

_ALL = 200
"""Entries that are listed without being asked for all."""
_PAGE = 50
"""Entries listed of a larger bank."""

Sort = Literal["age", "newest", "uses", "credit", "harm"]
"""An order of entries, as `BankAfter.sorted`."""
RoundOption = Annotated[int | None, typer.Option(min=0, help="The bank after this round; default the newest.")]
FamilyOption = Annotated[str | None, typer.Option(help="Only this task family.")]


PlainOption = Annotated[Plain, typer.Option("--format", help="For people, or as JSON.")]


@app.command("show")
def show(
    run: RunArgument,
    round: RoundOption = None,
    family: FamilyOption = None,
    sort: Annotated[
        Sort | None,
        typer.Option(help="age: oldest first; newest; uses; credit: best first; harm: worst first. Default age."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, help=f"Entries to show, 0 for all. Default all; a table of over {_ALL} shows the {_PAGE} most used."
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print the entries.")] = "table",
) -> None:
    """List the bank after a round. Text, age, how often its text guided an episode and with what outcome."""
    from crl.report.bank import BankAfter
    from crl.run.directory import RunDirectory

    path = find_run(run)
    bank = BankAfter(RunDirectory.open(path), round)
    rows = bank.rows(family)
    paged = limit is None and format == "table" and len(rows) > _ALL
    order = sort or ("uses" if paged else "age")
    most = _PAGE if paged else limit or None
    entries = bank.entries(bank.sorted(rows, order)[:most])
    if format != "table":
        print_rows(_NAMES, map(_cells, entries), format)
        return
    _print_entries(entries, title=f"bank after round {bank.round}")
    if not entries:
        say(f"the bank after round {bank.round} is empty{f' in family {family}' if family else ''}")
        return
    of = f"{len(entries)} entries" if len(entries) == len(rows) else f"{len(entries)} of {len(rows):,} entries"
    how = "" if len(entries) == len(rows) else f" ({_TOLD[order]}; all: --limit 0)"
    say(f"{of}{how}; where one comes from: crl bank why {shown(path)} {quoted(entries[0].entry_id)}")


@app.command("diff")
def diff(
    run: RunArgument,
    round: Annotated[int, typer.Argument(metavar="ROUND", min=0, help="Round that published its bank.")],
    last: Annotated[
        int | None, typer.Argument(metavar="[LATER]", min=0, help="A later round: the difference between the two.")
    ] = None,
    format: PlainOption = "text",
) -> None:
    """Show what changed in a round, or between two. With texts and reasons; between two, the net change."""
    import dataclasses

    from crl.report.diff import bank_diff, net_diff

    path = find_run(run)
    found = bank_diff(path, round) if last is None else net_diff(path, round, last)
    if format == "json":
        say_json({**dataclasses.asdict(found), "counts": found.counts()}, indent=1)
    else:
        show_diff(found)


UntilOption = Annotated[int | None, typer.Option(min=0, help="As it was after this round; default now.")]
EntryArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the experience, from `crl bank show`.")]


@app.command("why")
def why(
    run: RunArgument,
    entry: EntryArgument,
    round: UntilOption = None,
    full: Annotated[bool, typer.Option("--full", help="Show whole prompts and outputs, not only their ends.")] = False,
    format: PlainOption = "text",
) -> None:
    """Show where an experience comes from and what became of it. Episodes, prompt, extractor, parents, uses, credit."""
    from crl.report.story import story_tree
    from crl.report.why import why as story_of

    story = story_of(find_run(run), entry, until=round)
    if format == "json":
        say_json(story.plain(), indent=1)
    else:
        console().print(story_tree(story, full=full))


@app.command("history")
def history(run: RunArgument, entry: EntryArgument, round: UntilOption = None, format: PlainOption = "text") -> None:
    """List what happened to an experience, one line per event. Who asked, how its text changed, how it did."""
    from crl.report.story import history_listing
    from crl.report.why import why as story_of

    story = story_of(find_run(run), entry, until=round)
    if format == "json":
        say_json(story.history(), indent=1)
        return
    say(f"experience {entry} (family {story.family}): {story.fate}")
    print_listing(history_listing(story))


@app.command("search")
def search(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for, such as a game's goal.")],
    round: RoundOption = None,
    family: FamilyOption = None,
    number: Annotated[int, typer.Option("-n", "--number", min=1, max=10_000, help="Entries to show.")] = 10,
    lexical: Annotated[bool, typer.Option("--lexical", help="Match words; needs no model.")] = False,
    format: Annotated[Format, typer.Option(help="How to print the entries.")] = "table",
) -> None:
    """Find the entries nearest to a text. With the run's own embedder, or by words."""
    from crl.report.bank import BankAfter, search_words
    from crl.report.bank import search as find
    from crl.run.directory import RunDirectory

    bank = BankAfter(RunDirectory.open(find_run(run)), round)
    if lexical:
        hits = search_words(bank, text, family=family, most=number)
    else:
        from crl.engine.services import EngineServices, prepare_environment

        # Before torch is imported: this process is the engine here.
        os.environ.update(prepare_environment(bank.run.method.threads))
        hits = find(bank, text, EngineServices(bank.run).embedder(), family=family, most=number)
    score = "words" if lexical else "cosine"
    if format != "table":
        print_rows((score, *_NAMES), ((hit.score, *_cells(hit.entry)) for hit in hits), format)
    elif not hits:
        say(f"nothing found in the bank after round {bank.round}")
    else:
        _print_entries(
            [hit.entry for hit in hits],
            title=f"bank after round {bank.round}, nearest first",
            score=(score, [hit.score for hit in hits]),
        )


_TOLD = {
    "age": "the oldest first", "newest": "the newest first", "uses": "the most used first",
    "credit": "the best first", "harm": "the worst first",
}  # fmt: skip
_NAMES = (
    "entry_id", "family", "version", "created_round", "updated_round", "retrieved", "uses", "mean_outcome",
    "embedder_cut", "text",
)  # fmt: skip


def _cells(entry: ShownEntry) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in _NAMES)


def _print_entries(entries: list[ShownEntry], *, title: str, score: tuple[str, list[float]] | None = None) -> None:
    from crl.report.terminal import Listing

    if not entries:
        return
    rows = []
    for row, entry in enumerate(entries):
        credit = "–" if entry.mean_outcome is None else f"{entry.mean_outcome:+.2f}"
        cut = "  (longer than the embedder reads: found only by its beginning)" if entry.embedder_cut else ""
        found = [f"{score[1][row]:.3f}"] if score else []
        rows.append([
            *found, entry.entry_id, entry.family, entry.version, entry.updated_round, entry.uses, credit,
            entry.text + cut,
        ])  # fmt: skip
    names = [*([score[0]] if score else []), "entry", "family", "version", "round", "uses", "credit", "experience"]
    right = {"version", "round", "uses", "credit", score[0] if score else ""}
    print_listing(Listing(names, rows, words={"experience"}, right=right, title=title, packed=True))
