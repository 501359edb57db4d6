"""The experience model as an environment: the same protocol, the same rollouts.

A step asks the model once. It is shown the task, earlier turns, the state, the action, and similar transitions of the
store; what it writes as reasoning reaches no actor. An output that is malformed, or names a reward outside the range of
real episodes, ends the episode with its reason code: such an episode is kept and trains nothing. An action that is none
of those named is answered by a rule and spends the turn. Reward comes at the end only. An episode has at most as many
turns as the real environment allows, or where nobody says, as the longest real one in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crl.errors import CrlError, StageFailed
from crl.faults import broke, of_run
from crl.protocols import Actions, Start, Step, StopReason
from crl.recipes.dreamgym.explore import history_of
from crl.recipes.dreamgym.form import Predicted
from crl.recipes.dreamgym.predicting import Answered, Asked, ExperienceModel, prediction_row
from crl.recipes.dreamgym.prompts import Situation, transition_of
from crl.recipes.dreamgym.rows import CONTINUES, NEITHER, SUCCESS, TURN_LIMIT, Prediction, Transition
from crl.records import Generation, Task
from crl.rollout.actions import named_actions

Neighbors = Callable[[str, Sequence[Situation]], list[list[Transition]]]
"""From a task family and situations to the transitions that each is shown."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What real episodes of a family say about episodes of the model."""

    turns: int
    """Most turns of an episode."""
    rewards: tuple[float, float]
    """Least and largest reward of an episode."""
    failure: float
    """Reward of an episode that a limit ends, whether or not the model knew of it."""


@dataclass(slots=True)
class _Slot:
    task: Task
    start: Start
    observation: str
    actions: Actions
    shown: list[tuple[str, str]] = field(default_factory=list)
    done: bool = False

    @property
    def turn(self) -> int:
        return len(self.shown)


class DreamEnvironment:
    """A wave of episodes in the experience model (protocol `Environment`), one per task, in their order."""

    steps_together = True
    """Slots that step at one time are predicted as one batch."""
    spans_families = True

    def __init__(
        self,
        model: ExperienceModel,
        tasks: Sequence[Task],
        starts: Sequence[Start],
        *,
        neighbors: Neighbors,
        rules: Mapping[str, Rules],
        history: int,
        round_number: int,
    ) -> None:
        """`starts` are those of the real environment, which gives the first actions; goal and first observation are
        the task's. `rules` are by task family. `history` is the number of earlier turns that the model is shown."""
        self._model, self._tasks, self._starts = model, list(tasks), list(starts)
        self._neighbors, self._rules, self._history = neighbors, rules, history
        self._round = round_number
        self._slots: list[_Slot] = []
        self.predictions: list[Prediction] = []
        self.transitions: list[Transition] = []
        self.generations: list[Generation] = []

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start the episodes of the tasks, whose seeds these are."""
        if list(seeds) != [task.environment_seed for task in self._tasks]:
            raise ValueError("these are not the seeds of the tasks")
        self._slots = [
            _Slot(task, start, task.first_observation, start.actions)
            for task, start in zip(self._tasks, self._starts, strict=True)
        ]
        return [Start(slot.task.goal, slot.observation, slot.actions, slot.start.error) for slot in self._slots]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """What the model says follows an action, in each slot given. Stepping a done slot raises RuntimeError.

        Raises StageFailed where the model or the store cannot be asked.
        """
        for slot in actions:
            if self._slots[slot].done:
                raise RuntimeError(f"slot {slot} is done; reset before stepping it again")
        steps: dict[int, Step] = {}
        asked: dict[int, Asked] = {}
        for slot, action in actions.items():
            state = self._slots[slot]
            named = named_actions(state.actions)
            if action is None or (named and action not in named):
                steps[slot] = self._refused(state, named)
            else:
                asked[slot] = self._asked(state, action, named)
        # A rollout takes what an environment raises for the end of its episodes. This is the engine that failed: the
        # stage ends, and the cause says whether in a new engine it may succeed (`crl/engine/failures.py`).
        with of_run():
            try:
                predictions = self._predicted(asked)
            except (CrlError, MemoryError):
                raise
            except Exception as error:
                raise StageFailed(
                    f"the experience model could not be asked: {type(error).__name__}: {error}",
                    where=f"episodes from {self._tasks[0].episode_id} on",
                    next_step="read the traceback in the log; nothing was kept of the stage, and `crl resume` runs it",
                ) from error
        for slot, answered in zip(asked, predictions, strict=True):
            self.generations.append(answered.generation)
            self.predictions.append(prediction_row(answered, self._round))
            steps[slot] = self._step(self._slots[slot], answered)
        return {slot: steps[slot] for slot in actions}

    def rows(self) -> tuple[list[Transition], list[Prediction], list[Generation]]:
        """What was predicted so far, by turn and slot, in whatever order the actor took its turns."""
        slot_of = {task.episode_id: slot for slot, task in enumerate(self._tasks)}

        def place(row: Transition | Prediction) -> tuple[int, int]:
            return row.turn, slot_of[row.episode_id]

        asked = sorted(zip(self.predictions, self.generations, strict=True), key=lambda each: place(each[0]))
        return sorted(self.transitions, key=place), [row for row, _ in asked], [record for _, record in asked]

    def oracle(self, slot: int) -> str | None:
        """None: the model plays no move."""
        return None

    def close(self) -> None:
        """Nothing is held."""
        self._slots = []

    def _refused(self, state: _Slot, named: Sequence[str]) -> Step:
        state.shown.append((state.observation, ""))
        rules = self._rules[state.task.family]
        over = state.done = state.turn >= rules.turns
        possible = f" Possible: {', '.join(named)}." if named else ""
        return Step(
            state.observation,
            () if over and named else state.actions,
            False,
            f"That names no possible action.{possible}",
            over,
            False,
            rules.failure,
            StopReason.turn_limit if over else None,
        )

    def _predicted(self, asked: Mapping[int, Asked]) -> list[Answered]:
        """What the model says of each slot, shown what the store has of its family."""
        by_family: dict[str, list[int]] = {}
        for slot in asked:
            by_family.setdefault(asked[slot].family, []).append(slot)
        for family, slots in by_family.items():
            near = self._neighbors(family, [asked[slot].situation for slot in slots])
            for slot, rows in zip(slots, near, strict=True):
                asked[slot].neighbors.extend(rows)
        return self._model.predict(list(asked.values()))

    def _asked(self, state: _Slot, action: str, named: tuple[str, ...]) -> Asked:
        task = state.task
        situation = Situation(task.goal, history_of(state.shown, self._history), state.observation, action, state.turn)
        rewards = self._rules[task.family].rewards
        return Asked(f"{task.episode_id}-{state.turn}", task.family, task.episode_id, situation, named, [], rewards)

    def _step(self, state: _Slot, answered: Answered) -> Step:
        predicted, action = answered.predicted, answered.asked.situation.action
        if predicted is None:
            state.done = True
            return broke(f"prediction_{answered.reason_code}")
        self.transitions.append(self._row(state, answered, predicted))
        state.shown.append((state.observation, action))
        outcome, reward, rules = predicted.outcome, predicted.reward, self._rules[state.task.family]
        if outcome == CONTINUES:
            # What the episode is worth if it ends here: at the turn limit, or where the actor's context is full.
            reward = rules.failure
            outcome = TURN_LIMIT if state.turn >= rules.turns else CONTINUES
        state.done = outcome != CONTINUES
        state.observation = predicted.observation
        named = answered.asked.actions
        if named:
            state.actions = () if state.done else predicted.actions
        success = outcome == SUCCESS
        stop = {SUCCESS: StopReason.success, TURN_LIMIT: StopReason.turn_limit, CONTINUES: None}
        return Step(
            predicted.observation,
            state.actions,
            predicted.legal,
            predicted.feedback,
            state.done,
            success,
            reward,
            stop.get(outcome, StopReason.failure),
        )

    def _row(self, state: _Slot, answered: Answered, predicted: Predicted) -> Transition:
        asked = answered.asked
        return transition_of(
            state.task, asked.situation, asked.actions, predicted, split=NEITHER, policy="actor",
            prediction_id=f"p-{asked.name}",
        )  # fmt: skip
