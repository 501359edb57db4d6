"""What crosses the engine's socket: jobs down, outcomes up, as JSON. Only paths, numbers and digests; never rows."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from crl.config import Method
from crl.errors import BadInput
from crl.recipes.stage import Recipe

RecipeOf = Callable[[Method], Recipe]
DEFAULT_RECIPE = "crl.recipes:recipe_of"


class JobKind(StrEnum):
    """What an engine is asked to do."""

    stage = "stage"
    """Run a stage and commit it."""
    part = "part"
    """Run one part of a stage and commit the part."""
    count_parts = "count_parts"
    """Say how many parts a stage has, and which are complete."""
    release = "release"
    """Free every model that is held."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request to an engine."""

    kind: JobKind
    run_path: str
    round: int
    stage: str
    token: int
    """Fencing token of the lease: a commit under an older one is refused."""
    recipe: str = DEFAULT_RECIPE
    """Where the recipe comes from, as `module:function`; the function takes a `Method` and returns a `Recipe`."""
    part: int | None = None
    attempt: int = 1
    command: str = ""
    """Command line of the process that asked; provenance only."""
    expectations: dict[str, Any] = field(default_factory=dict)
    """A user's own suites of data checks by table (`runtime.expectations`)."""
    directory: str | None = None
    """Where the stage is written; told to the ranks above 0, which do not write the record themselves."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        """The inverse of :meth:`to_json`."""
        return Job(**{**data, "kind": JobKind(data["kind"])})


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What became of a stage (or of one part of it)."""

    round: int
    stage: str
    digest: str
    """Digest of the committed stage; empty for a part."""
    seconds: float
    rows: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    skipped: bool = False
    """Whether it was complete already."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> StageOutcome:
        """The inverse of :meth:`to_json`."""
        return StageOutcome(**data)


def encode(message: dict[str, Any]) -> bytes:
    """A message as bytes. What JSON does not know becomes a number (NumPy scalars) or text (paths)."""
    return json.dumps(message, default=_plain).encode()


def decode(content: bytes) -> dict[str, Any]:
    """The inverse of :func:`encode`."""
    return cast(dict[str, Any], json.loads(content))


def default_recipe() -> str:
    """`$CRL_RECIPE` (for recipes kept outside the project), else the project's own."""
    return os.environ.get("CRL_RECIPE") or DEFAULT_RECIPE


def load_recipe(reference: str, method: Method) -> Recipe:
    """The recipe of a method from `module:function`. Raises BadInput where the reference leads nowhere."""
    module_name, _, function_name = reference.partition(":")
    try:
        recipe_of = cast(RecipeOf, getattr(importlib.import_module(module_name), function_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"recipe {reference!r} cannot be loaded: {error}",
            expected="module:function, a function that takes a Method and returns a Recipe",
            where="CRL_RECIPE or the recipe argument",
            next_step="name a module that can be imported from the directory the command runs in",
        ) from error
    return recipe_of(method)


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)  # NumPy and torch scalars
    return item() if callable(item) else str(value)
