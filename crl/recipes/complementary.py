"""Complementary RL and its baselines, as lists of stages.

| recipe | differs from complementary by |
|---|---|
| baseline | no bank, no extractor: all rollouts are free |
| static_online | the extractor is not trained |
| experience_only | the actor is not trained |
| offline_bank | a bank built in the warm-up rounds and never changed after them; the extractor is not trained |
"""

from __future__ import annotations

import dataclasses

from crl.config import Method, RecipeName
from crl.recipes import (
    approve,
    collect,
    consolidate,
    credit,
    distill,
    evaluate,
    health,
    initialise,
    judge,
    plan,
    update,
    warm_start,
)
from crl.recipes.asking import with_questions
from crl.recipes.resembling import with_resemblances
from crl.recipes.stage import Read, Recipe, Stage
from crl.records import (
    Approval,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    EntryUsefulness,
    Episode,
    Evaluation,
    Generation,
    ImportedEntry,
    Metric,
    Operation,
    Retrieval,
    RetrievalCount,
    Sample,
    StrippedContext,
    Task,
    Turn,
    UseReward,
    Weights,
)

BANK = Read("consolidate", -1)
BANK_TABLES = (BankChange, BankSnapshot, BankEntry, BankEvent)
"""What publishes a bank; the whole of it (`BankEntry`) only where a base is due."""
ACTOR = Read("update_actor", -1)
EXTRACTOR = Read("update_extractor", -1)

INITIALISE = Stage(name="initialise", run=initialise.initialise, writes=(Weights, *BANK_TABLES, ImportedEntry))
PLAN = Stage(
    name="plan",
    run=plan.plan,
    reads=(BANK, Read("plan", -1)),
    writes=(Task, Retrieval, RetrievalCount),
)
COLLECT = Stage(
    name="collect",
    reads=(Read("plan"), BANK, ACTOR),
    writes=(Episode, Turn, Generation),  # and what :func:`_switched` adds
    role="actor",
    parts=collect.count_parts,
    run_part=collect.collect_part,
)
DISTILL = Stage(
    name="distill",
    run=distill.distill,
    reads=(Read("collect"), EXTRACTOR),
    writes=(Distillation, Operation, Generation),
    role="extractor",
)
MERGE = Stage(
    name="merge",
    run=distill.merge,
    reads=(BANK, Read("distill"), EXTRACTOR),
    writes=(Distillation, Operation, Generation),
    role="extractor",
    due=distill.merge_due,
)
PROPOSAL = (BANK, Read("distill"), Read("merge"), Read("credit", -1))
"""What `crl/recipes/proposal.py` gathers."""
APPROVE = Stage(
    name="approve",
    run=approve.approve,
    reads=PROPOSAL,
    writes=(Approval,),
    due=approve.due,
    waits_for=approve.choices,
)
CONSOLIDATE = Stage(
    name="consolidate",
    run=consolidate.consolidate,
    reads=(*PROPOSAL, Read("approve")),
    writes=BANK_TABLES,
)
CREDIT = Stage(
    name="credit",
    run=credit.credit,
    reads=(
        Read("collect"),
        Read("plan"),
        Read("distill"),
        Read("merge"),
        BANK,
        Read("consolidate"),
        Read("credit", -1),
    ),
    writes=(Credit, EntryScore, BufferItem, Sample, Metric),  # and what :func:`_switched` adds
)
UPDATE_ACTOR = update.update_stage("actor")
UPDATE_EXTRACTOR = update.update_stage("extractor")
HEALTH = Stage(
    name="health",
    run=health.health,
    reads=(
        Read("collect"), Read("distill"), Read("merge"), BANK, Read("consolidate"), Read("credit"),
        Read("update_actor"), Read("update_extractor"), Read("health", -1),
    ),
    writes=(Metric,),
)  # fmt: skip
EVALUATE = Stage(
    name="evaluate",
    reads=(Read("update_actor"), Read("consolidate"), Read("plan")),
    writes=(Evaluation,),
    role="actor",
    due=evaluate.due,
    parts=evaluate.count_parts,
    run_part=evaluate.evaluate_part,
)
EVALUATE_BASE = Stage(
    name="evaluate_base",
    reads=(Read("initialise"),),
    writes=(Evaluation,),
    role="actor",
    due=evaluate.base_due,
    parts=evaluate.count_parts,
    run_part=evaluate.evaluate_part,
)
WARM_START_ACTOR = Stage(
    name="warm_start_actor",
    run=warm_start.warm_start_actor,
    reads=(Read("initialise"),),
    writes=(Episode, Turn, Generation, Sample, Weights, Metric),
    role="actor",
)
WARM_START_EXTRACTOR = Stage(
    name="warm_start_extractor",
    run=warm_start.warm_start_extractor,
    reads=(Read("initialise"), Read("update_actor")),
    writes=(Episode, Turn, Generation, Distillation, Operation, Sample, Weights, Metric),
    role="extractor",
)

_LEFT_OUT: dict[RecipeName, frozenset[str]] = {
    RecipeName.complementary: frozenset(),
    RecipeName.baseline: frozenset({"distill", "merge", "approve", "consolidate", "update_extractor"}),
    RecipeName.static_online: frozenset({"update_extractor"}),
    RecipeName.experience_only: frozenset({"update_actor"}),
    RecipeName.offline_bank: frozenset({"update_extractor"}),
}
_CHANGE_THE_BANK = frozenset({"distill", "merge", "approve"})
"""Stages that ask for changes of the bank, or decide on them; without them `consolidate` publishes it unchanged."""


def build(method: Method) -> Recipe:
    """The recipe a method names."""
    left_out = _LEFT_OUT[method.recipe]
    stages: tuple[Stage, ...] = (
        PLAN, COLLECT, DISTILL, MERGE, APPROVE, CONSOLIDATE, CREDIT, UPDATE_ACTOR, UPDATE_EXTRACTOR, HEALTH,
        EVALUATE,
    )  # fmt: skip
    if method.recipe is RecipeName.offline_bank:
        stages = tuple(_in_warm_up_only(each) if each.name in _CHANGE_THE_BANK else each for each in stages)
    if method.actor_critic is not None:
        stages = (stages[0], judge.stage(BANK, ACTOR), *stages[1:])
    stages = tuple(_switched(each, method) for each in stages)
    has_bank = "consolidate" not in left_out
    warm_actor = method.warm_start is not None and method.warm_start.actor_episodes > 0
    warm_extractor = has_bank and method.warm_start is not None and method.warm_start.extractor_episodes > 0
    preparation = [INITIALISE]
    if warm_actor:
        preparation += [EVALUATE_BASE, WARM_START_ACTOR]
    if warm_extractor:
        preparation.append(WARM_START_EXTRACTOR)
    return Recipe(
        name=method.recipe.value,
        preparation=tuple(_switched(each, method) for each in (*preparation, EVALUATE)),
        stages=tuple(stage for stage in stages if stage.name not in left_out),
        initial={
            "consolidate": "initialise",
            "update_actor": "warm_start_actor" if warm_actor else "initialise",
            "update_extractor": "warm_start_extractor" if warm_extractor else "initialise",
        },
        trains=frozenset({"actor", "extractor"} - {name.removeprefix("update_") for name in left_out}),
        guided=has_bank,
    )


def _in_warm_up_only(stage: Stage) -> Stage:
    """The stage, due in warm-up rounds alone."""

    def due(method: Method, round_number: int) -> bool:
        return round_number <= method.warm_up_rounds and stage.due(method, round_number)

    return dataclasses.replace(stage, due=due)


def _switched(stage: Stage, method: Method) -> Stage:
    """The stage with what the method's switches let it read and write besides; as it is where they are off."""
    if stage.name in ("distill", "merge") and method.bank.duplicates == "near":
        stage = with_resemblances(stage, BANK)
    if stage.name == "collect" and method.self_distillation is not None:
        stage = dataclasses.replace(stage, writes=(*stage.writes, StrippedContext))
    if stage.name in ("collect", "evaluate") and method.rollout.search_and_ask is not None:
        stage = with_questions(stage)
    if stage.name in ("collect", "credit", "evaluate") and method.actor_critic is not None:
        stage = judge.with_verdicts(stage)
    if stage.name == "credit" and (method.actor_critic is not None or method.extractor_objective.credit != "outcome"):
        stage = dataclasses.replace(stage, writes=(*stage.writes, UseReward, EntryUsefulness))
    return stage
