"""Stage `explore`: real episodes for the experience model, and what they did as transitions.

The first ones are played at random or by the actor, later ones by the actor of the round before: its states are those
that the model will be asked about. A share of them is played on the training seeds that no fit sees. Parts are waves.
An environment is watched while it is played (:class:`Watched`), and the rows of what it did are real transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from crl.config import FamilyConfig, Method
from crl.protocols import Environment, Explains, Start, Step, StopReason
from crl.recipes.dreamgym.config import ACTOR, config_of
from crl.recipes.dreamgym.corpus import CORPUS
from crl.recipes.dreamgym.form import Predicted
from crl.recipes.dreamgym.prompts import Situation, transition_of
from crl.recipes.dreamgym.rows import CONTINUES, EXPLORED, FAILURE, SUCCESS, TURN_LIMIT, Transition
from crl.recipes.dreamgym.store import split_of
from crl.records import Task
from crl.rollout.actions import named_actions
from crl.rollout.environments import Readable
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import as_answer, demonstrate, scripted_role, shares
from crl.rounds.stage import Recipe
from crl.rounds.tasks import task_of
from crl.rounds.waves import kept_environment, play_with_actor, starts_of, write_played
from crl.rounds.weights import weights_of

EXPLORE = "explore"


@dataclass(slots=True)
class Seen:
    """What a slot showed so far."""

    start: Start
    steps: list[tuple[str | None, Step, str | None]] = field(default_factory=list)
    """Action, what the environment answered, and why, where it explains itself."""


class Watched:
    """A wave of another environment (protocol `Environment`) that remembers what every slot did."""

    def __init__(self, environment: Environment, longest: int | None = None) -> None:
        """`longest`: most characters that are shown at one time (:class:`Readable`)."""
        self._environment = Readable(environment, longest)
        self._explains = environment if isinstance(environment, Explains) else None
        self.seen: list[Seen] = []

    @property
    def steps_together(self) -> bool:
        """Whether the environment is given all slots in one call."""
        return self._environment.steps_together

    @property
    def steps_apart(self) -> bool:
        """Whether slots may be stepped in several threads."""
        return self._environment.steps_apart

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per seed."""
        starts = self._environment.reset_many(seeds)
        self.seen = [Seen(start) for start in starts]
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given."""
        steps = self._environment.step_many(actions)
        for slot, step in steps.items():
            why = self._explains.why(slot) if self._explains is not None and step.error is None else None
            self.seen[slot].steps.append((actions[slot], step, why))
        return steps

    def ended(self, slots: Sequence[int]) -> None:
        """Hand on which episodes are over, whoever ended them."""
        self._environment.ended(slots)

    def shown(self, slot: int) -> tuple[str, ...]:
        """What can be done now in a slot, by name; none where actions are text."""
        seen = self.seen[slot]
        return named_actions(seen.steps[-1][1].actions if seen.steps else seen.start.actions)

    def oracle(self, slot: int) -> str | None:
        """A good next action."""
        return self._environment.oracle(slot)

    def close(self) -> None:
        """Nothing: the environment belongs to who lent it."""


def real_transitions(task: Task, seen: Seen, *, split: str, policy: str, history: int) -> list[Transition]:
    """The steps of an episode as rows: without those whose action named nothing, or in which the environment broke.

    `history` is the number of earlier turns that each has with it. A wrong name of an action is answered by a rule
    (`environment.py`), so the experience model need not learn what follows it.
    """
    found: list[Transition] = []
    shown: list[tuple[str, str]] = []
    observation, actions = seen.start.observation, seen.start.actions
    for turn, (action, step, why) in enumerate(seen.steps):
        names = named_actions(actions)
        if step.error is None and step.observation.strip() and action is not None and (not names or action in names):
            followed = Predicted(
                step.observation, named_actions(step.actions), outcome_of(step), step.reward if step.done else 0.0,
                step.feedback, step.legal, why,
            )  # fmt: skip
            situation = Situation(task.goal, history_of(shown, history), observation, action, turn)
            found.append(transition_of(task, situation, names, followed, split=split, policy=policy))
        shown.append((observation, action or ""))
        observation, actions = step.observation, step.actions
    return found


def history_of(shown: Sequence[tuple[str, str]], turns: int) -> list[str]:
    """The last turns as they are shown: observation, action, observation, …"""
    return [text for each in shown[len(shown) - turns if turns < len(shown) else 0 :] for text in each] if turns else []


def outcome_of(step: Step) -> str:
    """How a step leaves its episode."""
    if not step.done:
        return CONTINUES
    if step.success:
        return SUCCESS
    return TURN_LIMIT if step.stop_reason is StopReason.turn_limit else FAILURE


def fitted_before(recipe: Recipe, method: Method, round_number: int) -> bool:
    """Whether the experience model was fitted in an earlier round; in a fork also by the run it goes on from."""
    return any(recipe.resolve(method, number, CORPUS, 0) is not None for number in range(1, round_number))


def explorer(recipe: Recipe, method: Method, round_number: int) -> str:
    """Who plays: `random` or `actor`."""
    return ACTOR if fitted_before(recipe, method, round_number) else config_of(method).explore.policy


def seeds_of(ctx: StageContext, family: FamilyConfig, count: int) -> list[int]:
    """Training seeds of `count` episodes: those that fits may see, then those that none does."""
    config, own = config_of(ctx.method), family.train_seeds
    border = config.held_out_from(own.start, own.count)
    held_out = config.held_out(count)
    generator = np.random.default_rng(ctx.seed(family.name))
    seen = own.start + generator.integers(border - own.start, size=count - held_out)
    unseen = border + generator.integers(own.start + own.count - border, size=held_out)
    return [int(seed) for seed in (*seen, *unseen)]


def waves(ctx: StageContext) -> list[tuple[FamilyConfig, list[tuple[int, int]]]]:
    """The episodes of the stage in waves of one family, (group, seed) of each. Groups come after those of the batch."""
    config = config_of(ctx.method).explore
    episodes = config.further if fitted_before(ctx.recipe, ctx.method, ctx.round) else config.first
    width = ctx.method.rollout.wave_groups * ctx.method.rollout.group_size
    group = sum(family.groups for family in ctx.method.families)
    found = []
    for family, count in shares(episodes, ctx.method.families):
        numbered = [(group + index, seed) for index, seed in enumerate(seeds_of(ctx, family, count))] if count else []
        group += count
        found += [(family, numbered[at : at + width]) for at in range(0, count, width)]
    return found


def count_parts(ctx: StageContext) -> int:
    """Waves of the stage; one that is empty where nothing is explored."""
    return max(1, len(waves(ctx)))


def explore_part(ctx: StageContext, part: int) -> None:
    """Play one wave and write what it did."""
    planned = waves(ctx)[part : part + 1]
    if not planned:
        return
    [(family, numbered)] = planned
    tasks = _tasks(ctx, family, numbered)
    slots = [EpisodeSlot(task) for task in tasks]
    watched, policy = watched_wave(ctx, slots), explorer(ctx.recipe, ctx.method, ctx.round)
    if policy == "random":
        with ctx.timed("play", len(slots)):
            played = _by_chance(ctx, watched, slots, part)
    else:
        played = play_with_actor(ctx, slots, environment=watched)
    write_played(ctx, played)
    ctx.write(Transition, transitions_of(ctx, tasks, watched, policy))


def watched_wave(ctx: StageContext, slots: Sequence[EpisodeSlot]) -> Watched:
    """The real environment of a wave, watched; where it keeps steps, with those of an earlier attempt at the wave."""
    environment: Environment = ctx.environment(slots[0].task.family)
    # Of a step that it did not take, it cannot say why it went so: one that explains itself takes them all again.
    if not isinstance(environment, Explains):
        environment = kept_environment(ctx, slots, weights_of(ctx, ACTOR).weights_digest)
    return Watched(environment, ctx.method.rollout.max_observation_characters)


def transitions_of(ctx: StageContext, tasks: Sequence[Task], watched: Watched, policy: str) -> list[Transition]:
    """The rows of what a watched wave did."""
    history = config_of(ctx.method).predict.history
    return [
        row
        for task, seen in zip(tasks, watched.seen, strict=True)
        for row in real_transitions(
            task, seen, split=split_of(ctx.method, task.family, task.environment_seed), policy=policy, history=history
        )
    ]


def _tasks(ctx: StageContext, family: FamilyConfig, numbered: Sequence[tuple[int, int]]) -> list[Task]:
    starts = starts_of(ctx, [(family.name, seed) for _, seed in numbered], played_here=True)
    return [
        task_of(
            ctx, start, episode_id=f"r{ctx.round:04d}-{family.name}-x{group:05d}", family=family.name, group=group,
            environment_seed=seed, stream=EXPLORED,
        )
        for (group, seed), start in zip(numbered, starts, strict=True)
    ]  # fmt: skip


def _by_chance(ctx: StageContext, watched: Watched, slots: Sequence[EpisodeSlot], part: int) -> list[PlayedEpisode]:
    """Random legal actions; where a page lists none, nothing."""
    random = np.random.default_rng(ctx.seed("random", part))

    def move(row: int) -> str:
        legal = watched.shown(row)
        return as_answer(ctx.method, str(random.choice(legal)) if legal else "")

    return demonstrate(ctx, scripted_role(ctx, ACTOR), watched, slots, move)
