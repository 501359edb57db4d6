"""`crl train` and `crl resume`: run rounds and show them live; `crl ui`: the same from Prefect's UI; `crl warm-start`:
models for a study."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.progress import LiveProgress, interruptible
from crl.cli.shared import (
    RunArgument,
    RunsOption,
    an_entry,
    command,
    ending,
    load,
    print_rounds,
    say,
    say_pending,
    shown,
)
from crl.errors import ApprovalPending, BadInput
from crl.paths import quoted
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.config import Experiment, Method, Runtime
    from crl.engine.driver import Driver
    from crl.run.directory import RunDirectory

_ROUNDS = 3


def train(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT", help="A YAML file, such as conf/quickstart.yaml.")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0, max=1_000_000, help=f"More rounds to run; 0 prepares and trains nothing. \\[default: {_ROUNDS}]"
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Run until this round is complete, however often it is typed."),
    ] = None,
    runs: RunsOption = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key: --set method.seed=2")
    ] = None,
    prefect: Annotated[
        bool, typer.Option(help="Run as a Prefect flow, shown in its UI; off runs the same stages.")
    ] = True,
) -> None:
    """Run rounds of an experiment; run it again for more.

    An interrupted run is resumed first: complete stages are never run twice. A job that may be killed and started
    again, on a cluster for instance, says --until: it ends with the same rounds however often it began.
    """
    from crl.config.load import runs_root
    from crl.policies.sources import takes_preparing
    from crl.preflight import check_ready
    from crl.run.directory import RunDirectory, stage_seconds

    loaded = load(experiment, set or [], runs)
    path = runs_root(loaded) / loaded.name
    rounds, asked = _rounds(rounds, until, path)
    if until is not None and not rounds:
        say(f"nothing to do: {shown(path)} has its rounds until {until}")
        return
    if any(takes_preparing(role.model) for role in map(loaded.method.role, loaded.method.owners())):
        say("preparing the language model (once; about 15 seconds)")
    # Refused here what can be refused: before Prefect starts, which takes many seconds.
    runtime = loaded.runtime if prefect else loaded.runtime.without_prefect()
    check_ready(loaded.model_copy(update={"runtime": runtime}), path, rounds, say=say)
    directory = RunDirectory.create_or_open(loaded, runs_root(loaded))
    _say_precision(loaded.method)
    say(f"experiment {loaded.name}: {rounds} round{'' if rounds == 1 else 's'} into {shown(path)}")
    options = {"--runs": runs, "--no-prefect": not prefect, "--set": set}
    again = command("crl", "train", experiment, options={**asked, **options})
    with interruptible_run(path, again), LiveProgress(taken=stage_seconds(path)) as live:
        if prefect:
            _run_flow(loaded, rounds, live)
        else:
            with driver_here(directory, loaded.runtime, live) as driver:
                driver.run_rounds(driver.set_target(rounds)[1])
    more = again if until is None else command("crl", "train", experiment, options=options)
    _closing_words(path, live, more)


def resume(
    run: RunArgument,
    rounds: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="More rounds after what was left; 0 only finishes that.")
    ] = 0,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Engines side by side from now on, where a Dask run has more than fit here."),
    ] = None,
) -> None:
    """Finish what an interrupted run set out to do. Without a Prefect server; complete stages do not run again."""
    from crl.engine.targets import last_runtime
    from crl.preflight import check_run
    from crl.run.directory import RunDirectory, stage_seconds

    path = find_run(run)
    directory, runtime = RunDirectory.open(path), last_runtime(path)
    if shards is not None:
        runtime = runtime.model_copy(update={"shards": shards})
    check_run(directory, runtime.without_prefect(), say=say)
    _say_precision(directory.method)
    options = {"rounds": rounds, "shards": shards}
    again = f"crl resume {shown(path)}" + "".join(f" --{name} {value}" for name, value in options.items() if value)
    with (
        interruptible_run(path, again),
        LiveProgress(taken=stage_seconds(path)) as live,
        driver_here(directory, runtime, live) as driver,
    ):
        first, last = driver.unfinished(more=rounds)
        if last < first == 0:
            raise BadInput(
                f"nobody has said how many rounds {shown(path)} has: it was interrupted before the first one",
                next_step=f"say how many: crl resume {shown(path)} --rounds 3",
            )
        driver.run_rounds(last)
    if not live.ran and driver.stopped is None:
        say(f"nothing to do: every requested round of {shown(path)} is done")
    _closing_words(path, live, f"crl resume {shown(path)} --rounds 3")


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Prefect's server and UI.")] = 4200,
    pages_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the report pages; default the one after it.")
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Serve Prefect's UI with a worker, schedules, report pages. Ctrl-C stops all.

    Runs work in this folder. All of it listens on this machine only; CRL_UI_AUTH=user:password asks for a password.
    """
    importlib.import_module("flows.ui").serve(port, pages_port, with_parent=with_parent)


def warm_start(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file, such as conf/warm/realms.yaml.")],
    again: Annotated[
        bool, typer.Option("--again", help="Replace one of the same name made from other settings.")
    ] = False,
) -> None:
    """Make a warm start from generated demonstrations. Typed again, it finds what is there.

    Experiments name its models warm:NAME/actor and warm:NAME/extractor. The miniatures of the laboratory take 10 to 20
    minutes on two cores.
    """
    from crl.engine.services import prepare_environment
    from crl.lab.warm.config import load_warm_start
    from crl.lab.warm.make import RECORD, make

    settings = load_warm_start(file)
    # Before torch is imported: it reads them once.
    os.environ.update(prepare_environment(settings.threads))
    place = make(file, say=say, again=again)
    say(f"warm start {settings.name}: {place} (its record: {RECORD} and record/)")
    say(f"models: warm:{settings.name}/actor and warm:{settings.name}/extractor")


def _rounds(rounds: int | None, until: int | None, path: Path) -> tuple[int, dict[str, int | None]]:
    """How many more rounds to run, and the options that asked for them. Raises BadInput where there are two."""
    if until is None:
        rounds = _ROUNDS if rounds is None else rounds
        return rounds, {"--rounds": rounds if rounds != _ROUNDS else None}
    if rounds is not None:
        raise BadInput(
            f"--rounds {rounds} and --until {until}", expected="one of them", next_step="leave the other one out"
        )
    from crl.engine.targets import next_round
    from crl.run.directory import RunDirectory
    from crl.run.experiment_file import EXPERIMENT

    first = next_round(RunDirectory.open(path)) if (path / EXPERIMENT).exists() else 0
    return max(0, until - max(first - 1, 0)), {"--until": until}


def _say_precision(method: Method) -> None:
    from crl.policies.machine import replaced

    said = replaced(method)
    if said is not None:
        say(said)


@contextmanager
def driver_here(directory: RunDirectory, runtime: Runtime, live: LiveProgress) -> Iterator[Driver]:
    """A driver in this process: what the flow does, less Prefect."""
    from crl.engine.driver import Driver
    from crl.trackers.subscriber import Trackers
    from crl.validation.subscriber import Validations

    # Around the driver: the lease is given back before they are waited for.
    with (
        Validations(directory, runtime, say=live.say) as validations,
        Trackers(directory, runtime, warn=live.say) as trackers,
        Driver(directory, runtime) as driver,
    ):
        for subscriber in (live, trackers, validations):
            driver.subscribe(subscriber)
        yield driver


def _run_flow(experiment: Experiment, rounds: int, live: LiveProgress) -> None:
    from crl.engine.driver import watch
    from crl.run.guardian import guard

    # Killed, this process could not stop the temporary server that Prefect starts.
    guard()
    # Prefect would print its own lines between ours; its UI and its log keep them all.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    say("starting Prefect (a few seconds; up to half a minute the first time)")
    stop = watch(live)
    try:
        # Here, and in `ui`, the library reaches up to the flows: the command line is their front door. By name, so that
        # neither they nor Prefect are imported, or even needed, by anything else.
        importlib.import_module("flows.command").train(experiment, rounds)
    finally:
        stop()


@contextmanager
def interruptible_run(path: Path, again: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the engines and give the lease back; a message says where a person has to approve.

    `again` is the command to type where this one had not set out yet: of its rounds `crl resume` would know nothing.
    """
    from crl.engine.targets import targets
    from crl.run.journal import Journal

    before = len(targets(Journal(path)))
    with interruptible(lambda: f"crl resume {shown(path)}" if len(targets(Journal(path))) > before else again):
        try:
            yield
        except ApprovalPending as error:
            say_pending(error, path)
            raise typer.Exit(error.exit_code) from None


def _closing_words(path: Path, live: LiveProgress, again: str) -> None:
    from crl.report.page import REPORT, write_report
    from crl.report.summary import summarize
    from crl.report.views import write_catalog

    summaries = summarize(path)
    print_rounds(summaries)
    write_catalog(path)
    if live.ran or not (path / REPORT).exists():
        write_report(path)
    where = shown(path)
    for line in ending(where, live.ran, summaries):
        say(line)
    say("next:")
    entry = an_entry(path)
    steps = [(again, "further rounds")]
    if entry is not None:
        steps.append((f"crl bank show {where}", "what was learned"))
        steps.append((f"crl bank why {where} {quoted(entry)}", "where one experience comes from and what became of it"))
    question = "SELECT round, condition, won, games, low, high FROM success_by_condition"
    steps.append(
        (f'crl sql {where} "{question}"', "success by round and condition; docs/queries.md has more questions")
    )
    steps.append((f"crl verify {where}", "check every file against its manifest"))
    for step, purpose in steps:
        say(f"  # {purpose}\n  {step}")
