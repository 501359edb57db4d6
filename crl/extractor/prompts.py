"""Messages of the extractor's prompts, from the experiment's prompt set.

System text and first user message are templates; the few-shot exchanges between them are shown word for word.

    distill   {goal} {trajectory} {outcome} {experience} {max_operations} {max_characters}
    merge     {family} {entries} {max_characters}
    ask       {goal} {observation} {question} {experience}

`{experience}` is the text that guided the episode, or `none`. `{entries}` is one entry per line, counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crl.config import DistillConfig, PromptConfig, RoleConfig
from crl.errors import BadInput, PromptTooLong
from crl.extractor.trajectory import outcome_text, render_trajectory
from crl.protocols import Chat, Inquiry
from crl.records import Episode, Turn
from crl.text.outputs import Messages, check, messages_of, numbered, placeholders

DISTILL_NAMES = ("goal", "trajectory", "outcome", "experience", "max_operations", "max_characters")
MERGE_NAMES = ("family", "entries", "max_characters")
ASK_NAMES = ("goal", "observation", "question", "experience")
NO_EXPERIENCE = "none"

NO_OWN: Mapping[str, PromptConfig] = {}
"""Prompts of task families that have one of their own, by family: there are none."""
Prompts = Mapping[str, PromptConfig]
"""Prompts by name; those of the extractor are `distill`, `merge` and, where questions are answered, `ask`."""


def check_prompts(prompts: Prompts) -> None:
    """Raise BadInput, naming the prompt and its part, for a placeholder the extractor does not fill, and for a prompt
    `ask` that shows no question or no experience."""
    for name, prompt, allowed in _prompts(prompts):
        for part, template in (("system", prompt.system), ("first", prompt.first)):
            check(template, allowed, where=f"prompts: {name}.{part}")
    if "ask" in prompts:
        ask = prompts["ask"]
        shown = placeholders(ask.system) | placeholders(ask.first)
        missing = [name for name in ("question", "experience") if name not in shown]
        if missing:
            raise BadInput(
                f"the prompt that answers questions does not show {' or '.join('{' + name + '}' for name in missing)}",
                expected="{question} and {experience}",
                where="prompts: ask.first",
                next_step="add the placeholder where its text should be",
            )


def check_room(chat: Chat, role: RoleConfig, prompts: Prompts) -> None:
    """Raise PromptTooLong where a prompt fits no output behind it even with nothing filled in."""
    room = role.context - role.sampling.max_new_tokens
    for name, prompt, names in _prompts(prompts):
        needed = len(chat.opening(messages_of(prompt, dict.fromkeys(names, ""))))
        if needed >= room:
            raise PromptTooLong(
                f"the {name} prompt takes {needed} tokens before anything is filled in",
                expected=f"fewer than {room}: the context less {role.sampling.max_new_tokens} new tokens",
                where=f"prompts: {name}",
                next_step="shorten the prompt, or raise method.roles.extractor.context",
            )


def distill_messages(
    prompt: PromptConfig, episode: Episode, turns: Sequence[Turn], config: DistillConfig, budget: int | None = None
) -> Messages:
    """The prompt to distill one episode; its trajectory takes at most `budget` characters (None: all of it)."""
    return messages_of(
        prompt,
        {
            "goal": episode.goal,
            "trajectory": render_trajectory(turns, episode.last_observation, budget).text,
            "outcome": outcome_text(episode),
            "experience": episode.experience if episode.experience is not None else NO_EXPERIENCE,
            "max_operations": str(config.max_operations),
            "max_characters": str(config.max_characters),
        },
    )


def merge_messages(prompt: PromptConfig, family: str, texts: Sequence[str], config: DistillConfig) -> Messages:
    """The prompt to merge a chunk of entries of one task family."""
    return messages_of(
        prompt, {"family": family, "entries": numbered(texts), "max_characters": str(config.max_characters)}
    )


def ask_messages(prompt: PromptConfig, inquiry: Inquiry, experience: str) -> Messages:
    """The prompt to answer one question from the entry that was found for it."""
    return messages_of(
        prompt,
        {
            "goal": inquiry.goal,
            "observation": inquiry.observation,
            "question": inquiry.question,
            "experience": experience,
        },
    )


def _prompts(prompts: Prompts) -> list[tuple[str, PromptConfig, tuple[str, ...]]]:
    """Each prompt that the extractor has, with the names it fills in."""
    names = {"distill": DISTILL_NAMES, "merge": MERGE_NAMES, "ask": ASK_NAMES}
    return [(name, prompts[name], filled) for name, filled in names.items() if name in prompts]
