"""A recipe of the bank's stages alone, for tests of approval: no model, operations from a script, the real rest.

Round 1 adds three entries, one of them twice; every later round updates the oldest, merges two and adds one.
"""

from __future__ import annotations

from typing import ClassVar

from crl.config import Experiment, Method
from crl.recipes.complementary.config import BankRecipeConfig
from crl.recipes.complementary.round import build as complementary
from crl.records import BankEntry, BankEvent, Operation
from crl.rounds.context import BANK, StageContext
from crl.rounds.stage import Read, Recipe, Stage
from tests.unit.engine import fake_recipe  # noqa: F401  (engines that run it check no tables)
from tests.unit.engine.harness import make_experiment

RECIPE = "tests.unit.engine.approval_recipe:ApprovalConfig"
NAME = "approved"


def approved_experiment(name: str = NAME, *, approve: bool = True, **runtime: object) -> Experiment:
    """An experiment for this recipe; without `approve` it publishes the same bank and asks nobody."""
    recipe = {"kind": RECIPE, "approve_bank": approve, "retrieval": {"embedder": "lexical"}}
    return make_experiment(recipe=recipe, **runtime).model_copy(update={"name": name})


class ApprovalConfig(BankRecipeConfig):
    """Complementary's settings; only those of the bank's stages count."""

    kind: str = RECIPE
    BUILDER: ClassVar[str] = f"{__name__}:build"


def build(method: Method) -> Recipe:
    """Round 0: `initialize`. Later: `distill`, `approve` where it is due, `consolidate`."""
    real = {stage.name: stage for stage in complementary(method).stages}
    return Recipe(
        name="approval",
        preparation=(Stage("initialize", run=initialize, writes=(BankEntry, BankEvent)),),
        stages=(
            Stage("distill", run=distill, reads=(Read("consolidate", -1, BANK),), writes=(Operation,)),
            real["approve"],
            real["consolidate"],
        ),
        initial={"consolidate": "initialize"},
    )


def initialize(ctx: StageContext) -> None:
    ctx.write(BankEntry, [])
    ctx.write(BankEvent, [])


def distill(ctx: StageContext) -> None:
    """What the script of the round asks for, of a bank in which some of it may have been refused."""
    ids = [entry.entry_id for entry in ctx.rows(BankEntry, BANK)]
    if ctx.round == 1:
        wanted = [("add", text, []) for text in ("Go down.", "Look first.", "Look first.", "Take the stairs.")]
    else:
        wanted = [("update", f"Go down in round {ctx.round}.", ids[:1])] if ids else []
        wanted += [("merge", f"Look before round {ctx.round}.", ids[1:3])] if len(ids) > 2 else []
        wanted += [("add", f"Mind *the* `trap` of round {ctx.round}.", [])]
    ctx.write(Operation, [_operation(ctx.round, index, *each) for index, each in enumerate(wanted)])


def _operation(round_number: int, index: int, kind: str, text: str, parents: list[str]) -> Operation:
    name = f"r{round_number}-d{index}"
    return Operation(
        operation_id=f"{name}-o0", distillation_id=name, generation_id=name, round=round_number, index=0, kind=kind,
        family="lake", entry_id=parents[0] if kind == "update" else f"x-{name}",
        parents=parents if kind == "merge" else [], episode_ids=[f"e-{name}"], text=text,
        embedder_cut=None if text is None else False,
    )  # fmt: skip
