"""What the actor reads: messages filled from the templates of a `PromptConfig`, and the check of these templates.

Placeholders are filled by name in one pass (`crl/text/outputs.py`), so braces in observations and experiences stay as
they are. The experience comes last before the first observation, or at the end of the system text (`placement`, section
2 of the method notes): with `user`, guided and free members of a group share everything before it. A reflection stands
instead of the system text (`instructions`), whatever the setting. The extractor's
templates are filled and checked in `crl/extractor/prompts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from crl.config import PromptConfig
from crl.errors import BadInput
from crl.protocols import Actions, Chat, Start, ToolCalls
from crl.text.calls import actions_text
from crl.text.outputs import check, conversation, fill, placeholders

Placement = Literal["system", "user", "instructions"]
"""Where an experience is shown; with `instructions` it replaces the system text."""

SYSTEM_NAMES = frozenset({"goal", "actions"})
FIRST_NAMES = frozenset({"goal", "actions", "experience", "observation"})
FOLLOWING_NAMES = frozenset({"goal", "actions", "feedback", "observation"})
_EXPERIENCE_LAST = re.compile(r"\{experience\}[^{}]*\{observation\}")


def _require(template: str, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in placeholders(template)]
    if missing:
        raise BadInput(
            f"a prompt template lacks {', '.join('{' + name + '}' for name in missing)}",
            expected=", ".join("{" + name + "}" for name in names),
            where=where,
            next_step="add the placeholder where its text should be",
        )


def check_prompts(prompts: Mapping[str, PromptConfig], placement: Placement = "user") -> None:
    """Raise BadInput for an actor template with an unknown placeholder, without a necessary one, or in the wrong order.

    With `placement: user`, the actor's `first` must hold `{experience}` before `{observation}` with no placeholder
    between them, each once.
    """
    actor = prompts["actor"]
    check(actor.system, SYSTEM_NAMES, "prompts.actor.system")
    check(actor.first, FIRST_NAMES, "prompts.actor.first")
    check(actor.following, FOLLOWING_NAMES, "prompts.actor.following")
    check(actor.experience, {"experience"}, "prompts.actor.experience")
    check(actor.summarize or "", {"goal"}, "prompts.actor.summarize")
    if "ask" in prompts:
        check(prompts["ask"].offer, (), "prompts.ask.offer")
    _require(actor.first, ("observation",), "prompts.actor.first")
    _require(actor.following, ("feedback", "observation"), "prompts.actor.following")
    _require(actor.experience, ("experience",), "prompts.actor.experience")
    if placement == "user":
        _require(actor.first, ("experience",), "prompts.actor.first")
        once = actor.first.count("{experience}") == 1 and actor.first.count("{observation}") == 1
        if not once or not _EXPERIENCE_LAST.search(actor.first):
            raise BadInput(
                "the experience does not come last before the first observation",
                expected="{experience} once, directly before {observation}: guided and free members of a group share "
                "everything before it",
                where="prompts.actor.first",
                next_step="move {experience} in front of {observation}, or set rollout.placement to system",
            )


def actor_messages(
    prompt: PromptConfig,
    *,
    goal: str,
    observation: str,
    actions: Actions,
    experience: str | None,
    placement: Placement,
    offer: str = "",
    takes_tools: bool = False,
    own: Sequence[tuple[str, str]] = (),
) -> list[dict[str, str]]:
    """Messages of a first prompt: system, example exchanges, first user message. None shows no experience.

    `offer` (search-and-ask) is directly behind the experience; a free episode, which has none, is offered nothing.
    `takes_tools`: the chat's own template shows the tools of the environment, so the messages only name them. `own`:
    messages of the environment (`Start.messages`).
    """
    shown = "" if experience is None else fill(prompt.experience, {"experience": experience}) + offer
    values = {"goal": goal, "actions": actions_text(actions, takes_tools=takes_tools)}
    if placement == "instructions" and experience is not None:
        system = experience
    elif own and own[0][0] == "system":
        system = own[0][1]
    else:
        system = fill(prompt.system, values)
    if placement == "system" and shown:
        system = f"{system}\n{shown.rstrip()}".lstrip("\n")
    in_user = shown if placement == "user" else ""
    first = fill(prompt.first, {**values, "experience": in_user, "observation": observation})
    earlier = [{"role": role, "content": text} for role, text in own if role != "system"]
    *before, asked = conversation(prompt, system, first)
    return [*before, *earlier, asked]


def opened(
    chat: Chat, prompt: PromptConfig, start: Start, *, experience: str | None, placement: Placement, offer: str = ""
) -> tuple[list[dict[str, str]], list[int]]:
    """An episode's first prompt: its messages (:func:`actor_messages`) and its ids."""
    tools = start.actions.tools if isinstance(start.actions, ToolCalls) and chat.takes_tools else ()
    messages = actor_messages(
        prompt,
        goal=start.goal,
        observation=start.observation,
        actions=start.actions,
        experience=experience,
        placement=placement,
        offer=offer,
        takes_tools=bool(tools),
        own=start.messages,
    )
    return messages, list(chat.opening(messages, tools) if tools else chat.opening(messages))


def following_text(
    prompt: PromptConfig, *, goal: str, observation: str, actions: Actions, feedback: str, takes_tools: bool = False
) -> str:
    """A later user message; non-empty feedback ends its line so that it may be directly before the observation."""
    line = f"{feedback}\n" if feedback else ""
    shown = actions_text(actions, takes_tools=takes_tools)
    return fill(prompt.following, {"goal": goal, "observation": observation, "actions": shown, "feedback": line})
