"""Artifacts in the Prefect UI: after each round its tables, curve, bank diff, data checks and the report page.

Each experiment has its own key for each kind, so that the UI keeps one history per kind and experiments do not mix.
Nothing here is part of the record, and nothing here may stop a run: what cannot be made or published is a warning in
the log. All of it is read from the record after the round is complete; earlier rounds are not read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.logging import get_run_logger
from prefect.utilities.context import get_task_and_flow_run_ids

from crl.errors import DataCheckFailed
from crl.report import markdown
from crl.report.page import REPORT, docs_url, page_url, write_report
from crl.report.round_tables import results_line
from crl.report.state import newest_head, stopped
from crl.report.summary import History
from crl.run.head import head_after
from crl.run.journal import Journal
from crl.run.validations import Verdict

PAGES = "CRL_PAGES"
"""Environment: the address of the server of report pages; `make ui` sets it. Without it the artifact names the file."""

ROUNDS, CURVE, BANK_DIFF, DATA_CHECKS, REPORT_LINK = (
    "rounds", "learning-curve", "bank-diff", "data-checks", "report",
)  # fmt: skip
KINDS: tuple[str, ...] = (ROUNDS, CURVE, BANK_DIFF, DATA_CHECKS, REPORT_LINK)
"""What an experiment has an artifact of with every round."""
VALIDATION = "validation"
"""And later, once Great Expectations has validated the round."""

PAUSE = 20
"""A page is written again once so many times as long as it took have passed: rounds of seconds would wait for it."""


@dataclass
class _Shown:
    """A run as this process shows it: one, because a flow process asks again after each of its rounds."""

    history: History
    page_due: float = 0.0
    """When its page is due again, by the clock of this process."""
    behind: bool = False
    """Whether a round, or the validation of one, is not on its page yet."""


_runs: dict[Path, _Shown] = {}
_writing = Lock()


def artifact_key(experiment: str, kind: str) -> str:
    """The key of an experiment's artifacts of a kind. Prefect allows lowercase letters, digits and dashes.

    An underscore becomes a dash, and a short digest keeps `a_b` apart from `a-b`.
    """
    name = experiment
    if "_" in experiment:
        name = f"{experiment.replace('_', '-')}-{hashlib.sha256(experiment.encode()).hexdigest()[:8]}"
    return f"{name}-{kind}"


def publish_round(run_path: str | Path, round_number: int) -> None:
    """Publish every artifact of a complete round, and write the report page where one is due (:data:`PAUSE`)."""
    path = Path(run_path)
    run = _shown(path)
    history, name = run.history, path.resolve().name
    run.behind = True
    if monotonic() >= run.page_due:
        _write_page(run)

    def bank_diff() -> str | None:
        diff = history.diff(round_number)
        return None if diff is None else markdown.diff_markdown(diff, name)

    publish(
        name,
        f"Round {round_number}",
        {
            ROUNDS: lambda: markdown.rounds_markdown(name, history.summaries(), head_after(path, round_number)),
            CURVE: lambda: markdown.curve_markdown(name, history.summaries()),
            BANK_DIFF: bank_diff,
            DATA_CHECKS: lambda: markdown.checks_markdown(
                round_number, history.checks(round_number), _served(docs_url, path)
            ),
            REPORT_LINK: lambda: _report(name, path),
        },
    )


def publish_results(run_path: str | Path) -> str:
    """Publish what concerns the run as a whole under the present flow run; returns its results in one line, with the
    head and the address of the report page, for the state of the run and for notifications."""
    path = Path(run_path)
    history, name = _shown(path).history, path.resolve().name
    summaries, head = history.summaries(), newest_head(path)
    publish(
        name,
        results_line(summaries).capitalize(),
        {
            ROUNDS: lambda: markdown.rounds_markdown(name, summaries, head and head[1], _stopped(path)),
            CURVE: lambda: markdown.curve_markdown(name, summaries),
            REPORT_LINK: lambda: _report(name, path),
        },
    )
    return ". ".join(filter(None, (results_line(summaries), f"Report: {report_address(path)}", head_text(path))))


def head_text(path: Path) -> str:
    """The head of what is complete, to be kept elsewhere for `crl verify --head`; nothing before the first round."""
    head = newest_head(path) if path.is_dir() else None
    return "" if head is None else f"Head after round {head[0]}: {head[1]}"


def results(run_path: Path) -> str:
    """Where a run stands, in one line."""
    return results_line(_shown(run_path).history.summaries())


def report_address(path: Path) -> str:
    """Where its report page is: an address where something serves it, else the file."""
    return _served(page_url, path) or str(path.absolute() / REPORT)


def publish_validation(run_path: str | Path, verdict: Verdict) -> None:
    """Publish what Great Expectations found in a round; the report page lacks it until it is written again."""
    path = Path(run_path)
    _shown(path).behind = True
    name = path.resolve().name
    publish(
        name,
        f"Round {verdict.round}",
        {VALIDATION: lambda: markdown.validation_markdown(name, verdict, _served(docs_url, path))},
    )


def finish_page(run_path: str | Path) -> None:
    """Write the report page of a run where it lacks a round or a validation."""
    run = _shown(Path(run_path))
    if run.behind:
        _write_page(run)


def publish_failure(run_path: str | Path, round_number: int) -> None:
    """Write the report page of a run that stopped in a round: it says where and why."""
    path = Path(run_path)
    _write_page(_shown(path))
    publish(path.resolve().name, f"Stopped in round {round_number}",
             {REPORT_LINK: lambda: _report(path.resolve().name, path)})  # fmt: skip


def publish_breach(run_path: str | Path, round_number: int, stage: str, error: DataCheckFailed) -> None:
    """Which table broke which rule, with the first offending rows."""
    publish(
        Path(run_path).resolve().name,
        f"Broken in round {round_number}, {stage}",
        {DATA_CHECKS: lambda: markdown.breach_markdown(round_number, stage, error)},
    )


def _stopped(path: Path) -> str | None:
    stop = stopped(Journal(path).read())
    return None if stop is None else f"{stop.get('reason', 'stopped')}; {stop.get('next_step', '')}"


def _shown(path: Path) -> _Shown:
    return _runs.setdefault(path.resolve(), _Shown(History(path)))


def _write_page(run: _Shown) -> None:
    with _writing:  # rounds may overlap
        began = monotonic()
        run.behind = False
        try:
            write_report(run.history.run_path, history=run.history)
        except Exception as error:
            run.behind = True
            get_run_logger().warning("the report page could not be written: %s", error)
        else:
            run.page_due = monotonic() + PAUSE * (monotonic() - began)


def _report(name: str, path: Path) -> str:
    return markdown.report_markdown(name, path.absolute() / REPORT, _served(page_url, path))


def _served(address: Callable[[str, Path], str | None], path: Path) -> str | None:
    """An address on the server of the pages; None where there is none."""
    base = os.environ.get(PAGES)
    return address(base, path.resolve()) if base else None


def publish(name: str, description: str, contents: Mapping[str, Callable[[], str | None]]) -> None:
    """One request per artifact; a kind whose content is None is left out. A server that fails is not asked again."""
    made: dict[str, str] = {}
    for kind, content in contents.items():
        try:
            text = content()
        except Exception as error:
            get_run_logger().warning("the artifact %s could not be made: %s", artifact_key(name, kind), error)
            continue
        if text is not None:
            made[kind] = text
    try:
        task_run, flow_run = get_task_and_flow_run_ids()
        client = get_client(sync_client=True)
        for kind, text in made.items():
            client.create_artifact(
                ArtifactCreate(
                    key=artifact_key(name, kind),
                    type="markdown",
                    description=description,
                    data=text,
                    task_run_id=task_run,
                    flow_run_id=flow_run,
                )
            )
    except Exception as error:
        get_run_logger().warning("artifacts could not be published: %s", error)
