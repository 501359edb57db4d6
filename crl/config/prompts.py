"""Prompts: they are part of the method."""

from __future__ import annotations

from pydantic import Field

from crl.config.base import Model


class Exchange(Model):
    """A few-shot exchange."""

    user: str = Field(min_length=1, description="What is shown.")
    assistant: str = Field(min_length=1, description="The answer in form.")


class PromptConfig(Model):
    """Prompt of one role. Placeholders in braces are filled by name; others are refused."""

    system: str = Field(min_length=1, description="System text.")
    examples: list[Exchange] = Field([], description="Few-shot exchanges before the first real one.")
    first: str = Field(min_length=1, description="First real user message.")
    following: str = Field("{feedback}{observation}", description="Later user messages (actor).")
    experience: str = Field("Advice: {experience}\n", description="How an experience is shown (actor).")


class AskPrompt(PromptConfig):
    """Prompt that answers a question of the actor's (search-and-ask), and what tells the actor that it may ask."""

    offer: str = Field(
        "You may ask: write ASK: and a question.\n",
        min_length=1,
        description="Shown to guided actors, directly behind the experience.",
    )


class PromptSet(Model):
    """All prompts of an experiment; they are part of the method."""

    actor: PromptConfig = Field(description="Actor: {goal} {experience} {observation} {actions} {feedback}.")
    distill: PromptConfig = Field(description="Extractor: {goal} {trajectory} {outcome} {experience}.")
    merge: PromptConfig = Field(description="Extractor, merging: {family} {entries}.")
    # Left out of the digest where they are absent: experiments frozen before they existed keep theirs.
    ask: AskPrompt | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Extractor, answering a question: {goal} {observation} {question} {experience}.",
    )
    critic: PromptConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Actor, judging an experience: {goal} {observation} {experience} {success_rate}.",
    )
