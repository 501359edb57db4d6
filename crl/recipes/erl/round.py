"""What a round of Experiential RL is made of: every stage, what it reads and writes.

First attempts and evaluation declare no read of the memory, of a reflection or of what was retrieved: what a stage does
not declare it cannot read, and the manifest lists what it read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from crl.config import Method
from crl.learn.terms import objectives
from crl.recipes.erl import attempts, credit, health, memory, prompts, reflect
from crl.recipes.erl.attempts import attempt_stage, reflect_stage
from crl.recipes.erl.config import ACTOR, REFLECTOR, ErlConfig, config_of
from crl.recipes.erl.rows import Reflection, RevisedAttempt
from crl.records import (
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Generation,
    Metric,
    Operation,
    Retrieval,
    Sample,
    StrippedContext,
    Task,
    Turn,
)
from crl.rounds.context import BANK, NEW_BANK
from crl.rounds.evaluate import evaluation_stage
from crl.rounds.publish import bank_stages, initialize_stage
from crl.rounds.stage import BEFORE, SCORES, Read, Recipe, Stage, when
from crl.rounds.waves import collect_wave, count_waves
from crl.rounds.weights import update_name, update_stage


def build(method: Method) -> Recipe:
    """The recipe of a method."""
    config = config_of(method)

    def weights(role: str, back: int) -> Read:
        return Read(update_name(method.owner(role)), -back, role)

    evaluates = evaluation_stage(method)
    all_attempts = tuple(Read(attempt_stage(revision)) for revision in range(config.revisions + 1))
    reflections = tuple(
        Read(reflect_stage(revision)) for revision in range(1, config.revisions + 1) if config.reflect is not None
    )
    bank_before = Read("consolidate", -1, BANK)
    stages = (
        Stage(name="plan", run=attempts.plan, writes=(Task,)),
        Stage(
            name="collect",
            reads=(Read("plan"), weights(ACTOR, 1)),
            writes=(Episode, Turn, Generation),
            role=ACTOR,
            parts=count_waves,
            run_part=collect_wave,
        ),
        *_revisions(method, config),
        *when(
            config.has_memory,
            Stage(
                name="distill",
                run=memory.distill,
                reads=(*reflections, *all_attempts),
                writes=(Distillation, Operation, *when(config.keeps_attempts, RevisedAttempt)),
            ),
            *bank_stages(),
        ),
        Stage(
            name="credit",
            run=credit.credit,
            reads=(*all_attempts, *reflections, Read("credit", -1, BEFORE)),
            writes=(Sample, Metric, *when(config.has_memory, Credit, EntryScore)),
        ),
        *(update_stage(owner) for owner in method.trained()),
        Stage(
            name="health",
            run=health.health,
            reads=(
                *all_attempts,
                *reflections,
                Read("distill"),
                Read("credit"),
                bank_before,
                Read("consolidate", 0, NEW_BANK),
                *(Read(update_name(owner)) for owner in method.trained()),
                Read("health", -1, BEFORE),
            ),
            writes=(Metric,),
        ),
        evaluates,
    )
    return Recipe(
        name=config.kind,
        preparation=(
            initialize_stage,
            evaluates,
        ),
        stages=stages,
        initial={"consolidate": "initialize", **{update_name(owner): "initialize" for owner in method.owners()}},
        trains=frozenset(method.trained()),
        objectives=objectives(config.objective),
        row_types=(Reflection, *when(config.keeps_attempts, RevisedAttempt)),
        recalls=when(config.keeps_attempts, RevisedAttempt),
        check_ready=prompts.check_ready,
    )


def _revisions(method: Method, config: ErlConfig) -> Iterator[Stage]:
    """Of each revision: reflecting on the attempt before, and trying again."""

    def weights(role: str) -> Read:
        return Read(update_name(method.owner(role)), -1, role)

    for revision in range(1, config.revisions + 1):
        before = (Read("plan"), Read(attempt_stage(revision - 1)))
        if config.reflect is not None:
            reads_memory = (Read("consolidate", -1, BANK), Read("credit", -1, SCORES))
            yield Stage(
                name=reflect_stage(revision),
                reads=(*before, weights(REFLECTOR), *when(config.has_memory, *reads_memory)),
                writes=(Reflection, Retrieval, Generation),
                role=REFLECTOR,
                parts=count_waves,
                run_part=partial(reflect.reflect_part, revision=revision),
            )
        yield Stage(
            name=attempt_stage(revision),
            reads=(*before, weights(ACTOR), *when(config.reflect is not None, Read(reflect_stage(revision)))),
            writes=(
                Episode,
                Turn,
                Generation,
                *when(config.internalize is not None, StrippedContext),
            ),
            role=ACTOR,
            parts=count_waves,
            run_part=partial(attempts.retry_part, revision=revision),
        )
