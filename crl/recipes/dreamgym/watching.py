"""Real transitions: an environment that is watched while it is played, and the rows of what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crl.protocols import Environment, Explains, Start, Step, StopReason
from crl.recipes.dreamgym.form import one_line
from crl.recipes.dreamgym.rows import CONTINUES, FAILURE, REAL, SUCCESS, TURN_LIMIT, Transition
from crl.records import Task
from crl.rollout.actions import named_actions
from crl.rollout.environments import Readable


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
            explained = one_line(why or "") or None
            found.append(
                Transition(
                    transition_id=f"t-{task.episode_id}-{turn}",
                    round=task.round,
                    source=REAL,
                    split=split,
                    policy=policy,
                    family=task.family,
                    environment_seed=task.environment_seed,
                    episode_id=task.episode_id,
                    turn=turn,
                    goal=task.goal,
                    history=history_of(shown, history),
                    observation=observation,
                    action=action,
                    actions=list(names),
                    reasoning=explained,
                    reasoning_source="none" if explained is None else "environment",
                    next_observation=step.observation,
                    next_actions=list(named_actions(step.actions)),
                    feedback=step.feedback,
                    legal=step.legal,
                    outcome=outcome_of(step),
                    reward=step.reward if step.done else 0.0,
                    prediction_id=None,
                )
            )
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
