"""Registered environments without a module here that plays them: each with the settings it has when none are given.

Where actions have no names, the environment's own oracle acts, if it knows what to do. `alfworld.py` compares this
project's engine with the package itself, on the games in $ALFWORLD_DATA; its metrics take the place of random play.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Set
from pathlib import Path
from typing import Any

from benchmarks.environment_systems.base import Case, Played
from crl.config import ENVIRONMENTS
from crl.errors import BadInput

_ALFWORLD = "benchmarks.environment_systems.alfworld"


def cases(known: Set[str]) -> tuple[list[Case], list[str]]:
    """Every registered environment that is not known, and a word on each that cannot be played as it is."""
    found: list[Case] = []
    missing: list[str] = []
    for kind in ENVIRONMENTS.names():
        if kind in known:
            continue
        try:
            config = ENVIRONMENTS.validate(kind)
            config.make().close()
        except BadInput as error:
            missing.append(f"{kind}: {error.found}")
        except ValueError:
            missing.append(f"{kind}: it has settings that must be given")
        else:
            found.append(Case(kind, lambda config=config: Played(config), other_name="not compared here"))  # type: ignore[misc]
    return found, missing


def compared(kind: str) -> Any | None:
    """Speeds of an engine of ours and of the package's, as one run found them: `steps`, `their_steps`, `resets`,
    `their_resets`. None where they are not compared, or cannot be on this machine."""
    data = os.environ.get("ALFWORLD_DATA")
    if kind != "alfworld" or data is None or importlib.util.find_spec(_ALFWORLD) is None:
        return None
    try:
        return importlib.import_module(_ALFWORLD).measure(Path(data))
    except (BadInput, RuntimeError):
        return None
