"""Which settings of a method a piece of code reads, by watching every attribute of its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from crl.config import Method
from crl.config.base import Model


def _models(value: Any, path: str) -> Iterator[tuple[str, Model]]:
    if isinstance(value, Model):
        yield path, value
        for name in type(value).model_fields:
            yield from _models(value.__dict__[name], f"{path}.{name}" if path else name)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _models(each, f"{path}.{name}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, each in enumerate(value):
            yield from _models(each, f"{path}.{index}")


@contextmanager
def settings_read(method: Method) -> Iterator[set[str]]:
    """The dotted keys of the settings of this method that are read inside; of models inside it, what is read of them.
    A copy of a model counts as the model where it is the same object: parts of it are, and its own settings are not."""
    paths = {id(model): path for path, model in _models(method, "")}
    found: set[str] = set()
    plain = Model.__getattribute__

    def watched(self: Model, name: str) -> Any:
        value = plain(self, name)
        path = paths.get(id(self))
        if path is not None and name in type(self).model_fields and not isinstance(value, Model):
            found.add(f"{path}.{name}" if path else name)
        return value

    Model.__getattribute__ = watched  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        del Model.__getattribute__
