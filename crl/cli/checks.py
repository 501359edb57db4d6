"""`crl checks …`: what the rows of every stage are checked for, and the Data Docs of a run (docs/checks.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crl.cli.shared import Plain, RunArgument, say, say_json, shown
from crl.run.find import find_run

app = typer.Typer(
    help="Data checks that run before a commit. Great Expectations suites, and a run's Data Docs.",
    no_args_is_help=True,
)


ExperimentOption = Annotated[
    Path | None,
    typer.Option(
        metavar="EXPERIMENT", help="Include the tables of this experiment's recipe, and the suites beside its file."
    ),
]


@app.command("list")
def list_suites(experiment: ExperimentOption = None) -> None:
    """List the suites. There is one per row type; those that a recipe brings need --experiment."""
    from crl.checks.suites import row_types, suite_with_own

    own = _own(experiment)
    for table in row_types():
        count, added = len(suite_with_own(table, own)["expectations"]), len(own.get(table, {}).get("expectations", ()))
        say(f"{table}: {count} expectations{f', {added} of them your own' if added else ''}")


@app.command("show")
def show(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A row type, from `crl checks list`.")],
    experiment: ExperimentOption = None,
    format: Annotated[Plain, typer.Option(help="Sentences, or Great Expectations' JSON.")] = "text",
) -> None:
    """Print one suite. As JSON it is what Great Expectations reads, and a template for your own."""
    from crl.checks.suites import row_types, sentences, suite_with_own
    from crl.errors import BadInput
    from crl.paths import short

    own = _own(experiment)
    if table not in row_types():
        raise BadInput(
            f"there is no table {short(table)}",
            expected=f"one of {', '.join(row_types())}",
            next_step=None if experiment else "for a table that a recipe brings, name its experiment: --experiment",
        )
    if format == "json":
        say_json(suite_with_own(table, own), indent=2)
        return
    for sentence in sentences(table, own.get(table)):
        say(sentence)


@app.command("docs")
def docs(
    run: RunArgument,
    round: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Validate this round; may be repeated; default the newest."),
    ] = None,
) -> None:
    """Have Great Expectations validate rounds again. Writes their verdicts, and Data Docs that need no network."""
    from crl.engine.targets import last_runtime
    from crl.report.data_docs import INDEX
    from crl.report.page import REPORT, write_report
    from crl.validation.round import validate_rounds

    directory = find_run(run)
    for verdict in validate_rounds(directory, round or (), last_runtime(directory).expectations):
        say(f"round {verdict.round}: {verdict.summary()}")
        for alarm in verdict.alarms:
            say(f"  alarm: {alarm}")
    if (directory / REPORT).exists():
        write_report(directory)  # it links to the Data Docs from now on
    say(f"{shown(directory / INDEX)}: open it in a browser")


def _own(experiment: Path | None) -> dict[str, dict[str, Any]]:
    """The suites beside an experiment file, checked. Loads its recipe, with the tables it brings. Raises BadInput."""
    if experiment is None:
        return {}
    from crl.checks.own import check_own_suites
    from crl.config.load import load_experiment
    from crl.rounds.recipe import recipe_of

    loaded = load_experiment(experiment)
    recipe_of(loaded.method)
    own = loaded.runtime.expectations
    check_own_suites(own)
    return own
