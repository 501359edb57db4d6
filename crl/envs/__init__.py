"""Text environments behind the batched `Environment` protocol, one file each: MiniHack, FrozenLake, shrines
and the realms of the laboratory.

:func:`make_environment` builds one from its config, :func:`check_environment` refuses what cannot work before any work
starts. What an environment needs is imported when it is asked for: importing this package stays cheap. Nothing here
writes files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crl.config import EnvironmentConfig
from crl.errors import BadInput
from crl.protocols import Environment


@dataclass(frozen=True)
class _Kind:
    make: Callable[[Any], Environment]
    check: Callable[[Any], None]


def _minihack(config: Any) -> Environment:
    from crl.envs.minihack import MiniHackEnvironment

    return MiniHackEnvironment(config)


def _check_minihack(config: Any) -> None:
    from crl.envs.minihack import check_minihack

    check_minihack(config)


def _frozenlake(config: Any) -> Environment:
    from crl.envs.frozenlake import FrozenLakeEnvironment

    return FrozenLakeEnvironment(config)


def _check_frozenlake(config: Any) -> None:
    from crl.envs.frozenlake import check_frozenlake

    check_frozenlake(config)


def _realms(config: Any) -> Environment:
    from crl.envs.realms import RealmsEnvironment

    return RealmsEnvironment(config)


def _check_realms(config: Any) -> None:
    from crl.envs.realms import check_realms

    check_realms(config)


def _shrines(config: Any) -> Environment:
    from crl.envs.shrines import ShrinesEnvironment

    return ShrinesEnvironment(config)


def _check_shrines(config: Any) -> None:
    from crl.envs.shrines import check_shrines

    check_shrines(config)


_KINDS = {
    "minihack": _Kind(_minihack, _check_minihack),
    "frozenlake": _Kind(_frozenlake, _check_frozenlake),
    "realms": _Kind(_realms, _check_realms),
    "shrines": _Kind(_shrines, _check_shrines),
}


def _kind(config: EnvironmentConfig) -> _Kind:
    try:
        return _KINDS[config.kind]
    except KeyError:
        raise BadInput(
            f"unknown kind of environment {config.kind!r}",
            expected="one of " + ", ".join(sorted(_KINDS)),
            where="method.families[].environment.kind",
        ) from None


def make_environment(config: EnvironmentConfig) -> Environment:
    """Build the environment of a task family.

    Raises BadInput where the task is not registered or a package that it needs is missing.
    """
    return _kind(config).make(config)


def check_environment(config: EnvironmentConfig) -> None:
    """Raise BadInput where the environment cannot be played here (unknown id, missing package, not deterministic).

    Costs well under a second: one instance is made, reset twice with one seed and closed.
    """
    _kind(config).check(config)
