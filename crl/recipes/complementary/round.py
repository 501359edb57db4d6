"""What a round of Complementary RL is made of, and a round of its ablations: every stage, what it reads and writes.

What a stage reads of earlier rounds is of the round before: chains (the bank that is changed, the buffer, counters) and
weights. Where rounds overlap, the first track (:data:`FIRST_TRACK`) reads what the second makes, bank and extractor, of
two rounds before. The actor's update is on the first track: the next round plays with its weights. It then has a
stage of its own for its samples (`advantages`), so that it does not wait for what the round writes into the bank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from crl.config import Method
from crl.credit.rules import rule_of
from crl.learn.terms import objectives
from crl.recipes.complementary import (
    approve,
    collect,
    consolidate,
    credit,
    distill,
    evaluate,
    health,
    initialize,
    judge,
    plan,
    ready,
    trial,
    warm_start,
)
from crl.recipes.complementary.bank_access import EFFECTS
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, config_of, declares_rewards
from crl.recipes.complementary.credit import NEW_BANK
from crl.recipes.complementary.proposal import SCORES
from crl.records import (
    TRIAL,
    Approval,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Evaluation,
    Generation,
    ImportedEntry,
    Judgment,
    Metric,
    Operation,
    Question,
    RawReward,
    Resemblance,
    Retrieval,
    RetrievalCount,
    Sample,
    StrippedContext,
    SuccessRate,
    Suppression,
    Task,
    TextEffect,
    Trial,
    TrialResult,
    Turn,
    UseReward,
    Weights,
)
from crl.rounds.context import BANK
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, always
from crl.rounds.update import update_name, update_stage

FIRST_TRACK = ("plan", judge.JUDGE, "collect", credit.ADVANTAGES)
"""With the actor's update, where rounds overlap."""
BANK_TABLES = (BankChange, BankSnapshot, BankEntry, BankEvent)
"""What publishes a bank; the whole of it (`BankEntry`) not in every round."""

T = TypeVar("T")


def build(method: Method) -> Recipe:
    """The recipe of a method: complementary, or one of its ablations."""
    config = config_of(method)
    guided, lag = config.has_bank, config.lag(method)
    asks = guided and method.rollout.search_and_ask is not None
    splits = method.overlap and ACTOR in config.TRAINED
    near, judges, tries = config.bank.duplicates == "near", config.actor_critic is not None, config.trial is not None
    tried = when(tries, Read(TRIAL))
    rule_keeps = rule_of(config.extractor_objective.credit).keeps

    def effects(back: int) -> tuple[Read, ...]:
        return when(config.suppress is not None, Read("credit", -back, EFFECTS))

    start = config.warm_start
    warm_actor = start is not None and start.actor_episodes > 0
    warm_extractor = guided and start is not None and start.extractor_episodes > 0

    def weights(role: str, back: int) -> Read:
        # Without a bank there may be no extractor; `when` then leaves its reads out.
        return Read(update_name(method.owner(role) if role in method.roles else role), -back, role)

    def changes_bank(due: Callable[[Method, int], bool] = always) -> Callable[[Method, int], bool]:
        if config.BANK_CHANGES_AFTER_WARM_UP:
            return due
        return lambda method, number: number <= config.warm_up_rounds and due(method, number)

    def on_its_track(stage: Stage) -> Stage:
        return dataclasses.replace(stage, second_track=method.overlap and stage.name not in first_track)

    first_track = {*FIRST_TRACK, update_name(method.owner(ACTOR))}
    played_bank, bank_before = Read("consolidate", -lag, BANK), Read("consolidate", -1, BANK)
    proposal = (bank_before, Read("distill"), *tried, Read("merge"), Read("credit", -1, SCORES))
    evaluates = Stage(
        name="evaluate",
        reads=(
            weights(ACTOR, 0),
            Read("consolidate", 0, BANK),
            Read("plan"),
            *when(asks, weights(EXTRACTOR, 0)),
            *when(judges, Read(judge.JUDGE)),
            *effects(0),
        ),
        writes=(Evaluation,),
        role=ACTOR,
        due=evaluate.due,
        parts=evaluate.count_parts,
        run_part=evaluate.evaluate_part,
        second_track=method.overlap,
    )
    preparation = [
        Stage(name="initialize", run=initialize.initialize, writes=(Weights, *BANK_TABLES, ImportedEntry)),
        *when(
            warm_actor,
            dataclasses.replace(
                evaluates, name="evaluate_base", reads=(Read("initialize", 0, ACTOR),), due=evaluate.base_due
            ),
            Stage(
                name="warm_start_actor",
                run=warm_start.warm_start_actor,
                reads=(Read("initialize", 0, ACTOR),),
                writes=(Episode, Turn, Generation, Sample, Weights, Metric),
                role=ACTOR,
            ),
        ),
        *when(
            warm_extractor,
            Stage(
                name="warm_start_extractor",
                run=warm_start.warm_start_extractor,
                reads=(
                    Read("initialize", 0, EXTRACTOR),
                    Read("warm_start_actor" if warm_actor else "initialize", 0, ACTOR),
                ),
                writes=(Episode, Turn, Generation, Distillation, Operation, Sample, Weights, Metric),
                role=EXTRACTOR,
            ),
        ),
        evaluates,
    ]
    stages = [
        Stage(
            name="plan",
            run=plan.plan,
            reads=(played_bank, Read("plan", -1, BEFORE), *effects(lag)),
            writes=(Task, Retrieval, RetrievalCount, *when(config.suppress is not None, Suppression)),
        ),
        *when(
            judges,
            Stage(
                name=judge.JUDGE,
                reads=(
                    Read("plan"),
                    played_bank,
                    weights(ACTOR, 1),
                    Read(judge.JUDGE, -1, BEFORE),
                    Read("collect", -1, judge.PLAYED_BEFORE),
                ),
                writes=(Judgment, Generation, SuccessRate),
                role=ACTOR,
                parts=judge.count_parts,
                run_part=judge.judge_part,
            ),
        ),
        Stage(
            name="collect",
            reads=(
                Read("plan"),
                played_bank,
                weights(ACTOR, 1),
                *when(asks, weights(EXTRACTOR, lag), *effects(lag)),
                *when(judges, Read(judge.JUDGE)),
            ),
            writes=(
                Episode,
                Turn,
                Generation,
                *when(config.self_distillation is not None, StrippedContext),
                *when(asks, Question),
                *when(declares_rewards(method), RawReward),
            ),
            role=ACTOR,
            parts=collect.count_parts,
            run_part=collect.collect_part,
        ),
        *when(
            splits,
            Stage(name=credit.ADVANTAGES, run=credit.advantages, reads=(Read("collect"),), writes=(Sample, Metric)),
        ),
        *when(
            guided,
            Stage(
                name="distill",
                parts=distill.count_distill_parts,
                run_part=distill.distill_part,
                reads=(Read("collect"), weights(EXTRACTOR, 1), *when(near, bank_before)),
                writes=(Distillation, Operation, Generation, *when(near, Resemblance)),
                role=EXTRACTOR,
                due=changes_bank(),
            ),
            *when(
                tries,
                Stage(
                    name=TRIAL,
                    parts=trial.count_parts,
                    run_part=trial.trial_part,
                    reads=(Read("collect"), Read("distill"), bank_before, weights(ACTOR, 1), Read(TRIAL, -1, BEFORE)),
                    writes=(Trial, TrialResult, Episode, Turn, Generation),
                    role=ACTOR,
                    due=changes_bank(),
                ),
            ),
            Stage(
                name="merge",
                parts=distill.count_merge_parts,
                run_part=distill.merge_part,
                reads=(bank_before, Read("distill"), *tried, weights(EXTRACTOR, 1)),
                writes=(Distillation, Operation, Generation, *when(near, Resemblance)),
                role=EXTRACTOR,
                due=changes_bank(distill.merge_due),
            ),
            Stage(
                name="approve",
                run=approve.approve,
                reads=proposal,
                writes=(Approval,),
                due=changes_bank(approve.due),
                waits_for=approve.choices,
            ),
            Stage(
                name="consolidate", run=consolidate.consolidate, reads=(*proposal, Read("approve")), writes=BANK_TABLES
            ),
        ),
        Stage(
            name="credit",
            run=credit.credit,
            reads=(
                Read("collect"),
                Read("plan"),
                Read("distill"),
                *tried,
                Read("merge"),
                played_bank,
                Read("consolidate", 0, NEW_BANK),
                *when(method.overlap, Read("consolidate", 1 - lag, credit.COMING_BANK)),
                Read("credit", -1, BEFORE),
                *when(judges, Read(judge.JUDGE)),
            ),
            writes=(
                Credit, EntryScore, BufferItem, Sample, Metric, *when(config.scores_uses, UseReward),
                *when(config.suppress is not None, TextEffect), *([rule_keeps] if rule_keeps else []),
            ),
        ),
        *(
            update_stage(owner, credit.ADVANTAGES if splits and owner == method.owner(ACTOR) else "credit")
            for owner in method.trained()
        ),
        Stage(
            name="health",
            run=health.health,
            reads=(
                Read("collect"),
                Read("distill"),
                *tried,
                Read("merge"),
                played_bank,
                Read("consolidate", 0, NEW_BANK),
                Read("credit"),
                *(Read(update_name(owner)) for owner in method.trained()),
                *when(judges, Read(judge.JUDGE)),
                Read("health", -1, BEFORE),
            ),
            writes=(Metric,),
        ),
        evaluates,
    ]  # fmt: skip
    return Recipe(
        name=config.kind,
        preparation=tuple(preparation),
        stages=tuple(on_its_track(stage) for stage in stages),
        initial={
            "consolidate": "initialize",
            **{update_name(owner): "initialize" for owner in method.owners()},
            **({update_name(method.owner(ACTOR)): "warm_start_actor"} if warm_actor else {}),
            **({update_name(method.owner(EXTRACTOR)): "warm_start_extractor"} if warm_extractor else {}),
        },
        trains=frozenset(method.trained()),
        objectives=objectives(config.actor_objective, config.extractor_objective),
        check_ready=ready.check_ready,
    )


def when(condition: bool, *items: T) -> tuple[T, ...]:
    """The items, or none."""
    return items if condition else ()
