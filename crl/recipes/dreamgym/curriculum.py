"""Curriculum: what a group says about its task, which tasks are varied, and how hard the next ones are to be.

Pure functions. A task whose rollouts vary most teaches most: V = (1/n) Σ (r_i − r̄)² over its group, p (1 − p) for a
reward of 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from crl.credit.uses import usable
from crl.recipes.dreamgym.config import CurriculumConfig
from crl.recipes.dreamgym.rows import DreamTask, TaskValue
from crl.records import Episode, Task


def variance(rewards: Sequence[float]) -> float:
    """V = mean of (r − r̄)² over a group's rewards; 0 of none."""
    if not rewards:
        return 0.0
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def task_values(tasks: Sequence[Task], origins: Sequence[DreamTask], episodes: Sequence[Episode]) -> list[TaskValue]:
    """What every group with a usable episode earned, in the order of the groups."""
    of_group: dict[int, list[Episode]] = {}
    for episode in episodes:
        if usable(episode):
            of_group.setdefault(episode.group, []).append(episode)
    first: Mapping[int, str] = {task.group: task.first_observation for task in tasks}
    found = []
    for origin in origins:
        members = of_group.get(origin.group, [])
        if not members:
            continue
        rewards = [episode.reward for episode in members]
        found.append(
            TaskValue(
                round=origin.round,
                family=origin.family,
                group=origin.group,
                environment_seed=origin.environment_seed,
                first_observation=first[origin.group],
                synthetic=origin.synthetic,
                made=origin.made,
                difficulty=origin.difficulty,
                rollouts=len(members),
                mean=math.fsum(rewards) / len(rewards),
                variance=variance(rewards),
                success=sum(episode.success for episode in members) / len(members),
            )
        )
    return found


def most_varying(values: Sequence[TaskValue], family: str, count: int) -> list[TaskValue]:
    """The tasks of a family whose groups vary most, the first group first where they vary alike; none that does not
    vary. Of fewer than `count` some come again."""
    ranked = sorted(
        (value for value in values if value.family == family and value.variance > 0),
        key=lambda value: (-value.variance, value.group),
    )
    return [ranked[place % len(ranked)] for place in range(count)] if ranked else []


def capability(values: Sequence[TaskValue], family: str, target: float) -> float:
    """The largest difficulty up to which the tasks of a family succeed in a share of at least `target`; 0 if none does.

    Measured on graded tasks alone, on real ones where there are any.
    """
    graded = [value for value in values if value.family == family and value.difficulty is not None]
    graded = [value for value in graded if not value.synthetic] or graded
    reached, episodes, won = 0.0, 0, 0.0
    by_difficulty = sorted(graded, key=lambda value: value.difficulty or 0.0)
    for place, value in enumerate(by_difficulty):
        episodes, won = episodes + value.rollouts, won + value.success * value.rollouts
        following = by_difficulty[place + 1].difficulty if place + 1 < len(by_difficulty) else None
        if following != value.difficulty and won / episodes >= target:
            reached = value.difficulty or 0.0
    return reached


def nearest(difficulties: Sequence[float], aimed: float) -> int:
    """The place of the difficulty nearest to what is aimed at; the first of equally near ones."""
    return min(range(len(difficulties)), key=lambda place: abs(difficulties[place] - aimed))


def bounded(value: float) -> float:
    """A difficulty on the scale from 0 to 1."""
    return min(1.0, max(0.0, value))


def aimed_at(drawn: float, base: float, config: CurriculumConfig) -> float:
    """The difficulty of a new task: `base` (its parent's, or the capability), `step` more, and noise (`drawn` from a
    standard normal); in 0 to 1."""
    return bounded(base + config.step + config.noise * drawn)
