"""What a round of Complementary RL is made of, and a round of its ablations: every stage, what it reads and writes.

:func:`paper_stages` are those of the paper; :data:`MECHANISMS` are options, which add to them. What a stage reads of
earlier rounds is of the round before: chains (the bank that is changed, the buffer, counters) and weights. Where rounds
overlap, the first track (:func:`first_track`) reads what the second makes, bank and extractor, of two rounds before.
The actor's update is on the first track: the next round plays with its weights. It then has a stage of its own for its
samples (`advantages`), so that it does not wait for what the round writes into the bank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from crl.config import Method
from crl.credit.rules import rule_of
from crl.learn import terms
from crl.learn.terms import Objective
from crl.recipes.complementary import collect, credit, distill, health, plan, ready, warm_start
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, BankRecipeConfig, config_of
from crl.recipes.complementary.mechanisms import Mechanism, Sources, with_mechanisms
from crl.recipes.complementary.mechanisms.actor_critic import ActorCritic
from crl.recipes.complementary.mechanisms.context_distillation import REVERSE_KL, ContextDistillation
from crl.recipes.complementary.mechanisms.raw_rewards import RawRewards
from crl.recipes.complementary.mechanisms.search_and_ask import SearchAndAsk
from crl.recipes.complementary.mechanisms.self_distillation import SelfDistillation
from crl.recipes.complementary.mechanisms.suppression import Suppress
from crl.recipes.complementary.mechanisms.trial import AdmissionByTrial
from crl.records import (
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Generation,
    Metric,
    Operation,
    Resemblance,
    Retrieval,
    RetrievalCount,
    Sample,
    Task,
    Turn,
    UseReward,
    Weights,
)
from crl.rounds.context import BANK, NEW_BANK
from crl.rounds.evaluate import base_evaluation_stage, evaluation_stage
from crl.rounds.publish import bank_stages, initialize_stage
from crl.rounds.stage import BEFORE, SCORES, Read, Recipe, RowsOf, Stage, nothing_tried, scores_before, when
from crl.rounds.waves import count_waves
from crl.rounds.weights import update_name, update_stage

OF_THE_BANK = frozenset({"distill", "merge", "approve", "consolidate"})
"""Stages that a recipe without a bank leaves out."""
MECHANISMS: tuple[type[Mechanism], ...] = (
    AdmissionByTrial,
    Suppress,
    ActorCritic,
    SelfDistillation,
    ContextDistillation,
    RawRewards,
    SearchAndAsk,
)


def build(method: Method) -> Recipe:
    """The recipe of a method: complementary, or one of its ablations."""
    config = config_of(method)
    on: tuple[Mechanism, ...] = config.mechanisms(method)
    at = _sources(method, config)

    def refused(rows: RowsOf) -> Mapping[str, str]:
        return {name: reason for mechanism in on for name, reason in mechanism.refused(rows).items()}

    trial = next((each for each in on if isinstance(each, AdmissionByTrial)), None)
    listed = with_mechanisms(paper_stages(method, at, on, refused), on, method, at)
    first = first_track(listed, method)
    stages = [dataclasses.replace(each, second_track=method.overlap and each.name not in first) for each in listed]
    evaluates = next(each for each in stages if each.name == "evaluate")
    actor_starts, extractor_starts = config.warm_starts()
    return Recipe(
        name=config.kind,
        preparation=(initialize_stage, *_warm_starts(method, config, actor_starts, extractor_starts), evaluates),
        stages=tuple(stages),
        initial={
            "consolidate": "initialize",
            **{update_name(owner): "initialize" for owner in method.owners()},
            **({update_name(method.owner(ACTOR)): "warm_start_actor"} if actor_starts else {}),
            **({update_name(method.owner(EXTRACTOR)): "warm_start_extractor"} if extractor_starts else {}),
        },
        trains=frozenset(method.trained()),
        objectives=_objectives(config),
        check_ready=ready.check_ready,
        recalls=(Distillation, Episode, Generation),
        refused=refused,
        tried=nothing_tried if trial is None or config.bank.proven is None else trial.tried,
        scores=scores_before if config.bank.proven is None else credit.scores_now,
    )


def paper_stages(
    method: Method, at: Sources, on: Sequence[Mechanism], refused: Callable[[RowsOf], Mapping[str, str]]
) -> list[Stage]:
    """A round of the paper, without options; stages call the hooks of those that are `on`."""
    config = config_of(method)
    splits, near = method.overlap and ACTOR in config.TRAINED, config.bank.duplicates == "near"
    # What is proven is judged by the games of the round, too.
    proven, scores = config.bank.proven is not None, Read("credit", -1, SCORES)
    played = when(proven, Read("collect"), Read("plan"))
    rule_keeps = rule_of(config.extractor_objective.credit).keeps
    listed = [
        Stage(
            name="plan",
            run=plan.plan,
            reads=(at.played, Read("plan", -1, BEFORE)),
            writes=(Task, Retrieval, RetrievalCount),
        ),
        Stage(
            name="collect",
            reads=(Read("plan"), at.played, at.weights(ACTOR, 1)),
            writes=(Episode, Turn, Generation),
            role=ACTOR,
            parts=count_waves,
            run_part=partial(collect.collect_part, on=on),
        ),
        *when(
            splits,
            Stage(name=credit.ADVANTAGES, run=credit.advantages, reads=(Read("collect"),), writes=(Sample, Metric)),
        ),
        Stage(
            name="distill",
            parts=distill.count_distill_parts,
            run_part=distill.distill_part,
            reads=(Read("collect"), at.weights(EXTRACTOR, 1), *when(near, at.before)),
            writes=(Distillation, Operation, Generation, *when(near, Resemblance)),
            role=EXTRACTOR,
            due=at.changes_bank,
        ),
        Stage(
            name="merge",
            parts=distill.count_merge_parts,
            run_part=distill.merge_part,
            reads=(at.before, Read("distill"), at.weights(EXTRACTOR, 1), *played, *when(proven, scores)),
            writes=(Distillation, Operation, Generation, *when(near, Resemblance)),
            role=EXTRACTOR,
            due=lambda method, number: at.changes_bank(method, number) and distill.merge_due(method, number),
        ),
        *bank_stages(*played, refused=refused, due=at.changes_bank),
        Stage(
            name="credit",
            run=partial(credit.credit, on=on),
            reads=(
                *map(Read, ("collect", "plan", "distill", "merge")),
                at.played,
                Read("consolidate", 0, NEW_BANK),
                *when(method.overlap, Read("consolidate", 1 - at.lag, credit.COMING_BANK)),
                Read("credit", -1, BEFORE),
            ),
            writes=(
                *(Credit, EntryScore, BufferItem, Sample, Metric),
                *when(config.scores_uses, UseReward),
                *([rule_keeps] if rule_keeps else []),
            ),
        ),
        *(
            update_stage(owner, credit.ADVANTAGES if splits and owner == method.owner(ACTOR) else "credit")
            for owner in method.trained()
        ),
        Stage(
            name="health",
            run=partial(health.health, on=on),
            reads=(
                *map(Read, ("collect", "distill", "merge", "credit")),
                at.played,
                Read("consolidate", 0, NEW_BANK),
                *(Read(update_name(owner)) for owner in method.trained()),
                Read("health", -1, BEFORE),
            ),
            writes=(Metric,),
        ),
        evaluation_stage(method, Read("plan"), guides=collect.guided),
    ]
    return [each for each in listed if config.has_bank or each.name not in OF_THE_BANK]


def first_track(stages: Iterable[Stage], method: Method) -> set[str]:
    """Names of the stages that the next round waits for: the actor's update, collecting, and what both read of their
    own round."""
    listed = {stage.name: stage for stage in stages}
    found, waiting = set[str](), [update_name(method.owner(ACTOR)), "collect"]
    while waiting:
        name = waiting.pop()
        if name in listed and name not in found:
            found.add(name)
            waiting += [read.stage for read in listed[name].reads if read.offset == 0]
    return found


def _objectives(config: BankRecipeConfig) -> Mapping[str, Objective]:
    """Those of the paper, and of what is distilled."""
    found = dict(terms.objectives(config.actor_objective, config.extractor_objective))
    if config.self_distillation is not None:
        found["nll"] = dataclasses.replace(terms.NLL, share=config.self_distillation.share)
    if config.context_distillation is not None:
        found[REVERSE_KL] = dataclasses.replace(terms.REVERSE_KL, share=config.context_distillation.share)
    return found


def _sources(method: Method, config: BankRecipeConfig) -> Sources:
    lag = 2 if method.overlap else 1

    def weights(role: str, back: int) -> Read:
        # Without a bank there may be no extractor: stages that would read it are then left out.
        return Read(update_name(method.owner(role) if role in method.roles else role), -back, role)

    def changes_bank(method: Method, number: int) -> bool:
        return config.BANK_CHANGES_AFTER_WARM_UP or number <= config.warm_up_rounds

    return Sources(Read("consolidate", -lag, BANK), Read("consolidate", -1, BANK), weights, lag, changes_bank)


def _warm_starts(method: Method, config: BankRecipeConfig, actor: bool, extractor: bool) -> tuple[Stage, ...]:
    """The stages of a supervised start of these roles."""
    if config.warm_start is None:
        return ()
    played = (Episode, Turn, Generation)
    shown, written = config.warm_start.actor_episodes > 0, config.warm_start.extractor_episodes > 0
    return (
        *when(
            actor,
            dataclasses.replace(base_evaluation_stage(method), second_track=method.overlap),
            Stage(
                name="warm_start_actor",
                run=warm_start.warm_start_actor,
                reads=(Read("initialize", 0, ACTOR),),
                writes=(*(*played, Sample) * shown, Weights, *(Metric,) * shown),
                role=ACTOR,
            ),
        ),
        *when(
            extractor,
            Stage(
                name="warm_start_extractor",
                run=warm_start.warm_start_extractor,
                reads=(
                    Read("initialize", 0, EXTRACTOR),
                    *(Read("warm_start_actor" if actor else "initialize", 0, ACTOR),) * written,
                ),
                writes=(*(*played, Distillation, Operation, Sample) * written, Weights, *(Metric,) * written),
                role=EXTRACTOR,
            ),
        ),
    )
