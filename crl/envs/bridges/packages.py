"""Packages of other people, imported where a bridge needs them; one that is missing is refused with its extra."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Annotated

from pydantic import Field

from crl.errors import BadInput

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Real = Annotated[float, Field(ge=-1e300, le=1e300)]
Argument = str | Whole | Real | bool | None
"""What other people's code may be given: texts, truth values, and numbers that every library can hold."""

WHERE = "method.families[].environment"
"""Where an experiment names an environment."""


def package(module: str, *, extra: str) -> ModuleType:
    """The module of an optional package. Raises BadInput where it cannot be imported, with the command that installs
    it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"the package {module.partition('.')[0]} cannot be imported: {error}",
            expected=f"the packages of the extra {extra!r}",
            where=WHERE,
            next_step=f"pip install -c constraints.txt -e '.[{extra}]'",
        ) from error
