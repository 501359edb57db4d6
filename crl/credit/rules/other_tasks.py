"""An output earns the mean success of its experiences on tasks other than its own (Evolving-RL, 2605.10663).

Its own task is the one that it was distilled from; a task is a family and what its level holds, under whatever seed
(where the environment does not say, its seed). Uses on one task count
as one, with their mean. The verdict of the actor (s_c) is earned on the own task, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from crl.credit.buffer import Earned
from crl.credit.rules import Round, Rule, Scored, TaskKey, task_of
from crl.records import Row, UseReward

OTHER_TASK, OWN_TASK = "other_task", "own_task"


def score(round: Round, before: Sequence[Row]) -> Scored:
    """See the module; nothing is kept.

    A row says what a use earns the output behind the text. Outputs that repeated the text came from other tasks, so
    what counts is made for each earner on its own: of its uses on one task the first, with the mean reward of all of
    them, whichever of its experiences they were of; of its own task the verdicts alone, where there are any.
    """
    tasks = {row.episode_id: task_of(row) for row in round.episodes}
    rows: list[UseReward] = []
    of_task: dict[tuple[str, TaskKey], list[float]] = defaultdict(list)
    for use in round.uses:
        task = tasks[use.episode_id]
        if use.outcome is None:
            rows.append(use)
        elif task == round.own_task(use.generation_id):
            rows.append(replace(use, basis=OWN_TASK, reward=use.critic_score or 0.0))
        else:
            rows.append(replace(use, basis=OTHER_TASK))
        for name in round.earners(use):
            if task != round.own_task(name):
                of_task[name, task].append(use.reward)
            elif use.critic_score is not None:
                of_task[name, task].append(use.critic_score)
    return Scored(rows, [Earned(name, sum(listed) / len(listed)) for (name, _), listed in of_task.items()])


RULE = Rule(score)
