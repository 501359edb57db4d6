"""The command line `crl`: what the commands are called; each lives in `crl/cli/`.

Everything heavy is imported inside the command that needs it, so that `crl --help` answers at once. Our own errors are
printed as plain text, their class decides the exit code: 2 bad input, 3 another attempt owns the run, 4 a damaged
record, 5 a failed data check, 6 a person has to approve first, 1 the rest. 130 means interrupted.
Anything unexpected keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from crl.cli import approve, bank, checks, compare, doctor, evaluate, mend, report, sql, status, train, warm_start
from crl.errors import CrlError

app = typer.Typer(
    name="crl",
    help="Complementary RL: an actor and an experience extractor that co-evolve, as an auditable pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("warm-start")(warm_start.warm_start)
app.command("resume")(train.resume)
app.command("compare")(compare.compare)
app.command("approve")(approve.approve)
app.command("evaluate")(evaluate.evaluate)
app.command("status")(status.status)
app.command("verify")(status.verify)
app.command("mend")(mend.mend)
app.command("redo")(status.redo)
app.command("sql")(sql.sql)
app.command("catalog")(sql.catalog)
app.command("report")(report.report)
app.add_typer(bank.app, name="bank")
app.add_typer(checks.app, name="checks")
app.command("doctor")(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="crl")
    except CrlError as error:
        print(f"crl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
