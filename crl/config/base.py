"""What every config model shares: frozen, unknown keys refused, numbers as they are; a range of seeds; a prompt.

Every number of a model has both bounds: a test walks over all classes. The bounds that fields share are here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""Names that are directories too: of experiments and warm starts."""
MOST_ROUNDS = 1_000_000
"""Largest number of rounds that a setting may count."""
LONGEST_SECONDS = 366 * 86_400
"""Longest time limit or wait: a year."""
COLDEST = 0.001
"""Least temperature: below it logits divided by it are too large for the numbers of a model."""
LAST_SEED = 10**15
"""Largest environment seed, and largest count of them: their sum fits into the 64 bits of a row, and each number into
the 53 bits that the form in a browser keeps."""

_NO_SCHEMAS = ("default", "metadata", "serialization")


def _make_numbers_strict(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _make_numbers_strict(item)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in ("int", "float"):
            schema.setdefault("strict", True)
        for key, value in schema.items():
            # Where fields are listed by name, `kind` is the field `type`, and any name may be a field's.
            if not (isinstance(kind, str) and key in _NO_SCHEMAS):
                _make_numbers_strict(value)


class Model(BaseModel):
    """Frozen; unknown keys are errors. A number is finite, and not made from text, a boolean or another kind of number.

    An integer is accepted where any number is expected. A field that says `strict=False` converts as pydantic does.
    """

    # Titles are the keys of the YAML file: a form would else show the name of a class, twice for the two roles.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        field_title_generator=lambda name, _: name,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Numbers are strict, all else is not: `strict` for the whole model would refuse enums, paths and tuples."""
        schema = handler(source)
        _make_numbers_strict(handler.resolve_ref_schema(schema))
        return schema


def unset(value: Any) -> bool:
    """Whether a key has no value, so that it is left out of a dump (`exclude_if`)."""
    return value is None


def single(value: Any) -> bool:
    """Whether a count is 1, what there is without its key: it is left out of a dump then."""
    return bool(value == 1)


def off(value: Any) -> bool:
    """Whether a mechanism is off, and so no part of the method: experiments that compute the same have one digest."""
    return not value


LearningRateSchedule = Annotated[
    Literal["constant", "constant_with_warmup", "linear", "cosine"],
    Field(description="How the learning rate runs, as in transformers. linear and cosine fall to 0 after the warm-up."),
]


def refuse_warmup(schedule: str, warmup_steps: int) -> None:
    """Raise ValueError where a warm-up would have no effect, or there is none to be had."""
    if schedule == "constant" and warmup_steps:
        raise ValueError(
            f"warmup_steps is {warmup_steps}, and lr_scheduler_type: constant has no warm-up; write "
            "lr_scheduler_type: constant_with_warmup"
        )
    if schedule == "constant_with_warmup" and not warmup_steps:
        raise ValueError("lr_scheduler_type: constant_with_warmup needs warmup_steps")


class SeedRange(Model):
    """`count` consecutive seeds from `start`."""

    start: int = Field(0, ge=0, le=LAST_SEED, description="First seed.")
    count: int = Field(1000, ge=1, le=LAST_SEED, description="Number of seeds.")

    def overlaps(self, other: SeedRange) -> bool:
        """Whether the two ranges share a seed."""
        return self.start < other.start + other.count and other.start < self.start + self.count


class Exchange(Model):
    """One few-shot exchange."""

    user: str = Field(min_length=1, description="User message.")
    assistant: str = Field(min_length=1, description="Answer to imitate.")


class PromptConfig(Model):
    """One prompt. Placeholders in braces are filled by name; an unknown one is an error."""

    system: str = Field(description="System text; empty: none.")
    examples: list[Exchange] = Field([], description="Few-shot exchanges before the first message.")
    first: str = Field(min_length=1, description="First user message.")
    following: str = Field("{feedback}{observation}", description="Later user messages (actor).")
    experience: str = Field("Advice: {experience}\n", description="How the actor is shown an experience.")
    offer: str = Field(
        "You may ask: write ASK: and a question.\n",
        min_length=1,
        description="Follows the experience where the actor may ask (search-and-ask).",
    )
    summarize: str | None = Field(
        None,
        min_length=1,
        exclude_if=unset,
        description="Asks the actor for a summary (history `summarize`).",
    )
