"""How task families divide the bank: whose entries may guide an episode, and how many a family may hold.

A family keeps to its own entries or shares with all others that share; `retrieval.scope` decides for those that say
nothing of it (`bank`: they share). Where all share, the whole bank is searched.
"""

from __future__ import annotations

from crl.bank.retrieve import Partition
from crl.config import FamilyConfig, Method

__all__ = ["Partition", "capacities_of", "partitions_of"]


def partitions_of(method: Method) -> dict[str, Partition]:
    """By family: the families whose entries may guide its episodes; None: those of the whole bank."""
    names = [family.name for family in method.families]
    sharing = tuple(family.name for family in method.families if _shares(method, family))
    shared: Partition = None if len(sharing) == len(names) else sharing
    return {name: shared if name in sharing else (name,) for name in names}


def capacities_of(method: Method) -> dict[str, int]:
    """Entries that a family may hold, of those that have a capacity of their own."""
    return {
        family.name: family.bank.capacity
        for family in method.families
        if family.bank is not None and family.bank.capacity is not None
    }


def _shares(method: Method, family: FamilyConfig) -> bool:
    own = None if family.bank is None else family.bank.partition
    return method.recipe.bank_use().search_whole if own is None else own == "shared"
