"""`crl list`: the runs of the runs folder, or the experiments to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from crl.cli.shared import RunsOption, print_listing, say, say_json, shown


def list_runs(
    runs: RunsOption = None,
    experiments: Annotated[
        bool, typer.Option("--experiments", help="List experiments to begin with: here, and shipped ones.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: their state, rounds and newest held-out success.

    With --experiments, what `crl train` can begin with.
    """
    from crl.config.load import runs_root

    if experiments:
        _list_experiments(json)
        return
    root = runs if runs is not None else runs_root()
    from crl.report.overview import overview

    found = overview(root)
    if json:
        say_json(
            [
                {
                    "name": each.name,
                    "state": each.state,
                    "rounds": each.rounds,
                    "asked": each.asked,
                    "evaluated": each.evaluated,
                    "with_bank": each.with_bank.value,
                    "without_bank": each.without_bank.value,
                    "changed": each.changed.isoformat(timespec="seconds"),
                }
                for each in found
            ],
            indent=2,
        )
        return
    if not found:
        say(f"there are no runs in {shown(root)} yet. next:")
        say("  # the experiments to begin with\n  crl list --experiments")
        say("  # a file of your own, from one of them\n  crl init")
        return
    from crl.report.terminal import Listing

    rows = [
        (
            each.name,
            each.state,
            f"{each.rounds} of {each.asked}",
            each.with_bank.words,
            each.without_bank.words,
            each.changed.strftime("%Y-%m-%d %H:%M"),
        )
        for each in found
    ]
    columns = ("run", "state", "rounds", "held out, with bank", "without", "changed (UTC)")
    print_listing(Listing(columns, rows, words={"state"}, packed=True), paged=True)


def _list_experiments(json: bool) -> None:
    from crl.config.load import experiment_files
    from crl.paths import shipped, shipped_name
    from crl.report.terminal import Listing

    # conf/README.md has a line for every file, in the order to look at them.
    lines = re.findall(r"^- (`[^:]+`): (.+)$", (shipped() / "conf/README.md").read_text(encoding="utf-8"), re.MULTILINE)
    about = {name: text for names, text in lines for name in re.findall(r"`([\w/-]+)\.yaml`", names)}
    names = [name if "/" not in name else shipped_name(Path(name)) for name in experiment_files()]
    order = [*about]
    rows = sorted(
        ((name, about.get(name, "in this folder").replace("**", "")) for name in names),
        key=lambda row: order.index(row[0]) if row[0] in about else -1,
    )
    if json:
        say_json([{"name": name, "about": text} for name, text in rows], indent=2)
        return
    print_listing(Listing(("experiment", "what it is"), rows, words={"what it is"}), paged=True)
    say("train one: crl train NAME; begin a file of your own from one: crl init NAME")
