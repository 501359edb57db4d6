"""Config of a kind that others may add: `{kind: …}`, resolved by name, by entry point, or as `module:Class`.

A registry knows where the config class of each kind is and imports it when somebody asks for that kind: an experiment
without it never loads it. A field that holds such a config is annotated with the registry::

    recipe: Annotated[RecipeConfig, RECIPES]
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from crl.errors import BadInput


@dataclass(frozen=True)
class Registry:
    """Kinds of one config and the classes that hold it."""

    what: str
    """What is registered, for messages: `recipe`."""
    group: str
    """Entry-point group in which other packages add theirs: `name = "package.module:Class"`."""
    base: type[BaseModel]
    """What every class of the registry derives from."""
    built_in: Mapping[str, str]
    """The project's own: `module:Class` by kind."""

    def references(self) -> dict[str, str]:
        """`module:Class` of every kind that is known here, the project's own first."""
        added = {point.name: point.value for point in metadata.entry_points(group=self.group)}
        return {**self.built_in, **{name: added[name] for name in sorted(added) if name not in self.built_in}}

    def find(self, kind: str) -> type[BaseModel]:
        """The config class of a kind. Raises BadInput for one that is not known or cannot be imported."""
        references = self.references()
        reference = kind if ":" in kind else references.get(kind)
        if reference is None:
            close = difflib.get_close_matches(kind, references, n=1)
            raise BadInput(
                f"there is no {self.what} {kind!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                expected=f"one of {', '.join(references)}, or module:Class",
                next_step=f"install the package that adds it (entry point group {self.group!r})",
            )
        module_name, _, class_name = reference.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError, ValueError) as error:
            raise BadInput(
                f"the {self.what} {kind!r} cannot be loaded from {reference}: {error}",
                expected="module:Class of a module that can be imported",
                next_step="install its package, or name a module that can be imported here",
            ) from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise BadInput(f"{reference} is {found!r}", expected=f"a class derived from {self.base.__name__}")
        return found

    def validate(self, value: Any) -> BaseModel:
        """A config from plain data, by its `kind`; a config as it is. For pydantic: raises ValueError."""
        if isinstance(value, self.base):
            return value
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if not isinstance(kind, str):
            raise ValueError(f"found {value!r:.80}, expected a mapping with a `kind`: {', '.join(self.references())}")
        try:
            found = self.find(kind)
        except BadInput as error:
            raise ValueError(f"{error.found}; expected {error.expected}") from None
        return found.model_validate(value)

    # -- what pydantic asks of an annotation -----------------------------------------------------------------------

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        dumped = core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        return core_schema.no_info_plain_validator_function(self.validate, serialization=dumped)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices = {kind: self.find(kind).__pydantic_core_schema__ for kind in self.references()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))


def _dumped(value: BaseModel, info: core_schema.SerializationInfo) -> dict[str, Any]:
    return value.model_dump(mode=info.mode)
