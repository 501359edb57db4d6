"""The rounds of a run as rows of words (success, form and training, seconds by stage), and the notes below them.

The terminal shows them as the tables that are made here, Prefect's UI as Markdown (`markdown.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crl.report.cells import percent
from crl.report.rates import NOTHING, Rate
from crl.report.sections import Rows, sections_of
from crl.report.summary import RoundSummary, random_policy
from crl.report.tasks import newest_tasks, task_rows

if TYPE_CHECKING:
    from rich.table import Table


def success_rows(summaries: Sequence[RoundSummary], random: Rate) -> Rows:
    """Games won out of those played, apart those in an experience model, which itself says what is won; the random
    policy in the last row, where it was measured."""
    dreamt = any(each.synthetic.episodes for each in summaries)
    rows = [
        {
            "round": each.label,
            "guided": each.guided.short,
            "free": each.free.short,
            **({"in the model": each.synthetic.short} if dreamt else {}),
            "held out, with bank": each.with_bank.told,
            "without bank": each.without_bank.told,
        }
        for each in summaries
    ]
    if rows and random.episodes:
        rows.append(dict.fromkeys(rows[0], NOTHING) | {"round": "random", "without bank": random.told})
    return rows


def training_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """Form of the turns, size of the bank, what the extractor asked for, the training buffer, updates so far."""
    roles = sorted({role for each in summaries for role in each.updates})
    return [
        {
            "round": each.label,
            "valid turns": percent(each.health.get("turns_valid")),
            "cut off": percent(each.health.get("turns_cut")),
            "bank": _known(each.bank),
            "operations": " ".join(f"{kind} {count}" for kind, count in each.operations.items()) or NOTHING,
            "malformed": f"{each.malformed}/{each.outputs}" if each.outputs else NOTHING,
            "buffer": _known(each.buffer),
            f"updates {'/'.join(role[0] for role in roles)}": "/".join(
                _known(each.updates.get(role)) for role in roles
            ),
        }
        for each in summaries
        if each.label == str(each.round)
    ]


def recipe_tables(summaries: Sequence[RoundSummary]) -> dict[str, Rows]:
    """By title, those that the recipe adds."""
    tables = (table for section in sections_of(summaries) for table in section.tables.items())
    return {title: rows for title, rows_of in tables if (rows := rows_of(summaries))}


def round_tables(summaries: Sequence[RoundSummary]) -> list[Table]:
    """Success; of a mixture by task; those of the recipe; form, bank and training; seconds by stage.

    None for an empty run. All but the last fit 80 columns.
    """
    # Preparation has stages of its own; its seconds are a line of `notes`.
    trained = [each for each in summaries if each.round > 0 and each.seconds]
    stages = list(dict.fromkeys(stage for each in trained for stage in each.seconds))
    seconds = [
        {
            "round": each.label,
            **{name.replace("_", " "): f"{each.seconds[name]:.1f}" if name in each.seconds else "–" for name in stages},
            "total": f"{sum(each.seconds.values()):.1f}",
        }
        for each in trained
    ]
    tables = {
        "success: won/played, share [95 % interval]": success_rows(summaries, random_policy(summaries)),
        **_by_task(summaries),
        **recipe_tables(summaries),
        "form, bank and training": training_rows(summaries),
        "seconds per stage": seconds,
    }
    return [_table(title, rows, ("round", "task", "operations")) for title, rows in tables.items() if rows]


def _by_task(summaries: Sequence[RoundSummary]) -> dict[str, Rows]:
    """The table of a mixture under its title; nothing of a run of one task."""
    tasks = newest_tasks(summaries)
    return {} if tasks is None else {f"success by task, {tasks.place}; average over tasks": task_rows(tasks)}


def notes(summaries: Sequence[RoundSummary]) -> list[str]:
    """What follows the tables: the seconds of the preparation, and of the newest round that has any, alarms and games
    that broke."""
    lines = []
    for each in summaries:
        if each.round == 0 and each.seconds:
            parts = ", ".join(f"{stage.replace('_', ' ')} {taken:.1f}" for stage, taken in each.seconds.items())
            lines.append(f"preparation (round 0), seconds: {parts}")
    alarmed = [each for each in summaries if each.alarms]
    if alarmed:
        lines += [f"alarm in round {alarmed[-1].round}, {alarm}" for alarm in alarmed[-1].alarms]
    broke = [each for each in summaries if each.broken]
    if broke:
        lines += [f"broken in round {broke[-1].round}, {broken_words(row)}" for row in broke[-1].broken]
        lines.append("the view broken_games of `crl sql` has the tracebacks")
    return lines


def broken_words(row: Mapping[str, Any]) -> str:
    """A row of the view `broken_games`: how many games broke, how and where."""
    place = f", {row['place']}" if row["place"] else ""
    told = (
        f"{row['stage'].replace('_', ' ')}: {row['games']} of {row['played']} games of {row['family']}: {row['error']}"
    )
    return f"{told} (first seed {row['environment_seed']}{place})"


def _table(title: str, rows: Rows, left: Collection[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        table.add_row(*row.values())
    return table


def _known(value: int | None) -> str:
    return NOTHING if value is None else str(value)
