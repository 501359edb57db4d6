"""Packages of other people, imported where a bridge needs them; one that is missing is refused with its extra."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection
from types import ModuleType
from typing import Annotated

from pydantic import Field

from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Real = Annotated[float, Field(ge=-1e300, le=1e300)]
Argument = str | Whole | Real | bool | None
"""What other people's code may be given: texts, truth values, and numbers that every library can hold."""

WHERE = "method.families[].environment"
"""Where an experiment names an environment."""


class BridgeConfig(EnvironmentConfig):
    """The config of an environment in a package of other people; package and extra have the name of its kind."""

    @classmethod
    def check_installed(cls) -> None:
        """Raise BadInput where the package cannot be imported, whatever its settings will be."""
        kind = str(cls.model_fields["kind"].default)
        package(kind, extra=kind)


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


def check_known(name: str, known: Collection[str], what: str, *, field: str, next_step: str | None = None) -> None:
    """Raise BadInput for a name that a package does not have, with those that are near it.

    `what` is the kind of name, such as `MiniGrid id`; `field` the setting that has it.
    """
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=4, cutoff=0.4)
    raise BadInput(
        f"unknown {what} {name!r}",
        expected="one of " + ", ".join(close) if close else f"one of the {len(known)} that are registered",
        where=f"{WHERE}.{field}",
        next_step=next_step or f"correct the {field}",
    )
