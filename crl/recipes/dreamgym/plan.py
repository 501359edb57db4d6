"""Stage `plan`: which tasks a round plays, where each is played, and which are new ones made of others.

Of a family's groups as many are synthetic as the share of the round allows, the first ones. Of those a share λ at most
are new tasks: levels of the difficulty that is aimed at, where the environment grades its levels, else first
observations that the experience model writes about a task whose group varied. All others are drawn.

What a group says about its task, which tasks are varied and how hard the next ones are to be are pure functions. A task
whose rollouts vary most teaches most: V = (1/n) Σ (r_i − r̄)² over its group, p (1 − p) for a reward of 0 or 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crl.config import FamilyConfig
from crl.credit.uses import usable
from crl.protocols import Graded, Start
from crl.recipes.dreamgym.config import VARY, CurriculumConfig, config_of
from crl.recipes.dreamgym.form import OK
from crl.recipes.dreamgym.predicting import ExperienceModel
from crl.recipes.dreamgym.rows import REAL, DreamTask, TaskValue
from crl.recipes.dreamgym.validate import require_truth
from crl.records import SYNTHETIC, Episode, Generation, Task
from crl.rollout.environments import Readable
from crl.rounds.context import StageContext
from crl.rounds.stage import draw_of
from crl.rounds.tasks import drawn_tasks
from crl.rounds.waves import starts_of
from crl.text.answers import text_flaw
from crl.text.outputs import messages_of

VALUES = "values"
"""Name of the read of what the groups of the round before earned."""
DRAWN, GRADED, WRITTEN = "drawn", "graded", "written"


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


def mean_capability(values: Sequence[TaskValue], family: str, target: float) -> float:
    """The mean success of the completed tasks of a family: those of which a group in the experience model succeeded in
    a share of at least `target`, each with its latest such group; 0.5 before there are any. `values` are in the order
    of their rounds."""
    completed = {
        (value.environment_seed, value.first_observation): value.success
        for value in values
        if value.family == family and value.synthetic and value.success >= target
    }
    return math.fsum(completed.values()) / len(completed) if completed else 0.5


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


@dataclass(frozen=True, slots=True)
class Made:
    """A task that replaces a drawn one."""

    seed: int
    start: Start
    row: DreamTask


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round, and vary some. What is drawn again is real: the rest is the curriculum's choice."""
    config, first = config_of(ctx.method), draw_of(ctx.stage.name)[1] == 1
    require_truth(ctx)
    drawn = drawn_tasks(ctx, lambda size: [REAL] * size, kept=SYNTHETIC)
    values = ctx.rows(TaskValue, VALUES)
    measured = _measured(ctx, config.curriculum, values)
    tasks: list[Task] = []
    origins: list[DreamTask] = []
    records: list[Generation] = []
    metrics: dict[str, float] = {}
    for family in ctx.method.families:
        groups = _groups(drawn, family)
        synthetic = config.synthetic_groups(len(groups), ctx.round) if first else 0
        made = _made(ctx, family, groups[:synthetic], values, measured, records)
        difficulties = _difficulties(ctx, family, [members[0].environment_seed for members in groups])
        for place, members in enumerate(groups):
            new = made.get(members[0].group)
            row = new.row if new is not None else _drawn(members[0], difficulties[place])
            origins.append(dataclasses.replace(row, synthetic=place < synthetic))
            if new is not None and row.made != DRAWN:
                members = [_with_start(task, new) for task in members]
            stream = SYNTHETIC if place < synthetic else REAL
            tasks += [dataclasses.replace(task, stream=stream) for task in members]
        graded = isinstance(ctx.environment(family.name), Graded)
        known = any(value.difficulty is not None for value in values)
        if config.curriculum is not None and graded and (known or config.curriculum.capability == "mean"):
            metrics[f"capability_{family.name}"] = _reached(measured, family, config.curriculum)
    ctx.write(Task, tasks)
    ctx.write(DreamTask, origins)
    ctx.write(Generation, records)
    ctx.write_metrics(metrics)


def _groups(tasks: Sequence[Task], family: FamilyConfig) -> list[list[Task]]:
    groups: dict[int, list[Task]] = {}
    for task in tasks:
        if task.family == family.name:
            groups.setdefault(task.group, []).append(task)
    return list(groups.values())


def _drawn(task: Task, difficulty: float | None) -> DreamTask:
    return DreamTask(
        round=task.round, family=task.family, group=task.group, environment_seed=task.environment_seed, synthetic=False,
        made=DRAWN, parent_round=None, parent_group=None, parent_variance=None, aimed=None, difficulty=difficulty,
        reason_code=OK, generation_id=None,
    )  # fmt: skip


def _with_start(task: Task, made: Made) -> Task:
    goal, observation = made.start.goal, made.start.observation
    return dataclasses.replace(
        task, environment_seed=made.seed, goal=goal, first_observation=observation, query=f"{goal}\n{observation}",
        task_digest=made.start.task_digest,
    )  # fmt: skip


def _difficulties(ctx: StageContext, family: FamilyConfig, seeds: Sequence[int]) -> list[float | None]:
    """How hard the environment says the levels are; None where it does not say, or a level cannot be started."""
    environment = ctx.environment(family.name)
    if not isinstance(environment, Graded):
        return [None] * len(seeds)
    starts = Readable(environment, ctx.method.rollout.max_observation_characters).reset_many(seeds)
    return [None if start.error else environment.difficulty(slot) for slot, start in enumerate(starts)]


def _made(
    ctx: StageContext,
    family: FamilyConfig,
    groups: Sequence[Sequence[Task]],
    values: Sequence[TaskValue],
    measured: Sequence[TaskValue],
    records: list[Generation],
) -> dict[int, Made]:
    """New tasks by the group that they replace: the last of the synthetic ones."""
    recipe = config_of(ctx.method)
    config, count = recipe.curriculum, recipe.varied_groups(len(groups))
    # Before the first round nothing was measured: only a mean has a value then.
    if config is None or not count or not (values or config.capability == "mean"):
        return {}
    replaced = [members[0] for members in groups[len(groups) - count :]]
    parents: list[TaskValue | None] = list(most_varying(values, family.name, count))
    if isinstance(ctx.environment(family.name), Graded):
        if config.rule == "capability":
            parents = [None] * count
        return _graded(ctx, family, config, replaced, parents, _reached(measured, family, config))
    if config.rule == "capability":
        return {}
    return _written(ctx, family, config, replaced, [each for each in parents if each is not None], records)


def _measured(ctx: StageContext, config: CurriculumConfig | None, values: list[TaskValue]) -> list[TaskValue]:
    """What capability is measured on: `values`, which are of the round before, or for a mean those of all rounds."""
    if config is None or config.capability == "threshold":
        return values
    if not any(isinstance(ctx.environment(family.name), Graded) for family in ctx.method.families):
        return []
    return [
        value
        for number in range(1, ctx.round)
        if ctx.recipe.resolve(ctx.method, number, "credit", 0) is not None
        for value in ctx.rows_at(TaskValue, number, "credit")
    ]


def _reached(measured: Sequence[TaskValue], family: FamilyConfig, config: CurriculumConfig) -> float:
    """The measured capability at a family's tasks."""
    found = capability if config.capability == "threshold" else mean_capability
    return found(measured, family.name, config.target)


def _graded(
    ctx: StageContext,
    family: FamilyConfig,
    config: CurriculumConfig,
    replaced: Sequence[Task],
    parents: Sequence[TaskValue | None],
    reached: float,
) -> dict[int, Made]:
    """Levels of the difficulty that is aimed at, out of those that are drawn for each."""
    made = {}
    own = family.train_seeds
    for task, parent in zip(replaced, parents, strict=False):
        generator = np.random.default_rng(ctx.seed("curriculum", family.name, task.group))
        base = reached if parent is None else parent.difficulty or 0.0
        aimed = aimed_at(float(generator.standard_normal()), base, config)
        seeds = [own.start + int(seed) for seed in generator.integers(own.count, size=config.candidates)]
        starts = starts_of(ctx, [(family.name, seed) for seed in seeds])
        difficulties = [value if value is not None else 0.0 for value in _difficulties(ctx, family, seeds)]
        place = nearest(difficulties, aimed)
        row = dataclasses.replace(
            _drawn(task, difficulties[place]),
            environment_seed=seeds[place],
            made=GRADED,
            aimed=aimed,
            **_parent(parent),
        )
        made[task.group] = Made(seeds[place], starts[place], row)
    return made


def _written(
    ctx: StageContext,
    family: FamilyConfig,
    config: CurriculumConfig,
    replaced: Sequence[Task],
    parents: Sequence[TaskValue],
    records: list[Generation],
) -> dict[int, Made]:
    """First observations that the experience model writes about tasks whose groups varied."""
    if not parents:
        return {}
    starts = starts_of(ctx, [(family.name, parent.environment_seed) for parent in parents])
    prompt, asked = ctx.method.prompts_of(family.name)[VARY], []
    for task, parent, start in zip(replaced, parents, starts, strict=True):
        values = {"goal": start.goal, "observation": parent.first_observation}
        asked.append((f"{ctx.round:04d}-{family.name}-g{task.group:04d}", messages_of(prompt, values)))
    made = {}
    for task, parent, start, (reason_code, text, record) in zip(
        replaced, parents, starts, ExperienceModel(ctx).write("vary", asked, VARY), strict=True
    ):
        records.append(record)
        text = (text or "").strip()
        if reason_code == OK:
            reason_code = text_flaw(text, config.max_characters) or OK
        if reason_code == OK and text == parent.first_observation.strip():
            reason_code = "the_same"
        row = dataclasses.replace(
            _drawn(task, None), reason_code=reason_code, generation_id=record.generation_id, **_parent(parent)
        )
        if reason_code == OK:
            row = dataclasses.replace(row, environment_seed=parent.environment_seed, made=WRITTEN)
            start = dataclasses.replace(start, observation=text, task_digest="")  # a task that nobody had
        made[task.group] = Made(row.environment_seed, start, row)
    return made


def _parent(parent: TaskValue | None) -> dict[str, Any]:
    """The columns that name the task another one is made of."""
    if parent is None:
        return {"parent_round": None, "parent_group": None, "parent_variance": None}
    return {"parent_round": parent.round, "parent_group": parent.group, "parent_variance": parent.variance}
