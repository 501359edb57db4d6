"""What a round of DreamGym is made of: every stage, what it reads and writes.

Evaluation declares no read of the experience model, its transitions or what a teacher wrote, and fits read the pools of
transitions that are not held out: what a stage does not declare it cannot read, and the manifest lists what it read.
"""

from __future__ import annotations

from crl.config import Method
from crl.learn.terms import NLL, Objective
from crl.recipes.dreamgym import annotate, collect, corpus, credit, explore, health, plan, ready, store, validate
from crl.recipes.dreamgym.config import ACTOR, EXPERIENCE, TEACHER, VARY, config_of
from crl.recipes.dreamgym.rows import (
    ROWS,
    Annotation,
    DreamTask,
    PoolItem,
    Prediction,
    TaskValue,
    Transition,
    TransitionVector,
)
from crl.records import Episode, Generation, Metric, Sample, Task, Turn, Weights
from crl.rounds.context import StageContext
from crl.rounds.evaluate import evaluation_stage
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, when
from crl.rounds.weights import base_weights, update_name, update_stage

PLAYED = (Episode, Turn, Generation, Transition)


def build(method: Method) -> Recipe:
    """The recipe of a method."""
    config = config_of(method)
    taught, varies = config.fit.reasoning == "teacher", VARY in config.prompts()

    def weights(role: str, back: int) -> Read:
        # Without a teacher `when` leaves its reads out.
        return Read(update_name(method.owner(role) if role in method.roles else role), -back, role)

    pool = Read(store.GATHER, 0, store.POOL)
    evaluates = evaluation_stage(method)
    stages = (
        Stage(
            name=explore.EXPLORE,
            reads=(weights(ACTOR, 1),),
            writes=PLAYED,
            role=ACTOR,
            due=explore.due,
            parts=explore.count_parts,
            run_part=explore.explore_part,
        ),
        Stage(
            name=store.GATHER,
            run=store.gather,
            reads=(Read(explore.EXPLORE), Read(collect.COLLECT, -1, "collected"), Read(store.GATHER, -1, BEFORE)),
            writes=(PoolItem, TransitionVector, Metric),
        ),
        Stage(
            name=validate.DRIFT,
            run=validate.drift,
            # Model and store as the round before played with them: what was explored since is in neither.
            reads=(Read(store.GATHER, -1, store.POOL), Read(explore.EXPLORE), weights(EXPERIENCE, 1)),
            writes=(Prediction, Generation, Metric),
            role=EXPERIENCE,
            due=validate.drift_due,
        ),
        *when(
            taught,
            Stage(
                name=annotate.ANNOTATE_STAGE,
                run=annotate.annotate,
                reads=(pool, weights(TEACHER, 1)),
                writes=(Annotation, Generation),
                role=TEACHER,
                due=corpus.due,
            ),
        ),
        Stage(
            name=corpus.CORPUS,
            run=corpus.corpus,
            reads=(pool, weights(EXPERIENCE, 1), *when(taught, Read(annotate.ANNOTATE_STAGE))),
            writes=(Generation, Sample, Metric),
            role=EXPERIENCE,
            due=corpus.due,
        ),
        update_stage(EXPERIENCE, corpus.CORPUS),
        Stage(
            name=validate.VALIDATE,
            run=validate.validate,
            reads=(pool, weights(EXPERIENCE, 0)),
            writes=(Prediction, Generation, Metric),
            role=EXPERIENCE,
            due=validate.due,
        ),
        Stage(
            name=collect.PLAN,
            run=plan.plan,
            reads=(Read(validate.VALIDATE), Read("credit", -1, plan.VALUES), *when(varies, weights(EXPERIENCE, 0))),
            writes=(Task, DreamTask, Generation, Metric),
            role=EXPERIENCE if varies else None,
        ),
        Stage(
            name=collect.COLLECT,
            reads=(Read(collect.PLAN), pool, weights(ACTOR, 1), weights(EXPERIENCE, 0)),
            writes=(*PLAYED, Prediction),
            role=ACTOR,
            parts=collect.count_parts,
            run_part=collect.collect_part,
        ),
        Stage(
            name="credit",
            run=credit.credit,
            reads=(Read(collect.COLLECT), Read(collect.PLAN)),
            writes=(Sample, TaskValue, Metric),
        ),
        *(update_stage(owner) for owner in method.trained() if owner != EXPERIENCE),
        Stage(
            name="health",
            run=health.health,
            reads=(
                Read(explore.EXPLORE),
                Read(collect.COLLECT),
                Read(collect.PLAN),
                Read("credit"),
                Read(validate.VALIDATE),
                Read(validate.DRIFT),
                *when(taught, Read(annotate.ANNOTATE_STAGE)),
                pool,
                *(Read(update_name(owner)) for owner in method.trained()),
                Read("health", -1, BEFORE),
            ),
            writes=(Metric,),
        ),
        evaluates,
    )
    return Recipe(
        name=config.kind,
        preparation=(Stage(name="initialize", run=initialize, writes=(Weights,)), evaluates),
        stages=stages,
        initial={update_name(owner): "initialize" for owner in method.owners()},
        trains=frozenset(method.trained()),
        objectives={
            "grpo": Objective("crl.learn.clipped:clipped_term", config.objective, reference=config.objective.kl > 0),
            "nll": NLL,
        },
        row_types=ROWS,
        check_ready=ready.check_ready,
    )


def initialize(ctx: StageContext) -> None:
    """The base models as they are, and the embedder."""
    ctx.write(Weights, base_weights(ctx))
