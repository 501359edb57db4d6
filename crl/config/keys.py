"""The keys of an experiment as data: what each accepts, and which ones people change first.

The order of :data:`FIRST_KEYS` is the order of the form in the Prefect UI, of `docs/config.md` and of `crl doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from crl.config.experiment import Experiment

FIRST_KEYS = (
    "name",
    "method.seed",
    "method.recipe.kind",
    "method.families",
    "method.prompts",
    "method.roles.actor.model",
    "method.roles.extractor.model",
    "method.roles.actor.optimizer.learning_rate",
    "method.roles.extractor.optimizer.learning_rate",
    "method.rollout.group_size",
    "method.recipe.retrieval.count_weight",
    "method.recipe.bank.capacity",
    "method.evaluation.every",
)
"""The keys that people change first, most used first."""


@cache
def models() -> dict[str, dict[str, Any]]:
    """JSON schema of every config model by its name; `Experiment` first, each model before those that its fields hold.

    References between them are `#/$defs/<name>`.
    """
    whole = Experiment.model_json_schema()
    definitions, found = whole.pop("$defs"), {"Experiment": whole}
    waiting = [whole]
    while waiting:
        for name in _references(waiting.pop(0)):
            if name not in found:
                found[name] = definitions[name]
                waiting.append(found[name])
    return found


def field_schema(dotted: str) -> dict[str, Any]:
    """JSON schema of the field of a dotted key.

    A part of the key is a field, the name of an entry of a mapping, or an index of a list. In a union the first member
    that has the field counts; of a constant, which tells the members apart, there are as many values as members. Raises
    KeyError where there is no such key.
    """
    place = models()["Experiment"]
    for part in dotted.split("."):
        found = [child for member in _members(place) if (child := _child(member, part)) is not None]
        if not found:
            raise KeyError(f"an experiment has no key {dotted!r}: {part!r} was not found")
        place = found[0]
        kinds = [child["const"] for child in found if "const" in child]
        if len(kinds) > 1:
            place = {**{name: value for name, value in place.items() if name != "const"}, "enum": kinds}
    return place


def inlined(schema: Any) -> Any:
    """A schema with every reference replaced by what it refers to, and `anyOf` for `oneOf`: a form knows no other."""
    if isinstance(schema, list):
        return [inlined(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return {**inlined(_referred(schema)), **own}
    return {
        "anyOf" if key == "oneOf" else key: inlined(value) for key, value in schema.items() if key != "discriminator"
    }


def value_at(data: Any, dotted: str) -> Any:
    """The value of a dotted key in an experiment as plain data. Raises KeyError where it has none."""
    for part in dotted.split("."):
        try:
            data = data[int(part)] if isinstance(data, list) else data[part]
        except (LookupError, TypeError, ValueError):
            raise KeyError(dotted) from None
    return data


def _child(schema: dict[str, Any], part: str) -> dict[str, Any] | None:
    if part in schema.get("properties", {}):
        found = schema["properties"][part]
    elif part.isdigit():
        found = schema.get("items")
    else:  # an entry of a mapping
        found = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
    return found if isinstance(found, dict) else None


def _members(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schema itself, or the members of a union, without references."""
    if "$ref" in schema:
        return _members(_referred(schema))
    members = schema.get("anyOf") or schema.get("oneOf")
    return [schema] if members is None else [found for member in members for found in _members(member)]


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    return models()[schema["$ref"].rpartition("/")[2]]


def _references(schema: Any) -> Iterator[str]:
    """Names of the models that a schema refers to, in order."""
    if isinstance(schema, dict) and "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    elif isinstance(schema, dict | list):
        for item in schema.values() if isinstance(schema, dict) else schema:
            yield from _references(item)
