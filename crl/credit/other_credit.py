"""Two other ways to give credit to an experience, after recipes of 2026. Pure functions over rows.

- *By other tasks* (Evolving-RL, 2605.10663): an output earns the mean success of its notes on tasks other than the one
  that it came from. A task is a family and an environment seed; uses on one task count as one, with their mean.
- *By trend* (Skill1, 2605.06130): every experience that was retrieved for an episode keeps a running utility
  U <- decay U + (1 - decay) r, and an output earns r - max U, with r the outcome of the episode it was distilled from:
  much where the bank had nothing that goes as well, little where it had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from crl.credit.credit import outcome, usable
from crl.records import CandidateUtility, Distillation, Episode, Retrieval, UseReward

OTHER_TASK, OWN_TASK = "other_task", "own_task"


class TaskKey(NamedTuple):
    """One task, whoever plays it and when."""

    family: str
    environment_seed: int


class Tasks(NamedTuple):
    """What tells an output's own task from others."""

    of_episode: Mapping[str, TaskKey]
    """By the id of an episode."""
    own: Mapping[str, TaskKey]
    """The one that an output was distilled from, by its generation id; a merged text has none."""


def task_of_episode(episode: Episode) -> TaskKey:
    """The task that an episode was of."""
    return TaskKey(episode.family, episode.environment_seed)


def by_other_tasks(uses: Iterable[UseReward], tasks: Tasks) -> list[UseReward]:
    """The uses as rows: those on a task that the output behind the text did not come from earn r, those on its own task
    nothing. The verdict of the actor (s_c) is earned either way."""
    found = []
    for use in uses:
        if use.outcome is None:
            found.append(use)
        elif tasks.of_episode[use.episode_id] == tasks.own.get(use.generation_id):
            found.append(replace(use, basis=OWN_TASK, reward=use.critic_score or 0.0))
        else:
            found.append(replace(use, basis=OTHER_TASK))
    return found


def one_per_task(earned: Iterable[tuple[str, UseReward]], tasks: Tasks) -> list[tuple[str, UseReward]]:
    """What the buffer counts of (output, a use that it earns by): of an output's uses on one task the first, with the
    mean reward of all of them, whichever of its notes they were of; of its own task the verdicts alone, where there
    are any.

    Outputs that wrote one text came from different tasks: a use may be another's own and not this one's.
    """
    of_task: dict[tuple[str, TaskKey], list[UseReward]] = defaultdict(list)
    for generation_id, use in earned:
        task = tasks.of_episode[use.episode_id]
        if task != tasks.own.get(generation_id):
            of_task[generation_id, task].append(use)
        elif use.critic_score is not None:
            of_task[generation_id, task].append(replace(use, reward=use.critic_score))
    return [
        (generation_id, replace(listed[0], reward=sum(use.reward for use in listed) / len(listed)))
        for (generation_id, _), listed in of_task.items()
    ]


def utilities_after(
    previous: Iterable[CandidateUtility], episodes: Iterable[Episode], retrievals: Iterable[Retrieval], decay: float
) -> list[CandidateUtility]:
    """Utilities after a round, by entry id: every candidate of a usable episode moves toward its outcome, in order."""
    utilities = {row.entry_id: row for row in previous}
    candidates = _candidates(retrievals)
    for episode in episodes:
        for entry_id in candidates.get(episode.episode_id, ()) if usable(episode) else ():
            old = utilities.get(entry_id) or CandidateUtility(entry_id=entry_id, episodes=0, utility=0.0)
            utility = decay * old.utility + (1 - decay) * outcome(episode)
            utilities[entry_id] = replace(old, episodes=old.episodes + 1, utility=min(1.0, max(-1.0, utility)))
    return [utilities[entry_id] for entry_id in sorted(utilities)]


def trend_rewards(
    distillations: Iterable[Distillation],
    episodes: Sequence[Episode],
    retrievals: Iterable[Retrieval],
    before: Iterable[CandidateUtility],
) -> dict[str, float]:
    """By output that wrote a note, r - max U: the outcome of its episode less the largest utility, before the round, of
    what was retrieved for any member of its group; r alone where nothing was."""
    known = {row.entry_id: row.utility for row in before}
    candidates = _candidates(retrievals)
    groups = {row.episode_id: (row.family, row.group) for row in episodes}
    best: dict[tuple[str, int], float] = {}
    for episode_id, entry_ids in candidates.items():
        largest = max(known.get(entry_id, 0.0) for entry_id in entry_ids)
        key = groups[episode_id]
        best[key] = max(best.get(key, largest), largest)
    played = {row.episode_id: row for row in episodes if usable(row)}
    found = {}
    for row in distillations:
        episode = played.get(row.episode_id or "")
        if episode is not None and row.verdict not in ("malformed", "return"):
            found[row.generation_id] = outcome(episode) - best.get(groups[episode.episode_id], 0.0)
    return found


def _candidates(retrievals: Iterable[Retrieval]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in retrievals:
        found[row.episode_id].append(row.entry_id)
    return found
