"""`crl evaluate`: held-out seeds with the weights of a round, with and without its bank; the run is not changed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.shared import RunArgument, console
from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.config import SeedRange
    from crl.records import Evaluation


def evaluate(
    run: RunArgument,
    round: Annotated[int | None, typer.Option(min=0, help="Round to evaluate; default the latest.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="START:COUNT", help="Other held-out seeds than those of the experiment.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows to this Parquet file.")] = None,
) -> None:
    """Evaluate a round of a run, with and without its bank. Reads the record and writes nothing into it."""
    from crl.engine.evaluation import evaluate_round
    from crl.engine.targets import last_runtime
    from crl.preflight import check_evaluation
    from crl.run.directory import RunDirectory
    from crl.run.disk import require_writable

    chosen_seeds = _seeds(seeds)
    if out is not None:
        if not possible_path(out, "--out").absolute().parent.is_dir():
            raise BadInput(f"--out {out}: there is no directory {out.parent}", expected="a directory that exists")
        if out.is_dir():
            raise BadInput(f"--out {out} is a directory", expected="the name of a file")
        require_writable(out.absolute().parent, f"--out {out}")  # before minutes of play
    directory = RunDirectory.open(find_run(run))
    check_evaluation(directory, last_runtime(directory.path))
    number, rows = evaluate_round(directory, round, seeds=chosen_seeds)
    _print(rows, number)
    if out is not None:
        _save(rows, out)


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


def _print(rows: list[Evaluation], number: int) -> None:
    from rich.table import Table

    from crl.report.evaluation import results

    table = Table(title=f"round {number}, held-out seeds", title_justify="left")
    for name in ("family", "arm", "won", "success [95 %]", "actions per game", "invalid actions", "guided"):
        table.add_column(name, justify="left" if name in ("family", "arm") else "right")
    for result in results(rows):
        table.add_row(
            result.family,
            result.arm,
            str(result.won),
            f"{result.won.percent} [{result.won.span}]",
            f"{result.actions_per_game:.1f}",
            f"{result.invalid_share:.0%}",
            str(result.guided),
        )
    console().print(table)


def _save(rows: list[Evaluation], out: Path) -> None:
    import pyarrow.parquet as pq

    from crl.records import Evaluation, table_of
    from crl.run.files import write_atomically

    content = io.BytesIO()
    pq.write_table(table_of(Evaluation, rows), content)
    write_atomically(out, content.getvalue())
    console().print(f"{len(rows)} rows written to {out}")
