"""`crl evaluate`: held-out seeds with the weights of a round, with and without its bank; the record is not changed. Or
those of an exported agent, compared with the episodes in its folder.

`crl table`: the recorded evaluations of several runs as one table, as in the paper's Table 1. It runs nothing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crl.cli.shared import AgentArgument, print_listing, say, say_json, shown
from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from crl.paths import possible_path, short
from crl.run.find import find_run, is_run

if TYPE_CHECKING:
    from crl.config import Method, SeedRange
    from crl.lab.table.build import Table, TableMetric
    from crl.lab.table.read import RunResults, Which
    from crl.records import Evaluation
    from crl.rounds.evaluate import Choice, Evaluated

TableFormat = Literal["rich", "markdown", "latex", "csv", "json"]
MetricName = Literal["success", "score", "actions", "tokens"]
"""What a table is about, as `crl.lab.table.build.TableMetric`: `crl --help` does without that module."""
_COLUMNS = (
    "task", "condition", "won", "success [95 %]", "score", "actions", "tokens read", "written", "invalid actions",
    "guided",
)  # fmt: skip


def evaluate(
    run: AgentArgument,
    round: Annotated[int | None, typer.Option(min=0, help="Round to evaluate; default the latest.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Only these tasks (families); repeatable.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Held-out seeds of each task, from the start of its split; default all.")
    ] = None,
    conditions: Annotated[
        list[str] | None, typer.Option(metavar="with,without", help="With the bank, without it, or random (round 0).")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="START:COUNT", help="Held-out seeds other than the experiment's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows to this Parquet file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Evaluate a round of a run, with and without its bank. The record is read, not changed.

    Success has Wilson intervals; score is the mean reward; actions and tokens are per episode. The rows are
    kept beside the record, in evaluations/ of the run, where `crl table` finds them.

    The games of a folder of `crl export` are compared with the episodes in it. Exit code 0: they are equal, or
    success lies in the stored interval and another processor computed it. Exit code 1: they differ.
    """
    from crl.engine.evaluation import evaluate_round, keep
    from crl.engine.targets import last_runtime
    from crl.preflight import check_evaluation
    from crl.rounds.evaluate import Choice, chosen_method
    from crl.run.directory import RunDirectory
    from crl.run.files import require_writable
    from crl.serve.folder import is_agent

    choice = Choice(tasks=_listed(tasks), episodes=episodes, seeds=_seeds(seeds), conditions=_listed(conditions))
    if out is not None:
        if not possible_path(out, "--out").absolute().parent.is_dir():
            raise BadInput(f"--out {out}: there is no directory {out.parent}", expected="a directory that exists")
        if out.is_dir():
            raise BadInput(f"--out {out} is a directory", expected="the name of a file")
        require_writable(out.absolute().parent, f"--out {out}")  # before minutes of play
    if is_agent(folder := possible_path(run, "the agent")):
        _evaluate_export(folder, round, choice, out, as_json=as_json)
        return
    directory = RunDirectory.open(_run(run))
    check_evaluation(directory, last_runtime(directory.path), chosen_method(directory.method, choice))
    _prepare(directory.method, as_json=as_json)
    evaluated = evaluate_round(directory, round, choice=choice)
    kept = keep(directory, evaluated)
    if out is not None:
        _save(evaluated.rows, out)
    if as_json:
        say_json({"run": str(directory.path), **_data(evaluated), "kept": kept.path}, indent=1)
    else:
        _print(evaluated)
        if out is not None:
            say(f"{len(evaluated.rows)} rows written to {out}")
    if kept.path is None:
        say(kept.text, stderr=True)
    elif not as_json:
        say(kept.text.replace(str(kept.path), shown(kept.path)))


def _run(word: str) -> Path:
    """The run that is meant. Raises BadInput."""
    try:
        return find_run(word)
    except BadInput:
        if not Path(word).is_dir():
            raise
        raise BadInput(
            f"the folder {short(word)} is neither a run nor an exported agent",
            expected="a folder with rounds/, or with the experience.json that `crl export` writes",
            next_step="name the folder that has it",
        ) from None


def _evaluate_export(folder: Path, round: int | None, choice: Choice, out: Path | None, *, as_json: bool) -> None:
    from crl.serve.folder import OfFolder
    from crl.serve.held_out import evaluate_folder

    agent = OfFolder(folder)
    if round not in (None, agent.round):
        raise BadInput(f"{folder} holds round {agent.round}", expected=f"--round {agent.round}, or none")
    _prepare(agent.method, as_json=as_json)
    evaluated, compared = evaluate_folder(agent, choice)
    if out is not None:
        _save(evaluated.rows, out)
    if as_json:
        say_json({"folder": str(folder), **_data(evaluated), "compared": compared and compared.data()}, indent=1)
    else:
        _print(evaluated)
        if out is not None:
            say(f"{len(evaluated.rows)} rows written to {out}")
        for line in compared.lines() if compared else ["the folder has no episodes of these games to compare with"]:
            say(line)
    if compared is not None and not compared.holds:
        raise typer.Exit(1)


def _prepare(method: Method, *, as_json: bool) -> None:
    """Set what libraries read when they are imported, which asking for the precision does; say what it is."""
    from crl.engine.services import prepare_environment
    from crl.policies.machine import replaced

    os.environ.update(prepare_environment(method.threads))
    if (said := replaced(method)) is not None:
        say(said, stderr=as_json)


def _listed(words: list[str] | None) -> tuple[str, ...] | None:
    """The words of an option that may hold several, and may be given again; once each."""
    if words is None:
        return None
    return tuple(dict.fromkeys(name for word in words for each in word.split(",") if (name := each.strip())))


def _seeds(text: str | None) -> SeedRange | None:
    from pydantic import ValidationError

    from crl.config import SeedRange
    from crl.config.environments import MOST_HELD_OUT
    from crl.config.load import is_index

    if text is None:
        return None
    start, separator, count = text.partition(":")
    expected, said = "START:COUNT, such as 2000000:32", f"--seeds {short(text)}"
    if not (separator and is_index(start) and is_index(count) and int(count) > 0):
        raise BadInput(said, expected=expected)
    if int(count) > MOST_HELD_OUT:
        raise BadInput(
            f"{said}: {count} seeds", expected=f"at most {MOST_HELD_OUT}: each is played with every condition"
        )
    try:
        return SeedRange(start=int(start), count=int(count))
    except ValidationError as error:
        raise BadInput(f"{said}: {error.errors()[0]['msg']}", expected=expected) from None


def _data(evaluated: Evaluated) -> dict[str, Any]:
    from crl.engine.evaluation import settings_of
    from crl.report.success import condition_results, with_averages

    found = with_averages(condition_results(evaluated.rows))
    return {
        "round": evaluated.round,
        **settings_of(evaluated),
        "unscored": evaluated.unscored,
        "results": [result.metrics() for result in found if result.won is not None],
        "averages": [result.metrics() for result in found if result.won is None],
    }


def _print(evaluated: Evaluated) -> None:
    from crl.report.cells import NOTHING
    from crl.report.success import columns_of_pass, condition_results, with_averages
    from crl.report.terminal import Listing

    results = with_averages(condition_results(evaluated.rows))
    passes = columns_of_pass(results)
    columns = (*_COLUMNS[:4], *(name for name, _ in passes), *_COLUMNS[4:])
    rows = [
        (
            each.task, each.condition_words, each.won_words, each.success.words,
            *(each.pass_at[k].words if k in each.pass_at else NOTHING for _, k in passes),
            f"{each.score:.2f}", f"{each.actions:.1f}", f"{each.tokens_read:.0f}", f"{each.tokens_written:.0f}",
            f"{each.invalid_share:.0%}", each.guided,
        )
        for each in results
    ]  # fmt: skip
    title = f"round {evaluated.round}, held-out seeds; actions and tokens per episode"
    print_listing(Listing(columns, rows, right=frozenset(columns[2:]), title=title))
    if evaluated.unscored:
        say(f"{evaluated.unscored} episodes are left out: their judge gave no score")


def _save(rows: list[Evaluation], out: Path) -> None:
    import pyarrow.parquet as pq

    from crl.records import Evaluation, table_of
    from crl.run.files import write_atomically

    content = io.BytesIO()
    pq.write_table(table_of(Evaluation, rows), content)
    write_atomically(out, content.getvalue())


def table(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Run directories or names of experiments. NAME=RUN names its row; runs may share one."
        ),
    ],
    round: Annotated[
        str, typer.Option(metavar="last|best|N", help="The last evaluated round, the best one, or this one.")
    ] = "last",
    metric: Annotated[
        MetricName, typer.Option(help="Shown by rich, markdown and latex; csv and json have all.")
    ] = "success",
    format: Annotated[
        TableFormat, typer.Option(help="rich for a terminal; markdown, latex for text; csv, json for data.")
    ] = "rich",
) -> None:
    """Print the recorded evaluations of several runs as one table.

    One row per method, with its bank and without; one column per task, then their average. Runs that differ only in
    their seeds are one row, with intervals over seeds. Runs that are damaged, or were never evaluated, are not in the
    table but named below it.
    """
    from crl.lab.table.build import TableMetric, build, grouped

    which = _which(round)
    found, problems = _read(runs, which)
    made = build(grouped(found), which, problems)
    _print_table(made, TableMetric(metric), format)


def _which(text: str) -> Which:
    from crl.config.load import is_index

    if text == "last" or text == "best":
        return "last" if text == "last" else "best"
    if not is_index(text):
        raise BadInput(f"--round {short(text)}", expected="last, best, or the number of a round")
    return int(text)


def _read(words: Sequence[str], which: Which) -> tuple[list[tuple[str | None, RunResults]], list[str]]:
    """The runs with the names of their rows, and why others are not among them."""
    from crl.lab.table.read import read_results

    found: list[tuple[str | None, RunResults]] = []
    problems: list[str] = []
    places: set[Path] = set()
    for label, name, path in [
        _named(word) for word in words
    ]:  # a name that is wrong is refused before anything is read
        if path is None:
            problems.append(f"not in the table: {name} is not a run")
        elif path.absolute().resolve() in places:
            problems.append(f"{name} is given twice; the table has it once")
        else:
            places.add(path.absolute().resolve())
            try:
                found.append((label, read_results(path, which)))
            except (BadInput, RecordDamaged, RunDirectoryUnusable) as error:
                problems.append(f"not in the table: {name}: {' '.join(error.found.split())}")
    if not found:
        raise BadInput("\n".join(problems), expected="a run with an evaluation", next_step="crl evaluate RUN makes one")
    return found, problems


def _named(word: str) -> tuple[str | None, str, Path | None]:
    """(name of the row, name of the run, where it is) of an argument; nowhere for a place that is no run.

    Raises BadInput for a name that means nothing at all.
    """
    label, separator, name = word.partition("=")
    if not separator or is_run(possible_path(word, "the run")):
        label, name = "", word
    elif not label.strip() or not name:
        raise BadInput(f"{short(word)} lacks the name of its row, or the run", expected="RUN, or NAME=RUN")
    try:
        return label.strip() or None, name, find_run(name)
    except BadInput:
        if not possible_path(name, "the run").exists():
            raise
        return None, name, None  # of `runs/*` some may be other things


def _print_table(made: Table, metric: TableMetric, format: TableFormat) -> None:
    from crl.lab.table.formats import HOW, csv_text, data, latex, listing, markdown

    if format == "json":
        say_json(data(made), indent=1)
    elif format == "rich":
        print_listing(listing(made, metric))
        say("")
        for line in (HOW, *made.footnotes):
            say(line)
    elif format == "csv":
        say(csv_text(made).rstrip("\n"))
    else:
        say((markdown if format == "markdown" else latex)(made, metric))
