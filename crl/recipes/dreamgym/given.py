"""Stage `given` of round 0: real transitions that a file brings, and their episodes as token records.

The file has the columns of the table `transitions`, a row per step (:class:`GivenStep`). Its steps enter the pool of
real transitions or of held-out ones. Its whole episodes are played again by a script: the actor's chat says what was
done, and the file says what followed. So they can be trained on as any others. Nobody sampled them: their stored
log-probability is 0, that of a player who always does this, and a ratio is the policy's own probability (as in LUFFY,
arXiv 2504.14945).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from crl.config import FamilyConfig, Method
from crl.errors import BadInput
from crl.paths import possible_path
from crl.protocols import Actions, FreeText, Start, Step, StopReason
from crl.recipes.dreamgym.config import ACTOR, config_of
from crl.recipes.dreamgym.explore import history_of
from crl.recipes.dreamgym.form import Predicted
from crl.recipes.dreamgym.prompts import Situation, transition_of
from crl.recipes.dreamgym.rows import CONTINUES, FIT, GIVEN, HELD_OUT, SUCCESS, TURN_LIMIT, Transition
from crl.recipes.dreamgym.store import split_of
from crl.records import Task
from crl.rollout.play import EpisodeSlot
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import WAVE, as_answer, demonstrate, scripted_role
from crl.rounds.tasks import query_of
from crl.rounds.waves import write_played
from crl.worlds.records import records

WHERE = "method.recipe.given"


class GivenStep(BaseModel):
    """One row of the file; other columns are not read."""

    episode_id: str = Field(min_length=1)
    turn: int = Field(ge=0)
    """From 0; the steps of an episode follow each other."""
    family: str | None = None
    """Task family; may be missing where the experiment has one."""
    environment_seed: int | None = Field(None, ge=0)
    """Seed of the level, where it is known."""
    goal: str = ""
    observation: str = Field(pattern=r"\S")
    action: str = Field(pattern=r"\S")
    actions: list[str] = []
    """What could be done, by name; none where actions are text."""
    next_observation: str = Field(pattern=r"\S")
    next_actions: list[str] = []
    feedback: str = ""
    legal: bool = True
    outcome: Literal["continues", "success", "failure", "turn_limit"]
    reward: float = Field(0.0, allow_inf_nan=False)
    """Of the episode, where the step ends it."""
    reasoning: str | None = None


def due(method: Method, round_number: int) -> bool:
    """Where there is a file."""
    return config_of(method).given is not None


def episodes_of(method: Method, path: Path) -> dict[str, list[list[GivenStep]]]:
    """The episodes of a file by task family, in the order in which they begin, each with its steps in theirs.

    Raises BadInput with the place of the first row that cannot be used.
    """
    families = {family.name: family for family in method.families}
    found: dict[str, dict[str, list[GivenStep]]] = {name: {} for name in families}
    for location, record in records(path, _refused):
        try:
            step = GivenStep.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            column = ".".join(map(str, first["loc"])) or "the row"
            raise _refused(f"{column}: {first['msg']}", "a row as docs/dreamgym.md describes it", location) from None
        name = step.family if step.family is not None or len(families) > 1 else next(iter(families))
        if name not in families:
            raise _refused(f"it is of the task family {name}", f"one of {', '.join(families)}", location)
        seed, held_out = step.environment_seed, families[name].evaluation_seeds
        if seed is not None and held_out.start <= seed < held_out.start + held_out.count:
            raise _refused(f"seed {seed} is held out for evaluation", "training levels only", location)
        steps = found[name].setdefault(step.episode_id, [])
        before = steps[-1] if steps else None
        follows = step.turn == 0 if before is None else step.turn == before.turn + 1 and before.outcome == CONTINUES
        if not follows:
            raise _refused(
                f"turn {step.turn} of episode {step.episode_id} follows "
                + ("nothing" if before is None else f"turn {before.turn}, which has the outcome {before.outcome}"),
                "the steps of an episode in order, from turn 0 to the one that ends it",
                location,
            )
        if before is not None and step.observation != before.next_observation:
            raise _refused("its observation is not the next_observation of the turn before", "the same", location)
        longest = method.rollout.max_observation_characters
        if longest is not None and max(len(step.observation), len(step.next_observation)) > longest:
            raise _refused("an observation is longer than rollout.max_observation_characters", str(longest), location)
        if step.outcome == CONTINUES and step.reward:
            raise _refused("a step that ends nothing has a reward", "reward 0 where the outcome is continues", location)
        steps.append(step)
    if not any(found.values()):
        raise _refused("it has no row", "a row per transition", str(path))
    return {name: list(episodes.values()) for name, episodes in found.items()}


def given_path(method: Method) -> Path:
    """Where the file is. Raises BadInput where it is not."""
    name = config_of(method).given or ""
    path = possible_path(name, "the file of transitions", where=WHERE, home=True)
    if not path.exists():
        raise BadInput(
            f"there is no file {name} in {Path.cwd()}",
            expected="a file with a row per transition",
            where=WHERE,
            next_step="correct the path: it begins in the folder that crl is started in",
        )
    return path


def _refused(found: str, expected: str, where: str) -> BadInput:
    return BadInput(
        f"the given transitions cannot be read: {found}",
        expected=expected,
        where=where,
        next_step=f"correct the file, or {WHERE}",
    )


def splits_of(method: Method, family: FamilyConfig, episodes: Sequence[Sequence[GivenStep]]) -> list[str]:
    """Whether fits may see each episode: by its seed where that is one of the training seeds, else the last ones of
    these are held out, in the share of `explore.held_out`."""
    seeds = family.train_seeds
    known = [
        (seed := steps[0].environment_seed) is not None and seeds.start <= seed < seeds.start + seeds.count
        for steps in episodes
    ]
    others = known.count(False)
    fit, seen, found = others - config_of(method).held_out(others) if others else 0, 0, []
    for steps, by_seed in zip(episodes, known, strict=True):
        if by_seed:
            found.append(split_of(method, family.name, steps[0].environment_seed or 0))
        else:
            found.append(FIT if seen < fit else HELD_OUT)
            seen += 1
    return found


def transitions_of(task: Task, steps: Sequence[GivenStep], *, split: str, history: int) -> list[Transition]:
    """The rows of an episode's steps."""
    found, shown = [], list[tuple[str, str]]()
    for step in steps:
        followed = Predicted(
            step.next_observation, tuple(step.next_actions), step.outcome, step.reward, step.feedback, step.legal,
            step.reasoning,
        )  # fmt: skip
        situation = Situation(step.goal, history_of(shown, history), step.observation, step.action, step.turn)
        found.append(transition_of(task, situation, step.actions, followed, split=split, policy=GIVEN))
        shown.append((step.observation, step.action))
    return found


class GivenEnvironment:
    """Says what followed in given episodes, whatever is done: a slot per episode."""

    def __init__(self, episodes: Sequence[Sequence[GivenStep]]) -> None:
        self._episodes = episodes
        self._at = [0] * len(episodes)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """The beginning of every episode."""
        self._at = [0] * len(self._episodes)
        return [Start(steps[0].goal, steps[0].observation, _possible(steps[0].actions)) for steps in self._episodes]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """What followed the next step of the slots given."""
        found = {}
        for slot in actions:
            step = self._episodes[slot][self._at[slot]]
            self._at[slot] += 1
            done, success = step.outcome != CONTINUES, step.outcome == SUCCESS
            ended = StopReason.turn_limit if step.outcome == TURN_LIMIT else StopReason.failure
            found[slot] = Step(
                step.next_observation, _possible(step.next_actions), step.legal, step.feedback, done, success,
                step.reward, ended if done and not success else None,
            )  # fmt: skip
        return found

    def answer(self, method: Method, slot: int) -> str:
        """What is done next in a slot, as an answer is worded."""
        step = self._episodes[slot][self._at[slot]]
        return as_answer(method, step.action, _possible(step.actions))

    def oracle(self, slot: int) -> None:
        """Nothing better is known."""

    def close(self) -> None:
        """Nothing is held."""


def _possible(actions: Sequence[str]) -> Actions:
    return tuple(actions) if actions else FreeText("an action")


def given(ctx: StageContext) -> None:
    """Write the file's transitions, and its whole episodes as if the actor had played them."""
    config, found = config_of(ctx.method), episodes_of(ctx.method, given_path(ctx.method))
    transitions: list[Transition] = []
    whole: list[tuple[Task, list[GivenStep]]] = []
    groups: dict[tuple[str, str, str], int] = {}
    for family in ctx.method.families:
        episodes = found[family.name]
        splits = splits_of(ctx.method, family, episodes)
        for number, (steps, split) in enumerate(zip(episodes, splits, strict=True)):
            group = groups.setdefault((family.name, steps[0].goal, steps[0].observation), len(groups))
            task = _task(family, number, group, steps[0])
            transitions += transitions_of(task, steps, split=split, history=config.predict.history)
            if steps[-1].outcome != CONTINUES:
                whole.append((task, steps))
    role, played = scripted_role(ctx, ACTOR), []
    for family in ctx.method.families:
        own = [each for each in whole if each[0].family == family.name]
        for first in range(0, len(own), WAVE):
            wave = own[first : first + WAVE]
            environment = GivenEnvironment([steps for _, steps in wave])
            slots = [EpisodeSlot(task) for task, _ in wave]
            played += demonstrate(ctx, role, environment, slots, partial(environment.answer, ctx.method))
    write_played(ctx, played)
    ctx.write(Transition, transitions)


def _task(family: FamilyConfig, number: int, group: int, first: GivenStep) -> Task:
    start = Start(first.goal, first.observation, ())
    return Task(
        episode_id=f"given-{family.name}-{number:05d}", round=0, family=family.name, group=group, member=number,
        environment_seed=first.environment_seed or 0, stream=GIVEN, goal=first.goal,
        first_observation=first.observation, query=query_of(start), task_digest="",
    )  # fmt: skip
