"""The results of a round, as Markdown and plain rows: for a scheduler's window, a chat, an issue.

Texts of models are in code spans whose fence is longer than any in the text, so that whatever they hold (tags, pipes,
links, backticks) stays text and nothing is loaded or followed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crl.checks.suites import sentences
from crl.errors import CrlError
from crl.paths import quoted
from crl.report.cells import NOTHING, words
from crl.report.curves import success_charts
from crl.report.data_docs import INDEX, StageChecks
from crl.report.diff import KINDS, BankDiff, Change
from crl.report.round_tables import broken_words, newest_tasks, recipe_tables, success_rows, task_rows, training_rows
from crl.report.summary import RoundSummary, random_policy
from crl.run.validations import Verdict
from crl.text.unicode import escaped

SHOWN_CHANGES = 60
"""Changes of the bank that are listed; the rest is counted."""
SHOWN_CHARACTERS = 600
SHOWN_ROUNDS = 200
"""Newest rounds in the table."""


def code(text: str) -> str:
    """A code span that shows the text whatever it holds; line breaks show as ⏎."""
    line = escaped(" ⏎ ".join(text.splitlines())) or " "
    if len(line) > SHOWN_CHARACTERS:
        line = f"{line[:SHOWN_CHARACTERS]} … ({len(text)} characters)"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    # One space on each side is taken away again by the reader; it keeps backticks of the text off the fence.
    return f"{fence} {line} {fence}" if line[0] in "` " or line[-1] in "` " else f"{fence}{line}{fence}"


def as_text(text: str) -> str:
    """Our own words with everything that could be markup marked as text."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!])", r"\\\1", escaped(" ".join(text.split())))


def rounds_markdown(
    name: str, summaries: Sequence[RoundSummary], head: str | None = None, stopped: str | None = None
) -> str:
    """The round table in two halves, newest first, with the alarms of the newest round and its seconds by stage.

    `head`: of the run after the newest round, to be kept. `stopped`: why no further round began.
    """
    shown = list(reversed(summaries[-SHOWN_ROUNDS:]))
    newest = next((each for each in reversed(summaries) if each.seconds), None)
    lines = [f"# Rounds of {as_text(name)}", ""]
    if stopped is not None:
        lines += [f"**{as_text(stopped)}**", ""]
    if newest is not None and newest.alarms:
        lines += [
            f"**Alarms of round {newest.label}**",
            "",
            *(f"- {as_text(alarm)}" for alarm in newest.alarms),
            "",
        ]
    if newest is not None and newest.broken:
        lines += [f"**Games of round {newest.label} that broke**", ""]
        for row in newest.broken:
            # The traceback is a block by its indent: whatever a text holds, it cannot end it.
            details = [f"      {escaped(line)}" for line in (row["details"] or "").splitlines()]
            lines += [f"- {as_text(broken_words(row))}", "", *details, ""]
    # Two narrow tables: beside the column of details that the UI shows, a wide one would be cut off.
    lines += ["## Success", "", "Won/played; brackets are 95 % intervals in percent.", ""]
    lines += _table(success_rows(shown, random_policy(summaries)))
    if (tasks := newest_tasks(summaries)) is not None:
        rows = [row | {"task": as_text(row["task"])} for row in task_rows(tasks)]
        lines += [f"## Tasks, {tasks.rounds}", "", "The average gives every task equal weight.", "", *_table(rows)]
    for title, rows in recipe_tables(shown).items():
        lines += [f"## {title.capitalize()}", "", *_table(rows)]
    trained = [each for each in shown if each.label == str(each.round)]
    taken = [f"{sum(each.seconds.values()):.1f}" if each.seconds else NOTHING for each in trained]
    training = [
        row | {"seconds": seconds, "alarms": str(len(each.alarms) or NOTHING)}
        for row, seconds, each in zip(training_rows(trained), taken, trained, strict=True)
    ]
    lines += ["## Form, bank and training", "", *_table(training)]
    if len(summaries) > len(shown):
        lines += [f"The newest {len(shown)}; all of them: {code(f'crl status {quoted(name)}')}", ""]
    if newest is not None:
        stages = [
            {"stage": as_text(words(stage)), "seconds": f"{taken:.1f}"} for stage, taken in newest.seconds.items()
        ]
        lines += [f"## Seconds of round {newest.label}", "", *_table(stages)]
    if head is not None:
        command = code(f"crl verify {quoted(name)} --head {quoted(head)}")
        lines += ["## Head", "", f"Kept elsewhere, it shows a forged record: {command}"]
    return "\n".join(lines) + "\n"


def curve_markdown(name: str, summaries: Sequence[RoundSummary]) -> str:
    """The learning curve: its pictures inside the text, and the newest metrics in words."""
    lines = [f"# Learning curve of {as_text(name)}", ""]
    for chart in success_charts(summaries):
        encoded = base64.b64encode(chart.picture().encode()).decode()
        lines.append(f"![{chart.title}](data:image/svg+xml;base64,{encoded})")
    lines.append("")
    newest = summaries[-1] if summaries else None
    if newest is not None:
        rows = [
            {"": "in training", "with experience": newest.guided.words, "without": newest.free.words},
            {"": "in the experience model", "with experience": NOTHING, "without": newest.synthetic.words},
            {"": "held out", "with experience": newest.with_bank.words, "without": newest.without_bank.words},
            {"": "held out, random policy", "with experience": NOTHING, "without": random_policy(summaries).words},
        ]
        always = ("in training", "held out")
        lines += _table([row for row in rows if row[""] in always or row["without"] != NOTHING])
        lines.append(f"Round {newest.label}. Brackets and bands are 95 % intervals of the rate (Wilson), in percent.")
    return "\n".join(lines) + "\n"


def diff_markdown(diff: BankDiff, name: str, max_changes: int = SHOWN_CHANGES) -> str:
    """What a round of the run `name` did to the bank, or would do, with texts and reasons.

    At most `max_changes` changes are listed, in the order of their kinds; the rest is counted.
    """
    title = f"Bank proposed by round {diff.round}" if diff.proposed else f"Bank after round {diff.round}"
    lines = [f"# {title}", "", diff.summary(), ""]
    left = max_changes
    for kind in KINDS:
        found = diff.of(kind)
        told = found[:left]
        left -= len(told)
        if told:
            changes = (line for change in told for line in _change(change, diff.proposed))
            lines += [f"## {kind.capitalize()}: {len(found)}", "", *changes, ""]
    hidden = max(0, len(diff.changes) - max_changes)
    if hidden:
        command = (
            f"crl approve {quoted(name)} --show" if diff.proposed else f"crl bank diff {quoted(name)} {diff.round}"
        )
        lines += [f"**{hidden} further changes are not shown**; all of them: {code(command)}", ""]
    return "\n".join(lines)


def _change(change: Change, proposed: bool) -> list[str]:
    refused = change.kind == "rejected"
    main = change.wanted if refused else change.after
    was = None if refused and change.wanted is None else change.before
    if main is None:
        main, was = change.before or "", None
    lines = [f"- {code(main)}"]
    if refused or change.reason:
        asked = f"{change.asked or 'operation'} rejected: " if refused else ""
        repeated = "" if change.repeats is None else f": {code(change.repeats)} holds the text"
        lines.append(f"  - **{as_text(asked + words(change.reason or 'no reason given'))}**{repeated}")
    if was is not None and was != main:
        lines.append(f"  - {'stays' if refused else 'was'} {code(was)}")
    lines += [f"  - from {code(parent.entry_id)} {code(parent.text)}" for parent in change.parents]
    family = f", {as_text(change.family)}" if change.family else ""
    # What a person would refuse is an operation; what is in the bank afterward is an entry.
    name = (change.operation_id if proposed else change.entry_id) or change.entry_id or "no entry"
    return [*lines, f"  - {code(name)}{family}"]


def checks_markdown(round_number: int, checks: Sequence[StageChecks], data_docs: str | None = None) -> str:
    """What the data checks of a round looked at: stages, tables, rows, rules, and whether they held.

    `data_docs`: address of the run's Data Docs, where they are written and served.
    """
    suites = [suite for each in checks for suite in each.suites]
    good = all(each.passed for each in checks)
    lines = [f"# Data checks of round {round_number}: {'passed' if good else 'broken'}", ""]
    rules, rows = sum(each.rules for each in checks), sum(each.rows for each in checks)
    lines += [f"{len(suites)} suites, {rules} rules on {rows} rows. A stage is committed only where every rule holds."]
    lines += ["", *_table([
        {
            "stage": as_text(words(each.stage)), "table": as_text(words(suite.table)), "rows": suite.rows,
            "rules": suite.rules, "result": "passed" if suite.passed else "**broken**",
        }
        for each in checks for suite in each.suites
    ])]  # fmt: skip
    tables = list(dict.fromkeys(suite.table for suite in suites))
    made = f"{code('crl checks docs RUN')} writes Great Expectations' Data Docs; the report links to them."
    lines += [made if data_docs is None else f"[Great Expectations' Data Docs]({data_docs}) of the run.", ""]
    lines += ["## The rules", ""] if tables else []
    lines += [f"- **{words(table)}**: {as_text('; '.join(sentences(table)))}" for table in tables]
    return "\n".join(lines) + "\n"


def validation_markdown(name: str, verdict: Verdict, data_docs: str | None = None) -> str:
    """What Great Expectations found in a round after it was committed: its verdict, what disagrees, every table.

    `data_docs`: address of the run's Data Docs, where they are written and served.
    """
    lines = [
        f"# Validation of round {verdict.round} of {as_text(name)}",
        "",
        f"**{as_text(verdict.summary())}**",
        "",
    ]
    lines += [f"- **alarm**: {as_text(alarm)}" for alarm in verdict.alarms] + [""]
    lines += _table([
        {
            "stage": as_text(words(each.stage)), "table": as_text(words(each.table)), "rows": each.rows,
            "rules": each.rules, "of them SQL": each.queries, "compiled pass only": each.only_compiled,
            "result": "passed" if each.passed else "**failed**",
        }
        for each in verdict.tables
    ])  # fmt: skip
    lines += [f"- {code(sentence)}" for each in verdict.tables for sentence in each.broken]
    if data_docs is not None:
        lines += ["", f"[Great Expectations' Data Docs]({data_docs}) of the run."]
    elif verdict.tables:
        lines += ["", f"The Data Docs: {code(f'{name}/{INDEX}')}"]
    if verdict.great_expectations:
        lines += ["", f"Great Expectations {verdict.great_expectations}, {verdict.seconds:.1f} s"]
    return "\n".join(lines) + "\n"


def breach_markdown(round_number: int, stage: str, error: CrlError) -> str:
    """Which table broke which rule, with the first offending rows: they are quoted as they are."""
    lines = [
        f"# Data check broken: round {round_number}, {as_text(words(stage))}",
        "",
        "The stage is **not** committed.",
    ]
    lines += ["", *(f"- {code(line)}" for line in error.found.splitlines())]
    for name, told in (("Expected", error.expected), ("Where", error.where), ("What to do", error.next_step)):
        if told:
            lines += ["", f"**{name}:** {as_text(told)}"]
    return "\n".join(lines) + "\n"


def report_markdown(name: str, path: Path, url: str | None) -> str:
    """Where the report page is: a link where something serves it, and the file."""
    link = [f"[Open the report]({url})", ""] if url else []
    return "\n".join([f"# Report of {as_text(name)}", "", *link, f"The file: {code(str(path))}", ""])


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A Markdown table of values without markup; nothing for no rows."""
    if not rows:
        return []
    names = list(rows[0])
    head = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    # A number stays on one line with its unit and its interval.
    cells = [[re.sub(r"(?<=[\d%]) (?=[\d%[])", "\u00a0", str(row[name])) for name in names] for row in rows]
    return [*head, *(f"| {' | '.join(row)} |" for row in cells), ""]
