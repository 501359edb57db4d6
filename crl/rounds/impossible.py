"""Settings that recipes besides Complementary RL refuse before any work, and the words for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crl.config import Method, PolicyObjective
from crl.errors import BadInput


def refused(where: str, why: str, expected: str, next_step: str = "change it, or leave it out") -> BadInput:
    """The error of a setting, given by its dotted key, that would do nothing of what was asked for."""
    return BadInput(
        f"{where.removeprefix('method.')} is set, and {why}",
        expected=expected,
        where=where,
        next_step=next_step,
    )


def answers_are_actions(method: Method) -> bool:
    """Whether the actor, in some family, may say a legal action and nothing else."""
    return any(
        sampling.constrain == "actions"
        for family in method.families
        for sampling in method.samplings("actor", family.name)
    )


def hidden_answers(method: Method) -> Iterator[BadInput]:
    """Answers that are to have tags, from an actor that may say a legal action and nothing else: none has an action."""
    if answers_are_actions(method) and method.rollout.action_format == "tag":
        yield BadInput(
            "the actor answers with a legal action and nothing else, so no answer would have thoughts and tags",
            expected="action_format: word, or roles.actor.sampling.constrain: none",
            where="method.rollout.action_format",
            next_step="change one of the two",
        )


def unread_settings(method: Method, *, reward: str, bank: bool = False) -> Iterator[BadInput]:
    """Settings of a method that nothing reads; `reward` says why a family has none of its own, `bank` whether entries
    are kept (each family then reads its own); and answers in which no action would be found."""
    yield from hidden_answers(method)
    if method.rollout.search_and_ask is not None:
        yield refused("method.rollout.search_and_ask", "nobody answers questions in this recipe", "none")
    for index, family in enumerate(method.families):
        if family.reward is not None:
            yield refused(f"method.families.{index}.reward", reward, "none")
        if family.bank is not None and not bank:
            yield refused(f"method.families.{index}.bank", "this recipe keeps no bank", "none")
        if family.bank is not None and bank and family.bank.partition == "shared":
            yield refused(f"method.families.{index}.bank.partition", "each family reads its own entries", "family")


def whole_reference(method: Method, objective: PolicyObjective, owners: Iterable[str]) -> Iterator[BadInput]:
    """A penalty for leaving the base model beside ZeRO-3, for the weights that the objective trains."""
    for owner in owners:
        if objective.beta and method.role(owner).deepspeed.zero_stage == 3:
            yield refused(
                f"method.roles.{owner}.deepspeed.zero_stage",
                "the objective compares with the base model, which each rank would hold whole beside ZeRO-3",
                "0, 1 or 2, or objective.beta: 0",
            )
