"""What a round of importance-weighted replay is made of: every stage, what it reads and writes.

Where drawing is even, or nothing is replayed, nothing is measured either: there are no probes and no network. Neither
playing nor evaluation reads a probe.
"""

from __future__ import annotations

from crl.config import Method
from crl.learn.terms import Objective
from crl.recipes.importance_replay import collect, credit, health, measure, plan, probes, ready
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
from crl.rounds.evaluate import evaluation_stage
from crl.rounds.publish import initialize_stage
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, when
from crl.rounds.weights import update_name, update_stage


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
            parts=probes.count_parts,
            run_part=probes.probe_part,
        )

    measured = when(
        config.learns,
        probe(probes.BEFORE_UPDATE, Read("credit"), weights(1)),
        update_stage(owner),
        probe(probes.AFTER_UPDATE, weights(0), weights(1, BEFORE)),
        Stage(
            name=measure.MEASURE,
            run=measure.measure,
            reads=(
                Read("credit"),
                Read(probes.BEFORE_UPDATE),
                Read(probes.AFTER_UPDATE),
                weights(1),
                weights(0, measure.AFTER),
                Read(measure.MEASURE, -1, BEFORE),
            ),
            writes=(ProbePair, Improvement, ExtractorTensor, Metric),
        ),
    )
    return Recipe(
        name=config.kind,
        preparation=(
            initialize_stage,
            evaluates,
        ),
        stages=(
            Stage(name="plan", run=plan.plan, writes=(Task,)),
            Stage(
                name="collect",
                reads=(Read("plan"), weights(1)),
                writes=(Episode, Turn, Generation),
                role=ACTOR,
                parts=collect.count_parts,
                run_part=collect.collect_part,
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
                    *map(Read, when(config.learns, probes.BEFORE_UPDATE, probes.AFTER_UPDATE, measure.MEASURE)),
                    Read("health", -1, BEFORE),
                ),
                writes=(Metric,),
            ),
            evaluates,
        ),
        initial={update_name(owner): "initialize"},
        trains=frozenset(method.trained()),
        objectives={
            "grpo": Objective("crl.learn.clipped:clipped_term", config.objective, reference=config.objective.kl > 0)
        },
        row_types=ROWS if config.replays else (),
        check_ready=ready.check_ready,
    )
