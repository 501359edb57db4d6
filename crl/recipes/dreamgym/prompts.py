"""What the experience model reads.

The prompt `predict` is filled by name:

    {goal} {neighbors} {history} {observation} {action} {turn}

`{neighbors}` are similar transitions with what really followed them, in the form of an answer, or `none`; `{history}`
earlier turns of the episode, or `none`; `{turn}` counts from 1. `vary` has {goal} and {observation} of the task that a
new one is made of, `annotate` {goal} {observation} {action} {outcome}: a real transition, what followed it in the form
of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crl.config import PromptConfig, RoleConfig
from crl.protocols import Chat
from crl.recipes.dreamgym.config import ANNOTATE, PREDICT, VARY
from crl.recipes.dreamgym.form import Predicted, one_line, predicted_part, written
from crl.recipes.dreamgym.rows import REAL, Transition
from crl.records import SYNTHETIC, Task
from crl.text import outputs
from crl.text.outputs import Messages, messages_of

NAMES = {
    PREDICT: ("goal", "neighbors", "history", "observation", "action", "turn"),
    VARY: ("goal", "observation"),
    ANNOTATE: ("goal", "observation", "action", "outcome"),
}
NEEDED = {PREDICT: ("observation", "action"), VARY: ("observation",), ANNOTATE: ("observation", "action", "outcome")}
NONE = "none"


@dataclass(frozen=True, slots=True)
class Situation:
    """What a prediction is about: a state, what led to it, and an action."""

    goal: str
    history: Sequence[str]
    observation: str
    action: str
    turn: int
    """From 0."""

    @property
    def query(self) -> str:
        """State and action: what the store is searched by."""
        return state_action(self.observation, self.action)


def situation_of(row: Transition) -> Situation:
    """That of a transition."""
    return Situation(row.goal, row.history, row.observation, row.action, row.turn)


def state_action(observation: str, action: str) -> str:
    """The text that is embedded of a transition."""
    return f"{observation}\n{action}"


def step_of(row: Transition, *, reasoning: str | None = None) -> Predicted:
    """What followed in a transition."""
    return Predicted(
        row.next_observation, tuple(row.next_actions), row.outcome, row.reward, row.feedback, row.legal, reasoning
    )


def transition_of(
    task: Task,
    situation: Situation,
    actions: Sequence[str],
    followed: Predicted,
    *,
    split: str,
    policy: str,
    prediction_id: str | None = None,
) -> Transition:
    """The row of a step: a real one, or one that a prediction made. `actions` are those that were possible."""
    reasoning = one_line(followed.reasoning or "") or None
    said_by = "environment" if prediction_id is None else "model"
    return Transition(
        transition_id=f"t-{task.episode_id}-{situation.turn}",
        round=task.round,
        source=REAL if prediction_id is None else SYNTHETIC,
        split=split,
        policy=policy,
        family=task.family,
        environment_seed=task.environment_seed,
        episode_id=task.episode_id,
        turn=situation.turn,
        goal=task.goal,
        history=list(situation.history),
        observation=situation.observation,
        action=situation.action,
        actions=list(actions),
        reasoning=reasoning,
        reasoning_source="none" if reasoning is None else said_by,
        next_observation=followed.observation,
        next_actions=list(followed.actions),
        feedback=followed.feedback,
        legal=followed.legal,
        outcome=followed.outcome,
        reward=followed.reward,
        prediction_id=prediction_id,
    )


def predict_messages(prompt: PromptConfig, situation: Situation, neighbors: Sequence[Transition]) -> Messages:
    """The prompt for one step."""
    turns = [f"{seen}\nAction: {done}" for seen, done in zip(*[iter(situation.history)] * 2, strict=True)]
    return messages_of(
        prompt,
        {
            "goal": situation.goal,
            "neighbors": "\n\n".join(map(shown_neighbor, neighbors)) or NONE,
            "history": "\n".join(turns) or NONE,
            "observation": situation.observation,
            "action": situation.action,
            "turn": str(situation.turn + 1),
        },
    )


def fitted(
    chat: Chat, prompt: PromptConfig, situation: Situation, neighbors: list[Transition], room: int
) -> tuple[Messages, list[int], list[Transition]]:
    """The prompt for one step with as many neighbors as fit into `room` tokens, the nearest ones; without any it may be
    too long all the same."""
    while True:
        messages = predict_messages(prompt, situation, neighbors)
        token_ids = list(chat.opening(messages))
        if len(token_ids) <= room or not neighbors:
            return messages, token_ids, neighbors
        neighbors = neighbors[:-1]


def shown_neighbor(row: Transition) -> str:
    """A similar transition as it is shown, with what followed it in the form of an answer."""
    return f"{row.observation}\nAction: {row.action}\n{predicted_part(step_of(row), row.actions)}"


def answer_of(row: Transition, reasoning: str | None) -> str:
    """What the experience model is to write about a real transition."""
    return written(step_of(row, reasoning=reasoning), row.actions)


def check_prompt(name: str, prompt: PromptConfig) -> None:
    """Raise BadInput for a placeholder that nobody fills, and for a prompt without what it is about."""
    outputs.check_prompt(prompt, NAMES[name], what=f"the {name} prompt", where=f"prompts.{name}", needed=NEEDED[name])


def check_room(chat: Chat, role: RoleConfig, name: str, prompt: PromptConfig, owner: str) -> None:
    """Raise PromptTooLong where the prompt fits no output behind it even with nothing filled in."""
    outputs.check_room(
        chat, prompt, NAMES[name], what=f"the {name} prompt", where=f"prompts.{name}", role=owner,
        context=role.context, new=role.sampling.max_new_tokens,
    )  # fmt: skip
