"""What the reflector reads, and what its output says.

The prompt `reflect` is filled by name:

    {goal} {instructions} {trajectory} {feedback} {outcome} {reward} {memory} {max_characters}

`{instructions}` is the system text that the attempt went by; `{trajectory}` every turn with what the environment said
about it, `{feedback}` what it said about the whole; `{memory}` earlier reflections that led to a success, each between
the attempt that it was about and the one that it led to, or `none`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crl.config import Method, PromptConfig, RoleConfig
from crl.extractor.trajectory import cut, outcome_text, render_trajectory
from crl.protocols import Chat
from crl.recipes.erl.config import ACTOR, LONGEST_ATTEMPT, REFLECT, REFLECTOR, ReflectConfig, config_of
from crl.records import Episode, Turn, shown_text
from crl.rollout.play import feedback_of
from crl.rollout.prompts import check_prompts
from crl.rounds.ready import chat_of, check_actor_room
from crl.run.manifest import key_of
from crl.text.answers import after_thoughts, text_flaw
from crl.text.outputs import Messages, Output, check_prompt, check_room, messages_of

NAMES = ("goal", "instructions", "trajectory", "feedback", "outcome", "reward", "memory", "max_characters")
NO_MEMORY = "none"
OK = "ok"
PROMPT_TOO_LONG = "prompt_too_long"
_TAGGED = re.compile(r"<instructions>(.*?)</instructions>", re.DOTALL | re.IGNORECASE)
_CUT = re.compile(r"<instructions>(.*?)(?:</instructions>|(?:</[a-z]*)?\Z)", re.DOTALL | re.IGNORECASE)
"""As it is in an output that the length limit ended: the last tag may be open, or half closed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode that is reflected on."""

    episode: Episode
    turns: tuple[Turn, ...]
    instructions: str
    """System text that it went by."""

    @property
    def feedback(self) -> str:
        """What the environment said about the whole of it."""
        return feedback_of(self.episode, self.turns)

    def text(self, longest: int) -> str:
        """Its turns and what was said about the whole, in at most `longest` characters."""
        result = cut(f"Result: {self.feedback}", longest // 3)
        room = longest - len(result) - 1
        return f"{render_trajectory(self.turns, self.episode.last_observation, room).text}\n{result}"


@dataclass(frozen=True, slots=True)
class Memory:
    """An entry of the memory, as it is shown."""

    reflection: str
    first: str | None = None
    """The attempt that it is about; None where the entry keeps none."""
    revised: str | None = None
    """The one that it led to."""

    def text(self, longest: int) -> str:
        """The reflection, between its attempts where they are kept: of each at most `longest` characters."""
        if self.first is None or self.revised is None:
            return self.reflection
        first, revised = cut(self.first, longest), cut(self.revised, longest)
        return f"Attempt:\n{first}\nReflection:\n{self.reflection}\nRevised attempt:\n{revised}"


def reflect_messages(
    prompt: PromptConfig, attempt: Attempt, memory: Sequence[Memory], config: ReflectConfig, budget: int | None = None
) -> Messages:
    """The prompt to reflect on one attempt; its trajectory, and each attempt of the memory, takes at most `budget`
    characters (None: all of it)."""
    episode = attempt.episode
    shown = [each.text(LONGEST_ATTEMPT if budget is None else budget) for each in memory]
    return messages_of(
        prompt,
        {
            "goal": episode.goal,
            "instructions": attempt.instructions,
            "trajectory": render_trajectory(attempt.turns, episode.last_observation, budget).text,
            "feedback": attempt.feedback,
            "outcome": outcome_text(episode),
            "reward": f"{episode.reward:g}",
            "memory": shown_text(shown) or NO_MEMORY,
            "max_characters": str(config.max_characters),
        },
    )


def parsed(output: Output, config: ReflectConfig) -> tuple[str, str | None]:
    """(reason code, new instructions) of an output: `ok`, or the first thing that is wrong with it and None."""
    if output.sampled is None:
        return PROMPT_TOO_LONG, None
    if output.truncated and config.truncated == "malformed":
        return "truncated", None
    answer = after_thoughts(output.text, begun=output.thinking)
    if answer is None:
        return "unfinished_thought", None
    if config.form == "tag":
        found = (_CUT if output.truncated else _TAGGED).findall(answer)
        if not found:
            return "no_instructions", None
        answer = found[-1]
    text = answer.strip()
    flaw = text_flaw(text, config.max_characters)
    return (OK, text) if flaw is None else (flaw, None)


def check_reflect_prompt(prompt: PromptConfig, *, memory: bool) -> None:
    """Raise BadInput for a placeholder that nobody fills, and for a prompt without what there is to reflect on: the
    attempt, and the memory where there is one."""
    needed = ("trajectory", "feedback", *(("memory",) if memory else ()))
    check_prompt(prompt, NAMES, what=f"the {REFLECT} prompt", where=f"prompts.{REFLECT}", needed=needed)


def check_reflect_room(chat: Chat, role: RoleConfig, prompt: PromptConfig) -> None:
    """Raise PromptTooLong where the prompt fits no output behind it even with nothing filled in."""
    check_room(
        chat, prompt, NAMES, what=f"the {REFLECT} prompt", where=f"prompts.{REFLECT}", role="reflector",
        context=role.context, new=role.sampling.max_new_tokens,
    )  # fmt: skip


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the models."""
    config = config_of(method)
    for family in method.families:
        prompts = method.prompts_of(family.name)
        check_prompts(prompts, method.rollout.placement)
        if config.reflect is not None:
            check_reflect_prompt(prompts[REFLECT], memory=config.has_memory)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        return
    actor = chat_of(method, ACTOR)
    if config.reflect is None:
        check_actor_room(actor, method)
        return
    role = method.role(REFLECTOR)
    # A token is a character at least, but for rare ones.
    longest, reflector = min(role.sampling.max_new_tokens, config.reflect.max_characters), chat_of(method, REFLECTOR)
    longest += config.attempt_characters if config.revision.shows_attempt else 0
    check_actor_room(actor, method, instructions=longest, readers={REFLECTOR: reflector})
    for family in method.families:
        check_reflect_room(reflector, role, method.prompts_of(family.name)[REFLECT])
