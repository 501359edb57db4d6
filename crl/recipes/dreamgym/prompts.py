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
from crl.errors import BadInput, PromptTooLong
from crl.protocols import Chat
from crl.recipes.dreamgym.config import ANNOTATE, PREDICT, VARY
from crl.recipes.dreamgym.form import Predicted, predicted_part, written
from crl.recipes.dreamgym.rows import Transition
from crl.text.outputs import Messages, check, messages_of, placeholders

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


def shown_neighbor(row: Transition) -> str:
    """A similar transition as it is shown, with what followed it in the form of an answer."""
    return f"{row.observation}\nAction: {row.action}\n{predicted_part(step_of(row), row.actions)}"


def answer_of(row: Transition, reasoning: str | None) -> str:
    """What the experience model is to write about a real transition."""
    return written(step_of(row, reasoning=reasoning), row.actions)


def check_prompt(name: str, prompt: PromptConfig) -> None:
    """Raise BadInput for a placeholder that nobody fills, and for a prompt without what it is about."""
    for part, template in (("system", prompt.system), ("first", prompt.first)):
        check(template, NAMES[name], where=f"prompts.{name}.{part}")
    shown = placeholders(prompt.system) | placeholders(prompt.first)
    missing = ["{" + each + "}" for each in NEEDED[name] if each not in shown]
    if missing:
        raise BadInput(
            f"the prompt {name} does not show {' or '.join(missing)}",
            expected=" and ".join("{" + each + "}" for each in NEEDED[name]),
            where=f"prompts.{name}.first",
            next_step="add the placeholder where its text should be",
        )


def check_room(chat: Chat, role: RoleConfig, name: str, prompt: PromptConfig, where: str) -> None:
    """Raise PromptTooLong where the prompt fits no output behind it even with nothing filled in."""
    room = role.context - role.sampling.max_new_tokens
    needed = len(chat.opening(messages_of(prompt, dict.fromkeys(NAMES[name], ""))))
    if needed >= room:
        raise PromptTooLong(
            f"the {name} prompt takes {needed} tokens before anything is filled in",
            expected=f"fewer than {room}: the context less {role.sampling.max_new_tokens} new tokens",
            where=f"prompts.{name}",
            next_step=f"shorten the prompt, or raise method.roles.{where}.context",
        )
