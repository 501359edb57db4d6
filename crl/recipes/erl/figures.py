"""What a round of Experiential RL says about itself, as figures: pure functions over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crl.credit.uses import usable
from crl.recipes.erl.rows import Reflection
from crl.records import BankEvent, Episode
from crl.rounds.alarms import Figures
from crl.rounds.health import Note, one_text_share

Pairs = Sequence[tuple[Episode, Episode]]
"""Attempts with the attempt before each."""


def attempt_figures(first: Sequence[Episode], pairs: Pairs) -> Figures:
    """First attempts against those after them; what there is none of is left out.

    - `success_first`: share of the usable first attempts that succeeded;
    - `gate_rate`: share of them that were tried again;
    - `success_second`: of the further attempts;
    - `retry_gain`: mean of r2 - r1 over pairs of attempts;
    - `success_best`: tasks' rollouts that succeeded at the first or any further attempt.
    """
    played = [episode for episode in first if usable(episode)]
    again = [(before, after) for before, after in pairs if usable(before) and usable(after)]
    figures: Figures = {}
    if played:
        of_first = {episode.episode_id for episode in played}
        won = {episode.episode_id for episode in played if episode.success}
        tried = {before.episode_id for before, _ in pairs if before.episode_id in of_first}
        figures["success_first"] = len(won) / len(played)
        figures["gate_rate"] = len(tried) / len(played)
        later = {(after.family, after.group, after.member) for _, after in again if after.success}
        places = {episode.episode_id: (episode.family, episode.group, episode.member) for episode in played}
        figures["success_best"] = sum(
            episode.episode_id in won or places[episode.episode_id] in later for episode in played
        ) / len(played)
    if again:
        figures["success_second"] = sum(after.success for _, after in again) / len(again)
        figures["retry_gain"] = sum(after.reward - before.reward for before, after in again) / len(again)
    return figures


def reflection_figures(rows: Sequence[Reflection]) -> Figures:
    """How many reflections were written, how many are malformed, distinct, one text, and read a memory."""
    figures: Figures = {
        "reflections": float(len(rows)),
        "memory_reads": float(sum(bool(row.entry_ids) for row in rows)),
        "memory_entries_read": float(sum(len(row.entry_ids) for row in rows)),
    }
    notes = [Note(row.family, row.text) for row in rows if row.text is not None]
    if rows:
        figures["share_malformed"] = 1 - len(notes) / len(rows)
        figures["reflection_trajectories_cut"] = sum(row.turns_shown < row.turns for row in rows) / len(rows)
    if notes:
        figures["notes_distinct"] = len(set(notes)) / len(notes)
    return figures | one_text_share(notes)


def memory_figures(events: Iterable[BankEvent]) -> Figures:
    """What became of the memory: entries that came in, that repeated one, that went."""
    kinds = Counter(event.kind for event in events)
    return {
        "memory_writes": float(kinds["add"]),
        "memory_refused": float(kinds["rejected"]),
        "memory_evicted": float(kinds["evict"]),
    }


def carried(metrics: Mapping[str, float], names: Iterable[str]) -> Figures:
    """Figures of another stage, as they are."""
    return {name: metrics[name] for name in names if name in metrics}
