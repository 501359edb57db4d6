"""The command line `crl`: what the commands are called; each lives in `crl/cli/`.

Everything heavy is imported inside the command that needs it, so that `crl --help` answers at once. Our own errors are
printed as plain text, their class decides the exit code: 2 bad input, 3 another attempt owns the run, 4 a damaged
record, 5 a failed data check, 6 a person has to approve first, 1 the rest. 130 means interrupted.
Whatever a disk refuses, in any command, becomes one of them here; anything unexpected keeps its traceback.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.main import get_command

from crl.cli import (
    approve,
    bank,
    chat,
    checks,
    compare,
    doctor,
    env,
    evaluate,
    export,
    fork,
    init,
    listing,
    serve,
    sql,
    stage,
    status,
    train,
)
from crl.cli.shared import say
from crl.errors import BadInput, CrlError
from crl.paths import short
from crl.run.guardian import past_proxies

app = typer.Typer(
    name="crl",
    help="Complementary RL: an actor and an experience extractor that co-evolve, as an auditable pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"crl {metadata.version('complementary-rl')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("init")(init.init)
app.command("list")(listing.list_runs)
app.command("train")(train.train)
app.command("ui")(train.ui)
app.command("warm-start")(train.warm_start)
app.command("resume")(train.resume)
app.command("fork")(fork.fork)
app.command("export")(export.export)
app.command("compare")(compare.compare)
app.command("approve")(approve.approve)
app.command("evaluate")(evaluate.evaluate)
app.command("table")(evaluate.table)
app.command("serve")(serve.serve)
app.command("status")(status.status)
app.command("verify")(status.verify)
app.command("mend")(status.mend)
app.command("redo")(status.redo)
app.command("stage")(stage.stage)
app.command("sql")(sql.sql)
app.command("catalog")(sql.catalog)
app.command("report")(sql.report)
app.command("chat")(chat.chat)
app.add_typer(bank.app, name="bank")
app.add_typer(checks.app, name="checks")
app.add_typer(env.app, name="env")
app.command("doctor")(doctor.doctor)


_LONGEST_LINE = 1000
"""Characters of a line of an error: a word that was typed may be longer than the screen."""


def _say_error(text: str) -> None:
    lines = (line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in text.split("\n"))
    say("\n".join(lines), stderr=True)


def _check_utf8(words: Sequence[str]) -> None:
    """Raise BadInput for a word that is not UTF-8: names and texts are kept in the record and in queries as UTF-8."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"the word {short(word)} is not UTF-8", expected="words in UTF-8") from None


def _disk_error(error: Exception) -> CrlError | None:
    """Our own error for what a disk refused, wherever the command wrote; None for everything else."""
    from crl.run.files import disk_error

    try:
        sys.stdout.flush()
    except OSError:  # the disk takes no output: Python shall not try once more at the very end
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return disk_error(error)


@cache
def _command() -> Callable[..., Any]:
    """All commands, put together once: tests, notebooks and servers call :func:`main` again and again."""
    return get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    past_proxies()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this: nobody listens
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 has no →
        _check_utf8(words)
        code = _command()(args=words, prog_name="crl", standalone_mode=False)
        with suppress(BrokenPipeError):  # whoever read has seen enough
            sys.stdout.flush()
    except typer.TyperException as error:  # an unknown command or option: as typer would print it, but escaped
        text = io.StringIO()
        cast(Any, error).show(file=text)
        _say_error(text.getvalue().rstrip("\n"))
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        say("Aborted!", stderr=True)
        raise SystemExit(1) from None
    except Exception as error:
        if stage.debugged():
            raise
        known = error if isinstance(error, CrlError) else _disk_error(error)
        if known is None:  # a fault of ours: Python would print it, with whatever it quotes, as it is
            say(traceback.format_exc().rstrip("\n"), stderr=True)
            raise SystemExit(1) from None
        _say_error(f"crl: {known}")
        raise SystemExit(known.exit_code) from None
    raise SystemExit(code or 0)
