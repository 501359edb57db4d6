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
from crl.extractor.trajectory import outcome_text, render_trajectory
from crl.protocols import Chat, Inquiry
from crl.records import Episode, Turn, numbered
from crl.text import outputs
from crl.text.outputs import Messages, messages_of

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
        needed = ("question", "experience") if name == "ask" else ()
        outputs.check_prompt(prompt, allowed, what=f"the {name} prompt", where=f"prompts: {name}", needed=needed)


def check_room(chat: Chat, role: RoleConfig, prompts: Prompts) -> None:
    """Raise PromptTooLong where a prompt fits no output behind it even with nothing filled in."""
    for name, prompt, names in _prompts(prompts):
        outputs.check_room(
            chat, prompt, names, what=f"the {name} prompt", where=f"prompts: {name}", role="extractor",
            context=role.context, new=role.sampling.max_new_tokens,
        )  # fmt: skip


def distill_messages(
    prompt: PromptConfig,
    episode: Episode,
    turns: Sequence[Turn],
    config: DistillConfig,
    budget: int | None = None,
    outcome: str | None = None,
) -> Messages:
    """The prompt to distill one episode; its trajectory takes at most `budget` characters (None: all of it). `outcome`
    stands for what the episode says of its own."""
    return messages_of(
        prompt,
        {
            "goal": episode.goal,
            "trajectory": render_trajectory(turns, episode.last_observation, budget).text,
            "outcome": outcome_text(episode) if outcome is None else outcome,
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
