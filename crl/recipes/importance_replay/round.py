"""What a round of importance-weighted replay is made of: every stage, what it reads and writes.

Where drawing is even, or nothing is replayed, nothing is measured either: there are no probes and no network. Neither
playing nor evaluation reads a probe.
"""

from __future__ import annotations

from pathlib import Path

from crl.config import Method
from crl.learn.terms import objectives
from crl.recipes.importance_replay import credit, health, measure, play
from crl.recipes.importance_replay.config import ACTOR, config_of
from crl.recipes.importance_replay.network import NETWORK
from crl.recipes.importance_replay.rows import (
    ROWS,
    ExtractorTensor,
    Improvement,
    ProbePair,
    ReplayDraw,
    ReplayEmbedding,
    ReplayItem,
)
from crl.records import Episode, Generation, Metric, Sample, Task, Turn
from crl.rollout.prompts import check_prompts
from crl.rounds.evaluate import evaluation_stage
from crl.rounds.publish import initialize_stage
from crl.rounds.ready import chat_of, check_actor_room
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, when
from crl.rounds.waves import collect_wave, count_waves
from crl.rounds.weights import update_name, update_stage
from crl.run.manifest import key_of


def build(method: Method) -> Recipe:
    """The recipe of a method."""
    config, owner = config_of(method), method.owner(ACTOR)
    evaluates = evaluation_stage(method)

    def weights(back: int, name: str = ACTOR) -> Read:
        return Read(update_name(owner), -back, name)

    def probe(name: str, *reads: Read) -> Stage:
        return Stage(
            name=name,
            reads=reads,
            writes=(Episode, Turn, Generation),
            role=ACTOR,
            parts=play.count_probes,
            run_part=play.probe_part,
        )

    measured = when(
        config.learns,
        probe(play.BEFORE_UPDATE, Read("plan"), Read("credit"), weights(1)),
        update_stage(owner),
        probe(
            play.AFTER_UPDATE,
            Read("plan"),
            *when(config.probe.scope == "task", Read("credit")),
            weights(0),
            weights(1, BEFORE),
        ),
        Stage(
            name=measure.MEASURE,
            run=measure.measure,
            reads=(
                Read("credit"),
                Read(play.BEFORE_UPDATE),
                Read(play.AFTER_UPDATE),
                weights(1),
                weights(0, measure.AFTER),
                Read(measure.MEASURE, -1, BEFORE),
            ),
            writes=(ProbePair, Improvement, ExtractorTensor, Metric),
        ),
    )
    return Recipe(
        name=config.kind,
        recalls=(ReplayEmbedding, Episode, Turn, Generation, ReplayDraw, Improvement),
        preparation=(
            initialize_stage,
            evaluates,
        ),
        stages=(
            Stage(name="plan", run=play.plan, writes=(Task,)),
            Stage(
                name="collect",
                reads=(Read("plan"), weights(1)),
                writes=(Episode, Turn, Generation),
                role=ACTOR,
                parts=count_waves,
                run_part=collect_wave,
            ),
            Stage(
                name="credit",
                run=credit.credit,
                reads=(Read("collect"), Read("credit", -1, BEFORE), Read(measure.MEASURE, -1, NETWORK)),
                writes=(Sample, Metric, *when(config.replays, ReplayItem, ReplayEmbedding, ReplayDraw)),
            ),
            *(measured or (update_stage(owner),)),
            Stage(
                name="health",
                run=health.health,
                reads=(
                    *map(Read, ("collect", "credit", update_name(owner))),
                    *map(Read, when(config.learns, play.BEFORE_UPDATE, play.AFTER_UPDATE, measure.MEASURE)),
                    Read("health", -1, BEFORE),
                ),
                writes=(Metric,),
            ),
            evaluates,
        ),
        initial={update_name(owner): "initialize"},
        trains=frozenset(method.trained()),
        objectives=objectives(config.objective),
        row_types=ROWS if config.replays else (),
        check_ready=check_ready,
    )


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the model."""
    for family in method.families:
        check_prompts(method.prompts_of(family.name), method.rollout.placement)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if not run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        actor = chat_of(method, ACTOR)
        check_actor_room(actor, method)
