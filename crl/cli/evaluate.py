"""`crl evaluate`: held-out seeds with the weights of a round, with and without its bank; the record is not changed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.escaping import say_json
from crl.cli.shared import RunArgument, console, print_listing, shown
from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.config import SeedRange
    from crl.records import Evaluation
    from crl.rounds.evaluate import Evaluated

_COLUMNS = (
    "task", "arm", "won", "success [95 %]", "score", "actions", "tokens read", "written", "invalid actions", "guided",
)  # fmt: skip


def evaluate(
    run: RunArgument,
    round: Annotated[int | None, typer.Option(min=0, help="Round to evaluate; default the latest.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Only these tasks (families); repeatable.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Held-out seeds of each task, from the start of its split; default all.")
    ] = None,
    arms: Annotated[
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
    """
    from crl.engine.evaluation import evaluate_round, keep
    from crl.engine.targets import last_runtime
    from crl.policies.precision import replaced
    from crl.preflight import check_evaluation
    from crl.rounds.evaluate import Choice, chosen_method
    from crl.run.directory import RunDirectory
    from crl.run.disk import require_writable

    choice = Choice(tasks=_listed(tasks), episodes=episodes, seeds=_seeds(seeds), arms=_listed(arms))
    if out is not None:
        if not possible_path(out, "--out").absolute().parent.is_dir():
            raise BadInput(f"--out {out}: there is no directory {out.parent}", expected="a directory that exists")
        if out.is_dir():
            raise BadInput(f"--out {out} is a directory", expected="the name of a file")
        require_writable(out.absolute().parent, f"--out {out}")  # before minutes of play
    directory = RunDirectory.open(find_run(run))
    check_evaluation(directory, last_runtime(directory.path), chosen_method(directory.method, choice))
    if (said := replaced(directory.method)) is not None:
        console(stderr=as_json).print(said)
    evaluated = evaluate_round(directory, round, choice=choice)
    kept = keep(directory, evaluated)
    if out is not None:
        _save(evaluated.rows, out)
    if as_json:
        say_json({"run": str(directory.path), **_data(evaluated), "kept": kept.path}, indent=1)
    else:
        _print(evaluated)
        if out is not None:
            console().print(f"{len(evaluated.rows)} rows written to {out}")
    if kept.path is None:
        console(stderr=True).print(kept.told, soft_wrap=True)
    elif not as_json:
        console().print(kept.told.replace(str(kept.path), shown(kept.path)), soft_wrap=True)


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
    if not (separator and is_index(start) and is_index(count) and int(count) > 0):
        raise BadInput(f"--seeds {short(text)}", expected="START:COUNT, such as 2000000:32")
    if int(count) > MOST_HELD_OUT:
        raise BadInput(
            f"--seeds {short(text)}: {count} seeds", expected=f"at most {MOST_HELD_OUT}: each is played with every arm"
        )
    try:
        return SeedRange(start=int(start), count=int(count))
    except ValidationError as error:
        raise BadInput(
            f"--seeds {short(text)}: {error.errors()[0]['msg']}", expected="START:COUNT, such as 2000000:32"
        ) from None


def _data(evaluated: Evaluated) -> dict[str, Any]:
    from crl.engine.evaluation import settings_of
    from crl.report.evaluation import results, with_averages

    found = with_averages(results(evaluated.rows))
    return {
        "round": evaluated.round,
        **settings_of(evaluated),
        "results": [result.figures() for result in found if result.won is not None],
        "averages": [result.figures() for result in found if result.won is None],
    }


def _print(evaluated: Evaluated) -> None:
    from rich.text import Text

    from crl.report.evaluation import results, with_averages
    from crl.report.listing import Listing

    rows = [
        (
            result.task,
            result.arm_words,
            result.won_words,
            f"{result.success.percent} [{result.success.span}]",
            f"{result.score:.2f}",
            f"{result.actions:.1f}",
            f"{result.tokens_read:.0f}",
            f"{result.tokens_written:.0f}",
            f"{result.invalid_share:.0%}",
            str(result.guided),
        )
        for result in with_averages(results(evaluated.rows))
    ]
    title = f"round {evaluated.round}, held-out seeds; actions and tokens per episode"
    cells = [[Text(cell) for cell in row] for row in rows]
    print_listing(console(), Listing(_COLUMNS, cells, right=frozenset(_COLUMNS[2:]), title=title))


def _save(rows: list[Evaluation], out: Path) -> None:
    import pyarrow.parquet as pq

    from crl.records import Evaluation, table_of
    from crl.run.files import write_atomically

    content = io.BytesIO()
    pq.write_table(table_of(Evaluation, rows), content)
    write_atomically(out, content.getvalue())
