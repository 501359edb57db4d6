"""Stages `warm_start_actor` and `warm_start_extractor` of round 0: supervised, for form and not for the answer.

What is imitated is made in `demonstrated.py` (an oracle's moves or random ones, templates over real episodes), in
`practice.py` (games under rules that no task has) or in `recorded.py` (games that a person played). Success before and
after is what `evaluate_base` and `evaluate` of round 0 hold. The update runs plainly (TRL's SFTTrainer), and the metric
`deepspeed` says so. With `warm_start.adapters` it begins with an adapter that is there, and without episodes it ends
with it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from crl.credit.uses import usable
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.demonstrated import played_by_script, written_by_template
from crl.recipes.complementary.practice import merged_well, played_well, written_well
from crl.recipes.complementary.recorded import played_again, without_refused
from crl.records import Distillation, Operation, Sample, Weights
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import sample_of, scripted_role
from crl.rounds.proposal import with_cuts
from crl.rounds.waves import write_played
from crl.rounds.weights import CHECKPOINT, new_weights, weights_of


def warm_start_actor(ctx: StageContext) -> None:
    """Demonstrations, then a supervised update of the actor.

    Of the oracle's demonstrations those that were won are learned (all if none was). Of random ones all are: winners
    only would teach which random actions win.
    """
    start = config_of(ctx.method).warm_start
    assert start is not None
    if start.actor_episodes == 0:
        _take(ctx, "actor")
        return
    before = weights_of(ctx, "actor")
    actor = scripted_role(ctx, "actor")
    if start.demonstrations == "practice":
        played = played_well(ctx, actor, start.actor_episodes)
    elif start.demonstrations == "recorded":
        played = played_again(ctx, actor)
    else:
        played = played_by_script(ctx, actor, start.actor_episodes, by_oracle=start.demonstrations == "oracle")
    ctx.require_games()  # before minutes of training on what is left
    won = [each for each in played if each.episode.success]
    write_played(ctx, played)
    learned = won if start.demonstrations == "oracle" and won else [each for each in played if usable(each.episode)]
    recorded = start.demonstrations == "recorded"
    records = [record for each in learned for record in (without_refused(each) if recorded else each.generations)]
    samples = [sample_of(record) for record in records]
    _train(ctx, "actor", before, samples, {"demonstrations": len(played), "demonstrations_won": len(won)})


def warm_start_extractor(ctx: StageContext) -> None:
    """Games and what is written about them, then a supervised update of the extractor."""
    start = config_of(ctx.method).warm_start
    assert start is not None
    if start.extractor_episodes == 0:
        _take(ctx, "extractor")
        return
    before = weights_of(ctx, "extractor")
    extractor = scripted_role(ctx, "extractor")
    if start.demonstrations == "practice":
        # No weights choose what a script says: the games are recorded under those that learn from them.
        actor = dataclasses.replace(scripted_role(ctx, "actor"), weights_digest=before.weights_digest)
        played, results = written_well(ctx, actor, extractor, start.extractor_episodes)
        results += merged_well(ctx, extractor, start.extractor_merges)
    else:
        played, results = written_by_template(ctx, extractor, start.extractor_episodes)
    ctx.require_games()
    outputs = [dataclasses.replace(each.generation, stage=ctx.stage.name) for each in results]
    sound = [row for row, each in zip(outputs, results, strict=True) if each.distillation.reason_code == "ok"]
    write_played(ctx, played, outputs)
    ctx.write(Distillation, [each.distillation for each in results])
    ctx.write(Operation, with_cuts(ctx, [operation for each in results for operation in each.operations]))
    metrics = {"demonstrations": len(results), "demonstrations_in_form": len(sound)}
    _train(ctx, "extractor", before, [sample_of(row) for row in sound], metrics)


def _adapter(ctx: StageContext, role: str) -> Path | None:
    """The adapter that the role begins with; None: the base model as it is."""
    from crl.recipes.complementary.ready import adapter_of

    start = config_of(ctx.method).warm_start
    return None if start is None or start.adapters is None else adapter_of(ctx.method, role).checkpoint


def _take(ctx: StageContext, role: str) -> None:
    """Begin with the adapter as it is: nothing is demonstrated."""
    from crl.learn.checkpoint import take_adapter

    adapter = _adapter(ctx, role)
    assert adapter is not None, "else the stage is not listed"
    take_adapter(adapter, ctx.directory / CHECKPOINT)
    ctx.write(Weights, [new_weights(ctx, weights_of(ctx, role), updates=0)])


def _train(
    ctx: StageContext, role: str, before: Weights, samples: Sequence[Sample], metrics: Mapping[str, float]
) -> None:
    # It brings torch, which whoever only wants to know the stages of a recipe should not wait for.
    from crl.learn.warm_start import run_warm_start
    from crl.policies.machine import computed

    start = config_of(ctx.method).warm_start
    assert start is not None
    trained = run_warm_start(
        computed(ctx.method.role(role)),
        ctx.services.model_path(role),
        samples,
        start,
        seed=int(ctx.seed("training").generate_state(1)[0]),
        threads=ctx.method.threads,
        adapter=_adapter(ctx, role),
        output_dir=ctx.directory / CHECKPOINT,
        on_step=lambda step, steps, loss: ctx.progress(step, steps, training_loss=loss),
    )
    ctx.write(Sample, samples)
    ctx.write(Weights, [new_weights(ctx, before, updates=0)])
    ctx.write_metrics(dict(sorted({**trained, **metrics}.items())))
