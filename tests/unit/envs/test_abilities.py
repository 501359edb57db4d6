"""What an environment may also do is in one list, and every wrapper hands on what is in it."""

from __future__ import annotations

import inspect
from typing import Any

from crl import protocols
from crl.envs.isolated import ForkServer, Isolated
from crl.envs.masked_lake import MaskedLakeConfig
from crl.envs.side_by_side import SideBySide
from crl.envs.slots import TurnLimit
from crl.protocols import ABILITIES, Environment

OPTIONAL = (
    protocols.KnowsTruth, protocols.Leveled, protocols.Instructive, protocols.Teacher, protocols.Explains,
    protocols.Graded,
)  # fmt: skip


class Knowing:
    """An environment that has every ability: it answers with the name of what was asked, and the slot."""

    def __getattr__(self, name: str) -> Any:
        if name not in {ability.name for ability in ABILITIES}:
            raise AttributeError(name)
        return lambda *arguments: (name, *arguments)


def test_the_list_is_what_the_protocols_say() -> None:
    declared = {
        (name, protocol): "slot" in inspect.signature(method).parameters
        for protocol in OPTIONAL
        for name, method in vars(protocol).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert {(each.name, each.protocol): each.of_slot for each in ABILITIES} == declared


def test_a_wrapper_hands_on_all_of_it() -> None:
    limited: Any = TurnLimit(Knowing(), 3)  # type: ignore[arg-type]
    beside: Any = SideBySide(Knowing, workers=2)  # type: ignore[arg-type]
    for ability in ABILITIES:
        asked = (0,) if ability.of_slot else ()
        if ability.name == "practice":
            assert isinstance(limited.practice(), TurnLimit), "practice games have the limit too"
        else:
            assert getattr(limited, ability.name)(*asked) == (ability.name, *asked)
        assert getattr(beside, ability.name)(*asked) == (ability.name, *asked)


def test_what_an_environment_cannot_do_its_wrappers_cannot_do() -> None:
    class Plain:
        pass

    wrapped: list[Environment] = [TurnLimit(Plain(), 3), SideBySide(Plain, workers=1)]  # type: ignore[arg-type, list-item]
    assert not any(hasattr(each, ability.name) for each in wrapped for ability in ABILITIES)


def test_what_crosses_processes_is_handed_on_from_another_one() -> None:
    config = MaskedLakeConfig()
    server, here = ForkServer(config), config.make()
    isolated = Isolated(server)
    try:
        for ability in ABILITIES:
            assert hasattr(isolated, ability.name) == (ability.crosses and hasattr(here, ability.name)), ability.name
    finally:
        isolated.close()
        server.close()
