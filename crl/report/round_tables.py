"""The rounds of a run as rows of words (success, form and training, seconds by stage), and the remarks below them.

The terminal shows them as the tables that are made here, Prefect's UI as Markdown (`markdown.py`). Of a mixture there
are also success by task and the average over tasks with equal weight (macro), of the newest round that has any: where
all episodes are pooled, a task with many of them hides the others. A run of one task has nothing of this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crl.report.cells import NOTHING, count, percent
from crl.report.sections import Rows, sections_of
from crl.report.success import NONE, Average, Rate, average
from crl.report.summary import RoundSummary, random_policy
from crl.run.validations import Verdict

if TYPE_CHECKING:
    from rich.table import Table

AVERAGE = "average"
"""Name of the last row. A task of this name would only be listed above it."""
MOST = 40
"""Tasks listed; the average is over all of them."""
_TRAINING = {"guided": "guided", "free": "free", "synthetic": "in the model"}
"""Conditions of training, with their columns."""
_HELD_OUT = ("with_bank", "without_bank")
_BAD_VERDICTS = 3
_OBJECTIVES = {"nll": "self-distillation", "reverse_kl": "internalization"}
"""Objectives beside the policy's, by the names that people know."""
_GRPO = ("plan", "collect", "credit")
"""Stages of such a round, before its update."""


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
            "held out, with bank": each.with_bank.words,
            "without bank": each.without_bank.words,
        }
        for each in summaries
    ]
    if rows and random.episodes:
        rows.append(dict.fromkeys(rows[0], NOTHING) | {"round": "random", "without bank": random.words})
    return rows


def training_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """Form of the turns, size of the bank, what the extractor asked for, the training buffer, updates so far."""
    roles = sorted({role for each in summaries for role in each.updates})
    return [
        {
            "round": each.label,
            "valid turns": percent(each.health.get("turns_valid")),
            "cut off": percent(each.health.get("turns_cut")),
            "bank": count(each.bank),
            "operations": " ".join(f"{kind} {number}" for kind, number in each.operations.items()) or NOTHING,
            "malformed": f"{each.malformed}/{each.outputs}" if each.outputs else NOTHING,
            "buffer": count(each.buffer),
            f"updates {'/'.join(role[0] for role in roles)}": "/".join(count(each.updates.get(role)) for role in roles),
        }
        for each in summaries
        if each.label == str(each.round)
    ]


def recipe_tables(summaries: Sequence[RoundSummary]) -> dict[str, Rows]:
    """By title, those that the recipe adds, and what rounds cost beside those without experience."""
    tables = [table for section in sections_of(summaries) for table in section.tables.items()]
    tables.append(("what the actor learned from", learning_rows))
    tables.append(("what merging did to the bank", merge_rows))
    tables.append(("cost beside a GRPO round of the same episodes", cost_rows))
    return {title: rows for title, rows_of in tables if (rows := rows_of(summaries))}


def learning_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """Groups whose rewards differ, so that the policy gradient has something to say, and its share of the squared
    gradient beside the other objectives, where it was measured."""
    rows = []
    for each in summaries:
        if "actor_groups_equal" in each.health:
            policy = {"policy gradient": percent(1 - sum(each.shares.values()) if each.shares else None)}
            others = {_OBJECTIVES.get(name, name): percent(share) for name, share in sorted(each.shares.items())}
            differing = percent(1 - each.health["actor_groups_equal"])
            rows.append({"round": each.label, "groups with an advantage": differing, **policy, **others})
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, NOTHING) for name in columns} for row in rows]


def merge_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """What merging made of the entries that it was shown, and held-out success with the bank before and after the
    round."""
    return [
        {
            "round": each.label,
            "entries shown": str(each.merged["shown"]),
            "kept": str(each.merged.get("keep", 0)),
            "merged": f"{each.merged.get('merge', 0)} into {each.merged.get('texts', 0)}",
            "dropped": str(each.merged.get("drop", 0)),
            "with bank before": before.with_bank.short,
            "after": each.with_bank.short,
        }
        for before, each in pairwise(summaries)
        if each.merged.get("shown")
    ]


def cost_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """Tokens that models wrote, and seconds, of each round that is over, each with its multiple of those of a GRPO
    round of its shape: one that plays the same episodes and updates the actor on them. Held-out evaluation is in
    neither: both would play it."""
    rows = []
    for each in summaries:
        episodes = each.health.get("episode_tokens_sampled")
        if episodes is None or not each.seconds:
            continue
        written = sum(each.health.get(f"{role}_tokens_sampled", 0.0) for role in ("actor", "extractor"))
        update = next((name for name in each.seconds if name.startswith("update_")), "")
        grpo = sum(each.seconds.get(name, 0.0) for name in (*_GRPO, update))
        seconds = sum(taken for name, taken in each.seconds.items() if name != "evaluate")
        rows.append(
            {
                "round": each.label,
                "tokens of episodes": count(int(episodes)),
                "of all": count(int(written)),
                "times GRPO's": _times(written, episodes),
                "seconds": f"{seconds:.1f}",
                "times": _times(seconds, grpo),
            }
        )
    return rows


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else NOTHING


def round_tables(summaries: Sequence[RoundSummary]) -> list[Table]:
    """Success; of a mixture by task; those of the recipe; form, bank and training; seconds by stage.

    None for an empty run. All but the last fit 80 columns.
    """
    # Preparation has stages of its own; its seconds are a line of `remarks`.
    trained = [each for each in summaries if each.round > 0 and each.seconds]
    stages = list(dict.fromkeys(stage for each in trained for stage in each.seconds))
    tasks = newest_tasks(summaries)
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
        **({} if tasks is None else {f"success by task, {tasks.rounds}; average over tasks": task_rows(tasks)}),
        **recipe_tables(summaries),
        "form, bank and training": training_rows(summaries),
        "seconds per stage": seconds,
    }
    return [_table(title, rows, ("round", "task", "operations")) for title, rows in tables.items() if rows]


@dataclass(frozen=True, slots=True)
class Tasks:
    """Success by task."""

    trained: str | None
    """Label of the round that the columns of training are of; None: nothing was played yet."""
    evaluated: str | None
    """Likewise, of the held-out columns."""
    rates: Mapping[str, Mapping[str, Rate]]
    """By condition and task; `random` is of round 0."""

    @property
    def names(self) -> list[str]:
        """The tasks, sorted."""
        return sorted({name for of_task in self.rates.values() for name in of_task})

    @property
    def rounds(self) -> str:
        """Which rounds are shown: `round 7`, or `round 7, held out round 5`."""
        rounds = [each for each in (self.trained, self.evaluated) if each is not None]
        return f"round {rounds[0]}" + (f", held out round {rounds[1]}" if len(set(rounds)) > 1 else "")

    def rate(self, condition: str, task: str) -> Rate:
        """Success of one condition on a task."""
        return self.rates.get(condition, {}).get(task, NONE)

    def average(self, condition: str) -> Average | None:
        """Mean over the tasks; None where some task has no episode of this condition."""
        return average([self.rate(condition, name) for name in self.names])


def newest_tasks(summaries: Sequence[RoundSummary]) -> Tasks | None:
    """The newest metrics of every task; None where there is one task only, or none."""
    trained = _newest(summaries, _TRAINING)
    evaluated = _newest(summaries, _HELD_OUT)
    rates: dict[str, Mapping[str, Rate]] = {}
    for summary, conditions in (
        (trained, _TRAINING),
        (evaluated, _HELD_OUT),
        (_newest(summaries, ("random",)), ("random",)),
    ):
        rates |= {
            condition: summary.tasks[condition]
            for condition in conditions
            if summary is not None and condition in summary.tasks
        }
    labels = [None if summary is None else summary.label for summary in (trained, evaluated)]
    found = Tasks(labels[0], labels[1], rates)
    return found if len(found.names) > 1 else None


def task_rows(tasks: Tasks) -> list[dict[str, str]]:
    """A row per task and the average, as words; a column for an experience model where episodes were played in one."""
    trained = [condition for condition in _TRAINING if condition != "synthetic" or condition in tasks.rates]
    rows = [
        {
            "task": name,
            **{_TRAINING[condition]: tasks.rate(condition, name).short for condition in trained},
            "held out, with bank": tasks.rate("with_bank", name).words,
            "without bank": tasks.rate("without_bank", name).words,
        }
        for name in tasks.names[:MOST]
    ]
    if len(tasks.names) > MOST:
        rows.append(dict.fromkeys(rows[0], "") | {"task": f"and {len(tasks.names) - MOST} more"})
    means = [tasks.average(condition) for condition in (*trained, *_HELD_OUT)]
    words = [NOTHING if mean is None else mean.percent for mean in means[: len(trained)]]
    words += [NOTHING if mean is None else f"{mean.percent} [{mean.span}]" for mean in means[len(trained) :]]
    return [*rows, dict(zip(rows[0], (AVERAGE, *words), strict=True))]


def newest_evaluated(summaries: Sequence[RoundSummary]) -> RoundSummary | None:
    """The last round with held-out games of some task."""
    return _newest(summaries, _HELD_OUT)


def _newest(summaries: Sequence[RoundSummary], conditions: Collection[str]) -> RoundSummary | None:
    return next(
        (each for each in reversed(summaries) if any(condition in each.tasks for condition in conditions)), None
    )


def results_line(summaries: Sequence[RoundSummary]) -> str:
    """Where a run stands, in one line: the newest success measured, the bank, alarms of the newest round."""
    if not summaries:
        return "no round yet"
    newest = summaries[-1]
    parts = []
    measured = [each for each in summaries if each.with_bank.episodes or each.without_bank.episodes]
    if measured:
        evaluated = measured[-1]
        rates = (("with the bank", evaluated.with_bank), ("without", evaluated.without_bank))
        told = ", ".join(f"{rate.percent} {name}" for name, rate in rates if rate.episodes)
        parts.append(f"held-out success {told} (round {evaluated.round})")
    if newest.bank is not None:
        parts.append(f"{newest.bank} experiences")
    parts.append(f"{len(newest.alarms) or 'no'} alarm{'' if len(newest.alarms) == 1 else 's'}")
    return f"round {newest.round}: {'; '.join(parts)}"


def remarks(summaries: Sequence[RoundSummary]) -> list[str]:
    """What follows the tables: the seconds of the preparation, verdicts of Great Expectations, and of the newest round
    that has any, alarms and games that broke."""
    lines = []
    for each in summaries:
        if each.round == 0 and each.seconds:
            parts = ", ".join(f"{stage.replace('_', ' ')} {taken:.1f}" for stage, taken in each.seconds.items())
            lines.append(f"preparation (round 0), seconds: {parts}")
    lines += _verdicts([each.validation for each in summaries if each.validation is not None])
    alarmed = [each for each in summaries if each.alarms]
    if alarmed:
        lines += [f"alarm in round {alarmed[-1].round}: {alarm}" for alarm in alarmed[-1].alarms]
    broke = [each for each in summaries if each.broken]
    if broke:
        lines += [f"broken in round {broke[-1].round}, {broken_words(row)}" for row in broke[-1].broken]
        lines.append("the view broken_games of `crl sql` has the tracebacks")
    return lines


def _verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    """The newest verdict of Great Expectations, and the newest ones that are not good, each with its first alarm."""
    bad = [each for each in verdicts if each.outcome != "passed" or each.alarms][-_BAD_VERDICTS:]
    lines = []
    for verdict in sorted({each.round: each for each in [*bad, *verdicts[-1:]]}.values(), key=lambda each: each.round):
        more = f", and {len(verdict.alarms) - 1} more" if len(verdict.alarms) > 1 else ""
        alarm = f"; alarm: {verdict.alarms[0]}{more}" if verdict.alarms else ""
        lines.append(f"round {verdict.round} {verdict.summary()}{alarm}")
    return lines


def broken_words(row: Mapping[str, Any]) -> str:
    """A row of the view `broken_games`: how many games broke, how and where."""
    place = f", {row['location']}" if row["location"] else ""
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
