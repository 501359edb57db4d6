"""Prompts: they are part of the method."""

from __future__ import annotations

from pydantic import Field

from crl.config.base import Model


class Exchange(Model):
    """A few-shot exchange."""

    user: str = Field(min_length=1, description="What is shown.")
    assistant: str = Field(min_length=1, description="The answer in form.")


class PromptConfig(Model):
    """One prompt. Placeholders in braces are filled by name; others are refused."""

    system: str = Field(min_length=1, description="System text.")
    examples: list[Exchange] = Field([], description="Few-shot exchanges before the first real one.")
    first: str = Field(min_length=1, description="First real user message.")
    following: str = Field("{feedback}{observation}", description="Later user messages (actor).")
    experience: str = Field("Advice: {experience}\n", description="How an experience is shown (actor).")
    offer: str = Field(
        "You may ask: write ASK: and a question.\n",
        min_length=1,
        description="Shown to guided actors, directly behind the experience (ask).",
    )
