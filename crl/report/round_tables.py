"""The rounds of a run as tables for a terminal (success, training, seconds by stage), and the notes below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crl.report.summary import RoundSummary, random_policy

if TYPE_CHECKING:
    from rich.table import Table

RANDOM = "random"
"""Label of the row of the random policy."""


def round_tables(summaries: Sequence[RoundSummary]) -> list[Table]:
    """Success; form, bank and training; seconds by stage. All but the last fit 80 columns. None for an empty run."""
    if not summaries:
        return []
    return [_success(summaries), _training(summaries), *_seconds(summaries)]


def _success(summaries: Sequence[RoundSummary]) -> Table:
    table = _table("success: won/played, share [95 % interval]")
    for name in ("round", "guided", "free", "held out, with bank", "without bank"):
        table.add_column(name, justify="left" if name == "round" else "right")
    random = random_policy(summaries)
    if random.episodes:
        table.add_row(RANDOM, "–", "–", "–", random.told)
    for each in summaries:
        table.add_row(each.label, str(each.guided), str(each.free), each.with_bank.told, each.without_bank.told)
    return table


def _training(summaries: Sequence[RoundSummary]) -> Table:
    table = _table("form, bank and training")
    for name in ("round", "valid turns", "cut off", "bank", "operations", "malformed", "buffer", "updates a/e"):
        table.add_column(name, justify="left" if name in ("round", "operations") else "right")
    for each in (each for each in summaries if each.label == str(each.round)):
        table.add_row(
            each.label, *(_percent(each.health.get(name)) for name in ("turns_valid", "turns_cut")), _shown(each.bank),
            " ".join(f"{kind} {count}" for kind, count in each.operations.items()) or "–",
            f"{each.malformed}/{each.outputs}" if each.outputs else "–", _shown(each.buffer),
            f"{_shown(each.actor_updates)}/{_shown(each.extractor_updates)}",
        )  # fmt: skip
    return table


def _seconds(summaries: Sequence[RoundSummary]) -> list[Table]:
    # Preparation has stages of its own; its seconds are a line of `notes`.
    trained = [each for each in summaries if each.round > 0 and each.seconds]
    stages = list(dict.fromkeys(stage for each in trained for stage in each.seconds))
    if not stages:
        return []
    table = _table("seconds per stage")
    for stage in ("round", *stages, "total"):
        table.add_column(stage.replace("_", " "), justify="left" if stage == "round" else "right")
    for each in trained:
        cells = [f"{each.seconds[stage]:.1f}" if stage in each.seconds else "–" for stage in stages]
        table.add_row(each.label, *cells, f"{sum(each.seconds.values()):.1f}")
    return [table]


def notes(summaries: Sequence[RoundSummary]) -> list[str]:
    """What follows the tables: the seconds of the preparation, alarms of the newest round that has any."""
    lines = []
    for each in summaries:
        if each.round == 0 and each.seconds:
            parts = ", ".join(f"{stage.replace('_', ' ')} {taken:.1f}" for stage, taken in each.seconds.items())
            lines.append(f"preparation (round 0), seconds: {parts}")
    alarmed = [each for each in summaries if each.alarms]
    if alarmed:
        lines += [f"alarm in round {alarmed[-1].round}, {alarm}" for alarm in alarmed[-1].alarms]
    return lines


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g} %"


def _shown(value: int | None) -> str:
    return "–" if value is None else str(value)
