"""Whether each task of a person's files can be started: looked at before work starts, as far as a few seconds go.

An environment with such files lists its tasks (`crl.protocols.Itemized`). One that cannot be started costs its own
episode in a run; before the run it can still be mended, and later the files must stay as they are.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from crl.config import FamilyConfig
from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput, CrlError
from crl.faults import Fault, attempt
from crl.protocols import Itemized
from crl.run.data_files import location_of

SECONDS = 10.0
"""Longest look at the tasks of a family."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the tasks of an environment found."""

    tasks: int
    tried: int
    faults: tuple[str, ...]
    """Of those that cannot be started: name and reason."""

    @property
    def in_words(self) -> str:
        """How many were tried, and how many were not."""
        if self.tried == self.tasks:
            return f"all {self.tasks} tasks can be started"
        return f"{self.tried} of {self.tasks} tasks can be started; the other {self.tasks - self.tried} were not tried"


def look(config: EnvironmentConfig, seconds: float = SECONDS) -> Looked:
    """Start each task of an environment until `seconds` are over; the first one always. Raises BadInput where the
    environment cannot be made."""
    with closing(config.make()) as environment:
        if not isinstance(environment, Itemized):
            return Looked(0, 0, ())
        tasks, faults, tried = list(environment.items()), list[str](), 0
        until = time.monotonic() + seconds
        for name, start in tasks:
            begun = attempt(start)
            faults += [f"{name}: {_in_words(begun.error)}"] if isinstance(begun, Fault) else []
            tried += 1
            if time.monotonic() > until:
                break
        return Looked(len(tasks), tried, tuple(faults))


def check_tasks(family: FamilyConfig, seconds: float = SECONDS) -> str:
    """What a look at the tasks of a family's files found, in words; empty where it has no such files. Raises BadInput
    that names the tasks that cannot be started."""
    config = family.environment
    if not config.data_files():
        return ""
    looked = _apart(config, seconds) if family.isolate else look(config, seconds)
    if not looked.tasks:
        return ""
    if not looked.faults:
        return looked.in_words
    more = f"\nand {len(looked.faults) - _SHOWN} more" if len(looked.faults) > _SHOWN else ""
    left = "" if looked.tried == looked.tasks else f" ({looked.tasks - looked.tried} others were not tried)"
    raise BadInput(
        f"{len(looked.faults)} of {looked.tried} tasks cannot be started{left}:\n"
        + "\n".join(looked.faults[:_SHOWN]) + more,
        expected="files of which every task can be played",
        where=f"family {family.name}: " + ", ".join(str(location_of(each)) for each in config.data_files().values()),
        next_step="correct these tasks or take them out now: once there is a run, its files stay as they are",
    )  # fmt: skip


def _apart(config: EnvironmentConfig, seconds: float) -> Looked:
    from crl.envs.isolated import ForkServer, Isolated

    with closing(ForkServer(config)) as server, closing(Isolated(server)) as isolated:
        found: Looked = isolated.call(f"{__name__}:look", seconds)
        return found


def _in_words(error: BaseException) -> str:
    return error.found if isinstance(error, CrlError) else f"{type(error).__name__}: {error}"
