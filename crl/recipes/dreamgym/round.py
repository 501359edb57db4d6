"""What a round of DreamGym is made of: every stage, what it reads and writes.

Evaluation declares no read of the experience model, its transitions or what a teacher wrote, and fits read the pools of
transitions that are not held out: what a stage does not declare it cannot read, and the manifest lists what it read.

Before work starts the prompts' placeholders are checked, their room in the models' contexts, and what a setting asks of
the environments (:func:`check_ready`).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from crl.config import Method
from crl.errors import BadInput
from crl.learn.terms import objectives
from crl.protocols import Graded
from crl.recipes.dreamgym import collect, corpus, credit, explore, given, health, plan, store, validate
from crl.recipes.dreamgym.config import ACTOR, ANNOTATE, EXPERIENCE, PREDICT, TEACHER, VARY, config_of
from crl.recipes.dreamgym.prompts import check_prompt, check_room
from crl.recipes.dreamgym.rows import (
    GIVEN,
    POOLS,
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
from crl.rollout.environments import Readable
from crl.rollout.prompts import check_prompts
from crl.rounds.context import StageContext
from crl.rounds.evaluate import evaluation_stage
from crl.rounds.ready import chat_of, check_actor_room
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, when
from crl.rounds.weights import base_weights, update_name, update_stage
from crl.run.manifest import key_of

PLAYED = (Episode, Turn, Generation, Transition)
ASKED = {PREDICT: EXPERIENCE, VARY: EXPERIENCE, ANNOTATE: TEACHER}
"""Role that is asked with each prompt."""


def build(method: Method) -> Recipe:
    """The recipe of a method."""
    config = config_of(method)
    taught, varies = config.fit.reasoning == "teacher", VARY in config.prompts()
    pooled, brought = config.pools is not None, Read(GIVEN, -1)
    averaged = config.curriculum is not None and config.curriculum.capability == "mean"

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
            due=corpus.due,
            parts=explore.count_parts,
            run_part=explore.explore_part,
        ),
        Stage(
            name=store.GATHER,
            run=store.gather,
            reads=(
                brought,
                Read(explore.EXPLORE),
                Read(collect.COLLECT, -1, "collected"),
                Read(store.GATHER, -1, BEFORE),
            ),
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
                name=corpus.ANNOTATE_STAGE,
                run=corpus.annotate,
                reads=(pool, weights(TEACHER, 1)),
                writes=(Annotation, Generation),
                role=TEACHER,
                due=corpus.due,
            ),
        ),
        Stage(
            name=corpus.CORPUS,
            run=corpus.corpus,
            reads=(pool, weights(EXPERIENCE, 1), *when(taught, Read(corpus.ANNOTATE_STAGE))),
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
            due=corpus.due,
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
            reads=(
                Read(collect.COLLECT),
                Read(collect.PLAN),
                *when(pooled, brought, Read("credit", -1, BEFORE)),
            ),
            writes=(Sample, TaskValue, Metric, *when(pooled, *POOLS)),
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
                *when(taught, Read(corpus.ANNOTATE_STAGE)),
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
        preparation=(
            Stage(name="initialize", run=initialize, writes=(Weights,)),
            Stage(name=GIVEN, run=given.given, reads=(weights(ACTOR, 0),), writes=PLAYED, role=ACTOR, due=given.due),
            evaluates,
        ),
        stages=stages,
        initial={update_name(owner): "initialize" for owner in method.owners()},
        trains=frozenset(method.trained()),
        objectives=objectives(config.objective),
        row_types=(*ROWS, *when(pooled, *POOLS)),
        check_ready=check_ready,
        recalls=(
            Metric,
            Annotation,
            Transition,
            TransitionVector,
            PoolItem,
            *when(pooled, Generation),
            *when(averaged, TaskValue),
        ),
    )


def initialize(ctx: StageContext) -> None:
    """The base models as they are, and the embedder."""
    ctx.write(Weights, base_weights(ctx))


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the models, and where a setting
    asks for what no environment has."""
    asked = {name: role for name, role in ASKED.items() if name in config_of(method).prompts()}
    for family in method.families:
        prompts = method.prompts_of(family.name)
        check_prompts(prompts, method.rollout.placement)
        for name in asked:
            check_prompt(name, prompts[name])
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        return
    check_environments(method)
    if config_of(method).given is not None:
        given.episodes_of(method, given.given_path(method))
    readers = {role: chat_of(method, role) for role in sorted(set(asked.values()))}
    check_actor_room(chat_of(method, ACTOR), method, readers=readers)
    for name, owner in asked.items():
        for family in method.families:
            check_room(readers[owner], method.role(owner), name, method.prompts_of(family.name)[name], owner)


def check_environments(method: Method) -> None:
    """Raise BadInput where random actions are to be played and an environment lists none, and where new tasks are to be
    as hard as the measured capability and no environment grades its levels."""
    from crl.envs import make_environment

    config, curriculum = config_of(method), config_of(method).curriculum
    by_chance = config.explore.policy == "random"
    graded = curriculum is None or not curriculum.share or curriculum.rule != "capability"
    # Where nobody plays in the model, nothing is explored for it and no task is new.
    if not config.fits(1) or (graded and not by_chance):
        return
    for family in method.families:
        with closing(make_environment(family)) as environment:
            graded = graded or isinstance(environment, Graded)
            [start] = Readable(environment, method.rollout.max_observation_characters).reset_many(
                [family.train_seeds.start]
            )
        if by_chance and start.error is None and not isinstance(start.actions, tuple):
            raise BadInput(
                f"the environment of family {family.name} lists no actions to choose from at random: it parses what "
                "the actor writes",
                expected="an environment with enumerated actions, or an actor that explores",
                where="method.recipe.explore.policy",
                next_step="set it to actor",
            )
    if not graded:
        raise BadInput(
            "new tasks are to be as hard as the measured capability, and no environment says how hard its levels are",
            expected="a task family whose environment grades its levels (protocol Graded), such as frozenlake",
            where="method.recipe.curriculum.rule",
            next_step="set it to variance, or curriculum to null",
        )
