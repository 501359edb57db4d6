"""The form of what the experience model writes about a step, and how it is read.

    Reasoning: <one line; left out where nobody says why>
    Observation:
    <the next observation>
    Feedback: <one line; only where something is said about a legal action. Refused: about an illegal one>
    Actions: <a | b; only where other actions are possible than before>
    Outcome: continues | success, reward 1 | failure, reward 0 | turn_limit, reward 0

Blanks at the end of a line are not read.
The reasoning comes first, and what is predicted follows from it: the two parts of the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from crl.recipes.dreamgym.rows import CONTINUES, OUTCOMES

OK = "ok"
_OUTCOME = re.compile(rf"Outcome: ({'|'.join(OUTCOMES)})(?:, reward (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?))?")
_LINE_END = re.compile(r"[ \t]+\n")
_REASONING, _OBSERVATION = "Reasoning: ", "Observation:\n"
_OPTIONAL = ("Feedback:", "Refused:", "Actions:")


@dataclass(frozen=True, slots=True)
class Predicted:
    """What follows an action."""

    observation: str
    actions: tuple[str, ...]
    """What can be done then, by name."""
    outcome: str
    reward: float
    """0 where the episode goes on."""
    feedback: str = ""
    legal: bool = True
    reasoning: str | None = None


def one_line(text: str) -> str:
    """A text without line breaks, words apart by one space."""
    return " ".join(text.split())


def reasoning_part(reasoning: str | None) -> str:
    """The first part of an output; empty where nobody says why."""
    return f"{_REASONING}{one_line(reasoning)}\n" if reasoning and one_line(reasoning) else ""


def predicted_part(step: Predicted, before: Sequence[str]) -> str:
    """The second part: what is predicted. `before` are the actions that were possible."""
    lines = [step.observation]
    ambiguous = step.observation.rpartition("\n")[2].startswith(_OPTIONAL)
    feedback = one_line(step.feedback)
    if feedback or not step.legal or ambiguous:
        lines.append(f"{'Feedback' if step.legal else 'Refused'}: {feedback}")
    if step.outcome == CONTINUES and tuple(step.actions) != tuple(before):
        lines.append("Actions: " + " | ".join(step.actions))
    ended = "" if step.outcome == CONTINUES else f", reward {step.reward:.6g}"
    lines.append(f"Outcome: {step.outcome}{ended}")
    return _OBSERVATION + "\n".join(lines)


def written(step: Predicted, before: Sequence[str]) -> str:
    """The whole output."""
    return reasoning_part(step.reasoning) + predicted_part(step, before)


def _within(reward: float, rewards: tuple[float, float]) -> bool:
    """Whether a reward that was read is one that can be: bounds are written with six digits too, up or down."""
    least, most = rewards
    return min(least, float(f"{least:.6g}")) <= reward <= max(most, float(f"{most:.6g}"))


def read(text: str, before: Sequence[str], rewards: tuple[float, float]) -> tuple[str, Predicted | None]:
    """(reason code, what is predicted): `ok`, or the first thing that is wrong and None.

    `before` are the actions that were possible, `rewards` the least and the largest reward that an episode can have.
    """
    # A tokenizer of words puts a space before every line break.
    reasoning, text = None, _LINE_END.sub("\n", text.strip())
    if text.startswith(_REASONING):
        reasoning, _, text = text.removeprefix(_REASONING).partition("\n")
    if not text.startswith(_OBSERVATION):
        return "no_observation", None
    *lines, last = text.removeprefix(_OBSERVATION).split("\n")
    found = _OUTCOME.fullmatch(last.strip())
    if found is None:
        return "no_outcome", None
    outcome, paid = found.groups()
    if (paid is None) != (outcome == CONTINUES):
        return "no_reward" if paid is None else "reward_too_early", None
    reward = 0.0 if paid is None else float(paid)
    if not (math.isfinite(reward) and (paid is None or _within(reward, rewards))):
        return "reward_out_of_range", None
    actions = tuple(before)
    if lines and lines[-1].startswith("Actions:"):
        actions = tuple(name for each in lines.pop().removeprefix("Actions:").split("|") if (name := each.strip()))
        if bool(actions) != bool(before):
            return "no_actions", None
    feedback, legal = "", True
    if lines and lines[-1].startswith(("Feedback:", "Refused:")):
        word, _, said = lines.pop().partition(":")
        feedback, legal = said.strip(), word == "Feedback"
    observation = "\n".join(lines)
    if not observation.strip():
        return "empty_observation", None
    return OK, Predicted(
        observation,
        actions if outcome == CONTINUES else (),
        outcome,
        reward,
        feedback,
        legal,
        reasoning.strip() or None if reasoning is not None else None,
    )
