"""Config classes that a `kind` names: built in, found through an entry point, or written `module:Class`.

This is how others add an environment or a rollout engine without touching the library. A field annotated with a
:class:`Registry` holds a config of any kind: `{kind: frozenlake, …}`, or the kind alone, is validated by the class that
its kind names. The JSON schema is the union of all registered classes, which are looked for when the schema is made.
A class is imported when it is first named, so this file knows names only.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import InitErrorDetails, core_schema

from crl.errors import BadInput

_BY_NAME = {
    "type": "object",
    "title": "module:Class",
    "description": "A class that is not registered, by its importable name.",
    "properties": {"kind": {"type": "string", "pattern": r"^[\w.]+:\w+$", "description": "module:Class"}},
    "required": ["kind"],
    "additionalProperties": True,
}


Config = TypeVar("Config", bound=BaseModel)


class Registry(Generic[Config]):
    """The config classes of one sort: subclasses of a base model with a field `kind`."""

    def __init__(self, sort: str, base: type[Config], built_in: Mapping[str, str]) -> None:
        """
        Args:
            sort: what they configure (`environment`); the entry-point group is `crl.<sort>s`.
            base: the model that each of them extends.
            built_in: `module:Class` by kind.
        """
        self.sort, self.base, self.group = sort, base, f"crl.{sort}s"
        self._built_in, self._loaded = dict(built_in), dict[str, type[Config]]()

    def names(self) -> list[str]:
        """Every registered kind, the built-in ones first."""
        others = points_of(self.group).names - self._built_in.keys()
        return [*self._built_in, *sorted(others)]

    def built_in(self) -> list[str]:
        """The kinds that come with the library."""
        return list(self._built_in)

    def load(self, kind: str) -> type[Config]:
        """The config class of a kind. Raises BadInput for an unknown kind, and for one that cannot be imported."""
        if kind not in self._loaded:
            target = self._target(kind)
            try:
                found = load_object(target)
            except Exception as error:  # whatever a foreign module does while it is imported
                raise BadInput(
                    f"the {self.sort} {kind!r} cannot be imported: {type(error).__name__}: {error}",
                    expected=f"{target} to be an importable class",
                    next_step="install the package, or put its folder on PYTHONPATH",
                ) from error
            if not (isinstance(found, type) and issubclass(found, self.base)):
                raise BadInput(
                    f"the {self.sort} {kind!r} is {found!r}",
                    expected=f"a subclass of {self.base.__module__}.{self.base.__name__}",
                    where=target,
                )
            self._loaded[kind] = found
        return self._loaded[kind]

    def _target(self, kind: str) -> str:
        if kind in self._built_in:
            return self._built_in[kind]
        if ":" in kind:
            return kind
        for point in points_of(self.group).select(name=kind):
            return point.value
        known = self.names()
        close = get_close_matches(kind, known, n=1)
        raise BadInput(
            f"there is no {self.sort} {kind!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            expected=f"one of {', '.join(known)}, or module:Class",
            next_step=f"correct the kind, or install the package that registers it under {self.group}; after an update "
            "of the sources of crl: make setup",
        )

    def validate(self, value: Any) -> Any:
        """A config of any kind from plain data: a mapping with its `kind`, or the kind alone.

        Raises ValueError, or pydantic's ValidationError with the kind in front of each place.
        """
        if isinstance(value, self.base):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if not isinstance(kind, str):
            raise ValueError(f"names no kind of {self.sort}: one of {', '.join(self.names())}, or module:Class")
        try:
            return self.load(kind).model_validate(value)
        except BadInput as error:
            told = f"{error.found}; expected {error.expected}"
            raise ValueError(f"{told} ({error.next_step})" if error.next_step else told) from error
        except ValidationError as error:
            placed = [
                InitErrorDetails(
                    type=item["type"], loc=(kind, *item["loc"]), input=item["input"], ctx=item.get("ctx", {})
                )
                for item in error.errors(include_url=False)
            ]
            raise ValidationError.from_exception_data(error.title, placed) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """A field holds what :meth:`validate` gives, and is dumped as the class that it is."""
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The union of the registered classes, told apart by `kind`; `anyOf`, which Prefect's form knows."""
        members = []
        for kind in self.names():
            try:
                member = handler(self.load(kind).__pydantic_core_schema__)
            except BadInput as error:  # a broken package must not take the form of all others away
                warnings.warn(str(error), stacklevel=2)
                continue
            field = handler.resolve_ref_schema(member)["properties"]["kind"]
            field["const"] = kind
            field.setdefault("description", self.base.model_fields["kind"].description)
            members.append(member)
        return {"anyOf": [*members, _BY_NAME]}


def points_of(group: str) -> EntryPoints:
    """The entry points of a group. Every installed package has a file of them: they are read once per search path."""
    return _points(group, tuple(sys.path))


@cache
def _points(group: str, path: tuple[str, ...]) -> EntryPoints:
    return entry_points(group=group)


def load_object(target: str) -> Any:
    """What `module:name` names; a module that is not installed may lie in the folder that was started in. Raises what
    importing it raises."""
    module, _, name = target.partition(":")
    top, here = module.partition(".")[0], Path.cwd()
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != top or not ((here / f"{top}.py").is_file() or (here / top).is_dir()):
            raise
    # Behind everything else, so that it hides nothing; and for good: the module may import what is beside it.
    sys.path.append(str(here))
    importlib.invalidate_caches()
    return getattr(importlib.import_module(module), name)
