"""`report.html` of a run: one file that loads nothing, for a browser, a phone or a printer.

It is derived and disposable: not part of the record, no stage reads it, `crl report RUN` makes it again. A long run
stays a small page: curves pool rounds, tables, texts and episodes show the newest and say what they leave out. Texts of
models are escaped by the templates, those of episodes are in JSON that a script turns into text; the page's policy
forbids every request, and any style or script but its own. The charts are in `curves.py` and `bank.py`, the
episodes in `episodes.py`, the templates beside this file in `templates/`.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crl.checks.suites import sentences
from crl.config import Method
from crl.errors import CrlError
from crl.paths import quoted
from crl.report.bank import Usefulness, usefulness
from crl.report.cells import cut, percent, seconds_text, words
from crl.report.curves import bank_charts, health_charts, play_charts, rounds_a_point, seconds_chart, success_charts
from crl.report.data_docs import INDEX
from crl.report.diff import KINDS, BankDiff
from crl.report.episodes import EPISODES, replays
from crl.report.round_tables import newest_tasks, recipe_tables
from crl.report.state import fork_lines, last_failure, newest_head, unfinished
from crl.report.success import averages, columns_of_pass, with_averages
from crl.report.summary import History, RoundSummary, random_policy
from crl.rounds.approvals import awaited
from crl.rounds.recipe import recipe_of
from crl.run.files import unwritable, write_atomically
from crl.run.journal import Journal
from crl.text.unicode import escaped

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
LISTED_ROUNDS = 100
"""Newest rounds with a row of the tables."""
SHOWN_DIFFS = 10
"""Newest rounds whose bank changes are shown with their texts."""
SHOWN_CHANGES = 40
"""Changes shown of one round."""
SHOWN_ALARMS = 30
SHOWN_VALIDATIONS = 10
"""Newest verdicts of Great Expectations."""
SHOWN_CHARACTERS = 1200
"""Of one text; longer ones end in an ellipsis."""


@dataclass(frozen=True, slots=True)
class RoundChanges:
    """What a round did to the bank, as far as the page shows it."""

    diff: BankDiff

    @property
    def left_out(self) -> int:
        """Changes beyond those that are shown."""
        return max(0, len(self.diff.changes) - SHOWN_CHANGES)

    def groups(self) -> list[tuple[str, list[Any]]]:
        """The changes that are shown, by kind."""
        told = [change for kind in KINDS for change in self.diff.of(kind)][:SHOWN_CHANGES]
        return [(kind, found) for kind in KINDS if (found := [each for each in told if each.kind == kind])]


def write_report(
    run_path: Path, out: Path | None = None, history: History | None = None, episodes: int = EPISODES
) -> Path:
    """Write the page of a run, whole or not at all, and return where it is: `out`, else `report.html` of the run.

    `history` saves reading earlier rounds again; `episodes` is how many of them can be replayed.
    Raises RunDirectoryUnusable where the file cannot be written, RecordDamaged where a file of the run cannot be read,
    DiskFull.
    """
    target = Path(out) if out is not None else Path(run_path) / REPORT
    content = render(run_path, history, episodes, folder=target.parent).encode()
    try:
        write_atomically(target, content)
    except OSError as error:
        raise unwritable(error, target, "the report") from error
    return target


def page_url(base: str, run_path: Path) -> str:
    """Address of a run's page on a server of pages whose runs directory holds the run."""
    return f"{base.rstrip('/')}/{quote(run_path.name)}/{REPORT}"


def docs_url(base: str, run_path: Path) -> str | None:
    """Address of a run's Data Docs on such a server; None where there are none."""
    return f"{base.rstrip('/')}/{quote(run_path.name)}/{INDEX}" if (run_path / INDEX).is_file() else None


def render(run_path: Path, history: History | None = None, episodes: int = EPISODES, folder: Path | None = None) -> str:
    """The page as HTML text, for a file in `folder` (default: the run). Raises as reading does in `write_report`."""
    history = history or History(run_path)
    summaries, rounds = history.summaries(), history.rounds()
    trained = [each for each in summaries if each.label == str(each.round)]
    listed = summaries[-LISTED_ROUNDS:]
    validations = [each.validation for each in trained if each.validation is not None]
    checked = [(number, history.checks(number)) for number in rounds[-1:]]
    played = {each.round: each.guided.episodes + each.free.episodes + each.synthetic.episodes for each in trained}
    newest = (each for each in reversed(trained) if each.with_bank.episodes or each.without_bank.episodes)
    evaluated = next(newest, None)
    diffs = [diff for diff in map(history.diff, reversed(rounds[-SHOWN_DIFFS:])) if diff is not None]
    tables = dict.fromkeys(suite.table for _, found in checked for each in found for suite in each.suites)
    malformed = Counter[str]()
    for each in trained:
        malformed.update(each.malformed_by)
    site = Path(run_path) / INDEX
    page = (
        environment()
        .get_template("report.html")
        .render(
            style=Inline("chart.css", "style.css"),
            script=Inline("episodes.js"),
            replays=replays(run_path, played, episodes),
            useful=_usefulness(history),
            malformed_by=malformed.most_common(),
            run=_run_facts(history, trained),
            played_in=next((each for each in reversed(trained) if played[each.round]), None),
            bank=next((each.bank for each in reversed(trained) if each.bank is not None), None),
            # A round on its way may have published its bank and updated nothing yet.
            updates={role: count for each in trained for role, count in each.updates.items()},
            evaluated=evaluated,
            held_out=[] if evaluated is None else with_averages(evaluated.evaluations),
            passes=columns_of_pass([result for each in listed for result in each.evaluations]),
            evaluations=[(each.label, averages(each.evaluations)) for each in reversed(listed) if each.evaluations],
            random=random_policy(trained),
            success_charts=success_charts(trained),
            tasks=newest_tasks(trained),
            recipe_tables=recipe_tables(list(reversed(listed))),
            play_charts=play_charts(trained),
            bank_charts=bank_charts(trained),
            health_charts=health_charts(trained),
            seconds_chart=seconds_chart([each for each in trained if each.round > 0]),
            pooled=rounds_a_point(trained),
            listed=list(reversed(listed)),
            unlisted=len(summaries) - len(listed),
            # Stages with a column in the table of seconds; those of the preparation are named in its row.
            stages=list(dict.fromkeys(stage for each in listed if each.round > 0 for stage in each.seconds)),
            changes=[RoundChanges(diff) for diff in diffs if diff.changes or diff.round > 0],
            earlier_changes=max(0, len(rounds) - SHOWN_DIFFS),
            alarms=[(each.round, alarm) for each in reversed(trained) for alarm in each.alarms][:SHOWN_ALARMS],
            alarm_count=sum(len(each.alarms) for each in trained),
            checked=checked,
            validations=validations[-SHOWN_VALIDATIONS:][::-1],
            data_docs=quote(os.path.relpath(site, folder or run_path)) if site.is_file() else None,
            rules={table: sentences(table) for table in tables},
        )
    )  # fmt: skip
    return escaped(page)


def _usefulness(history: History) -> Usefulness | None:
    try:
        return usefulness(history.run)
    except CrlError:
        return None


class Inline:
    """A style sheet or a script of our own inside the page. The page's policy allows it by its digest, and no other."""

    def __init__(self, *files: str) -> None:
        loader = environment().loader
        assert loader is not None
        self.text = "".join(loader.get_source(environment(), file)[0] for file in files)
        self.allowed = f"'sha256-{base64.b64encode(hashlib.sha256(self.text.encode()).digest()).decode()}'"


def _run_facts(history: History, trained: Sequence[RoundSummary]) -> dict[str, Any]:
    """What is at the head of the page. A run whose experiment file is damaged still has a page."""
    path = history.run_path.absolute()
    events = Journal(path).read()
    failure = last_failure(events)
    facts: dict[str, Any] = {
        "name": path.name,
        "path": str(path),
        "head": newest_head(path),
        "rounds": trained[-1].round if trained else None,
        "seconds": sum(sum(each.seconds.values()) for each in trained),
        "failure": failure and {
            "location": f"round {failure.get('round')}, stage {failure.get('stage')}",
            "found": (failure.get("error") or {}).get("found", "unknown"),
            "next_step": (failure.get("error") or {}).get("next_step"),
        },
        "committed": next((e.get("time") for e in reversed(events) if e.get("event") == "stage_committed"), None),
    }  # fmt: skip
    try:
        run, method = history.run, history.run.method
        newest = trained[-1].round if trained else 0
        facts |= {"name": run.experiment_name, "missing": unfinished(run, events, since=newest)}
        facts["method"] = run.method_digest
        pending = awaited(path) if any(stage.waits_for for stage in recipe_of(method).stages) else None
        facts["awaits"] = None if pending is None else (pending.in_words(), f"{pending.command()} --show")
        facts["forks"] = fork_lines(path)
        facts["settings"] = {
            "recipe": method.recipe.kind,
            **{name: _model(method, name) for name in method.uses()},
            "families": ", ".join(family.name for family in method.families),
            "seed": method.seed,
        }
    except CrlError as error:
        facts |= {
            "missing": None,
            "method": None,
            "awaits": None,
            "settings": {},
            "forks": [],
            "damage": error.found,
        }
    return facts


@cache
def environment() -> Environment:
    """The templates beside this file: they escape every text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("crl.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "quoted": quoted,
        "words": words, "duration": seconds_text, "percent": percent, "escaped": escaped,
        "cut": lambda text: cut(text or "", SHOWN_CHARACTERS),
        "signed": lambda outcome: f"{outcome:+.2f}".replace("-", "−"),
    }  # fmt: skip
    return made


def _model(method: Method, name: str) -> str:
    role = method.role(name)
    shared = f", weights of {role.weights}" if role.weights else f" (base of {role.base})" if role.base else ""
    return f"{role.model}{', LoRA' if role.lora else ''}{shared}"
