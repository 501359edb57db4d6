"""Text environments behind the batched `Environment` protocol: FrozenLake, Sokoban, shrines and the realms of the
laboratory in one file each, which holds the environment and its config; `crl.config.ENVIRONMENTS` names them. Others
are guests (`crl/worlds`) or come from other packages.

:func:`make_environment` builds the environment of a task family, :func:`check_environment` refuses what cannot work
before any work starts. An environment is imported when it is asked for: importing this package stays cheap. Nothing
here writes files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from crl.config import EnvironmentConfig, FamilyConfig
from crl.errors import BadInput, CrlError
from crl.faults import EXPECTED_ACTIONS, Fault, attempt, flaw_of_actions
from crl.protocols import Environment, Start
from crl.run.data_files import check_data


def make_environment(family: FamilyConfig) -> Environment:
    """The environment of a task family, ended at its turn limit where it has none of its own.

    Raises BadInput where it is not registered, a package that it needs is missing, or its data has changed since the
    run was made.
    """
    check_data(family)
    environment = _stepped(family)
    if family.max_turns is None:
        return environment
    from crl.envs.slots import TurnLimit

    return TurnLimit(environment, family.max_turns)


def _stepped(family: FamilyConfig) -> Environment:
    """The environment of a task family, stepped side by side where the family asks for it.

    Raises BadInput where it is not registered or a package that it needs is missing.
    """
    limit = family.step_time_limit_seconds
    if family.workers == 1 and limit is None and not family.isolate:
        environment: Environment = family.environment.make()
        return environment
    from crl.envs.side_by_side import SideBySide

    if not family.isolate:
        return SideBySide(family.environment.make, workers=family.workers, step_time_limit_seconds=limit)
    from crl.envs.isolated import ForkServer, Isolated

    server = ForkServer(family.environment)
    # The time limit is the processes' own: they are killed, where threads would be left behind.
    return SideBySide(lambda: Isolated(server, time_limit_seconds=limit), workers=family.workers, closing=server.close)


_IN_A_ROW = 4
"""Seeds that are tried of a side whose first one cannot be started."""
_LACKING = ("environment_ModuleNotFoundError", "environment_ImportError")
"""Errors of a start that no other seed would mend."""


def check_environment(config: EnvironmentConfig, *, isolate: bool = False) -> None:
    """Raise BadInput where an environment cannot be played here: one instance is made, reset twice on a seed of
    training and a held-out one, and closed. Two different starts of one seed are refused too, and what differs in the
    first `checked_turns`. With `isolate` all of it happens in another process."""
    seeds = [0] if config.held_out_from is None else [0, config.held_out_from]
    where = f"environment {config.kind}"

    def begun() -> tuple[list[Start], str | None]:
        with _made(config, isolate=isolate) as environment:
            played, first = _first_starts(environment, seeds)
            second = environment.reset_many(played)
            sound = [(one, other) for one, other in zip(first, second, strict=True) if not (one.error or other.error)]
            if any(one != other for one, other in sound):
                return first, "it starts differently when it is reset with the same seed"
            return first, _later_difference(environment, config.checked_turns)

    tried = attempt(begun)
    if isinstance(tried, Fault):
        if isinstance(tried.error, CrlError):
            raise tried.error
        raise BadInput(
            f"the environment cannot be started: {type(tried.error).__name__}: {tried.error}",
            where=where,
            next_step="correct its settings, or install what the message names",
        ) from tried.error
    starts, difference = tried
    broken = [start for start in starts if start.error is not None]
    if lacking := [start for start in broken if start.error in _LACKING] or broken[: len(broken) == len(starts)]:
        raise BadInput(
            f"no episode can be started: {lacking[0].error}\n{lacking[0].details or ''}".strip(),
            where=where,
            next_step="correct its settings, or install or mend what the message names",
        )
    for start in starts:
        if start.error is None and (flaw := flaw_of_actions(start.actions)) is not None:
            raise BadInput(
                flaw, expected=EXPECTED_ACTIONS, where=where, next_step="have the environment give them as such"
            )
    if difference is not None:
        raise BadInput(
            f"the environment ignores its seed: {difference}",
            expected="a task that is deterministic in its seed",
            where=where,
            next_step="choose another task, or seed every random stream of the environment when it is reset; leave out "
            "of an observation what counts or tells the time",
        )


def _first_starts(environment: Environment, seeds: list[int]) -> tuple[list[int], list[Start]]:
    """The starts of some seeds, each the first of a side; of one that cannot be started, those of one behind it: a task
    may be bad, but not a few in a row."""
    whole = attempt(lambda: environment.reset_many(seeds))
    if not isinstance(whole, Fault) and (
        all(start.error is None for start in whole) or any(start.error in _LACKING for start in whole)
    ):
        return seeds, whole
    played = []
    for first in seeds:
        tried = {seed: attempt(partial(environment.reset_many, [seed])) for seed in range(first, first + _IN_A_ROW)}
        sound = [seed for seed, begun in tried.items() if not isinstance(begun, Fault) and begun[0].error is None]
        if not sound and isinstance(begun := tried[first], Fault):
            raise begun.error
        played.append(sound[0] if sound else first)
    return played, environment.reset_many(played)


def _later_difference(environment: Environment, turns: int) -> str | None:
    """Where episodes of one seed part within so many turns, beside another seed and each time in the other slot: what
    two slots share shows."""
    if not turns:
        return None
    from crl.envs.check.walks import walked

    walks = walked(environment, [0, 1, 1, 0], batch=2, turns=turns).walks
    pairs = [(walks[at], walks[3 - at]) for at in (0, 1) if not (walks[at].broke or walks[3 - at].broke)]
    return next(filter(None, (one.difference(other) for one, other in pairs)), None)


@contextmanager
def _made(config: EnvironmentConfig, *, isolate: bool) -> Iterator[Environment]:
    """An instance, here or in a process of its own, closed at the end."""
    if not isolate:
        with closing(config.make()) as environment:
            yield environment
        return
    from crl.envs.isolated import ForkServer, Isolated

    with closing(ForkServer(config)) as server, closing(Isolated(server)) as isolated:
        yield isolated
