"""`crl compare`: every arm and seed of a study as a run of its own, then the table."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.progress import MovingLines, interruptible
from crl.cli.shared import command, say, shown
from crl.errors import BadInput, CrlError
from crl.paths import possible_path, short
from crl.report.cells import seconds_text

if TYPE_CHECKING:
    from crl.lab.study.config import Study
    from crl.lab.study.plan import PlannedRun

_PLAIN_EVERY_SECONDS = 60.0


def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study file, such as conf/study/realms.yaml.")],
    runs: Annotated[
        Path | None, typer.Option(help="Directory that holds its runs; default $CRL_RUNS or ./runs.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Runs at a time; default: cores / method.threads.")
    ] = None,
    arms: Annotated[str | None, typer.Option(metavar="A,B", help="These arms only.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2", help="These seeds only.")] = None,
    table_only: Annotated[bool, typer.Option("--table-only", help="Only make the table of finished runs.")] = False,
) -> None:
    """Run every arm of a study with every seed, and compare. The table has means, intervals and paired differences.

    If interrupted, type it again: finished runs are skipped, the others resumed.
    """
    from crl.config.load import runs_root
    from crl.lab.study.config import load_study
    from crl.lab.study.plan import chosen, plan_runs, study_directory
    from crl.lab.study.runs import default_jobs, only_one, prepare, run_all

    loaded = load_study(study)
    root = runs_root() if runs is None else possible_path(runs, "the directory of the runs", home=True)
    planned = plan_runs(loaded, root)
    wanted = chosen(planned, _words(arms), _numbers(seeds))
    directory = study_directory(loaded, root)
    if table_only:
        _conclude(loaded, planned, directory, {})
        return
    options = {"--runs": runs, "--jobs": jobs, "--arms": arms, "--seeds": seeds}
    with interruptible(lambda: command("crl", "compare", study, options=options)):
        open_runs = [run for run in wanted if not run.is_finished()]
        say(f"study {loaded.name}: {len(wanted)} runs, {len(wanted) - len(open_runs)} of them finished")
        if open_runs:  # before the directory of the study is made
            prepare(open_runs, loaded.warm_starts, lambda line: say(f"  {line}"))
        with only_one(directory):
            failed: dict[str, CrlError] = {}
            if open_runs:
                at_a_time = min(jobs or default_jobs(open_runs), len(open_runs))
                say(f"{len(open_runs)} to go, {at_a_time} at a time")
                with StudyProgress(open_runs) as progress:
                    failed = run_all(open_runs, at_a_time, progress)
            _conclude(loaded, planned, directory, failed)


def _conclude(study: Study, planned: Sequence[PlannedRun], directory: Path, failed: dict[str, CrlError]) -> None:
    from crl.lab.study.files import write_study
    from crl.lab.study.runs import incomplete
    from crl.lab.study.table import study_markdown

    result, written = write_study(study, planned, directory)
    say(f"\n{study_markdown(result)}")
    say(f"written: {', '.join(shown(path) for path in written)}")
    if failed:
        raise incomplete(failed, directory)


class StudyProgress(MovingLines):
    """Shows how far every run is while its context is open. Called from any thread."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        super().__init__()
        self._total, self._done = len(runs), 0
        self._status: dict[str, str] = {}
        self._begun = self._told = time.monotonic()
        self._talking = threading.Lock()
        self._lines: dict[str, Any] = {}

    def __call__(self, run: PlannedRun, event: dict[str, Any]) -> None:
        """Show one event of a run."""
        with self._talking:
            getattr(self, f"_on_{event['event']}", lambda run, event: None)(run, event)

    def _on_started(self, run: PlannedRun, event: dict[str, Any]) -> None:
        done = run.rounds_done()
        self.say(f"{run.name}: {'begins' if done < 0 else f'continues after round {done}'}")
        done = max(done, 0)
        self._status[run.name] = f"round {done} of {run.rounds}"
        if self._bar is not None:
            self._lines[run.name] = self._bar.add_task(run.name, total=run.rounds, completed=done, metrics="")

    def _on_round(self, run: PlannedRun, event: dict[str, Any]) -> None:
        rates = ", ".join(f"{arm.replace('_', ' ')} {rate}" for arm, rate in sorted(event["success"].items()))
        text = f"round {event['round']} of {run.rounds}{f', {rates}' if rates else ''}"
        self._status[run.name] = text
        if self._bar is not None:
            self._bar.update(self._lines[run.name], completed=event["round"], metrics=text)
        elif time.monotonic() - self._told > _PLAIN_EVERY_SECONDS:
            self._told = time.monotonic()
            for name, status in self._status.items():
                self.say(f"  {name}: {status}")

    def _on_retry(self, run: PlannedRun, event: dict[str, Any]) -> None:
        self.say(f"{run.name}: {event['stage'].replace('_', ' ')} is tried again: {event['reason']}")

    def _on_note(self, run: PlannedRun, event: dict[str, Any]) -> None:
        self.say(f"{run.name}: {event['text']}")

    _on_waits = _on_note

    def _on_finished(self, run: PlannedRun, event: dict[str, Any]) -> None:
        self._close(run, f"finished: {self._status.get(run.name, '')}")

    def _on_failed(self, run: PlannedRun, event: dict[str, Any]) -> None:
        self._close(run, f"failed: {event['error']['found']}")

    def _close(self, run: PlannedRun, said: str) -> None:
        self._done += 1
        self._status.pop(run.name, None)
        if self._bar is not None and run.name in self._lines:
            self._bar.remove_task(self._lines.pop(run.name))
        spent = time.monotonic() - self._begun
        left = spent / self._done * (self._total - self._done)
        rest = f"; {self._done} of {self._total}" + (f", about {seconds_text(left)} left" if left else "")
        self.say(f"{run.name}: {said}{rest}")


def _words(listed: str | None) -> list[str] | None:
    return None if listed is None else [word.strip() for word in listed.split(",") if word.strip()]


def _numbers(listed: str | None) -> list[int] | None:
    words = _words(listed)
    try:
        return None if words is None else [int(word) for word in words]
    except ValueError:
        raise BadInput(f"--seeds {short(listed)} are not numbers", expected="such as --seeds 101,102") from None
