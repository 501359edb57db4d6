"""Stages `warm_start_actor` and `warm_start_extractor` of round 0: supervised, for form and not for the answer.

The actor imitates an oracle of the environment, or random legal actions, on training seeds; the extractor imitates
templates over episodes that the warm actor really played. Both demonstrations are made by the rollout and the extractor
themselves (a scripted policy speaks), so their token records are exact. Success before and after is what
`evaluate_base` and `evaluate` of round 0 hold. The update runs plainly (TRL's SFTTrainer), and the metric `deepspeed`
says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from crl.bank.segments import text_digest
from crl.extractor.distill import distill_wave, items_of
from crl.extractor.formats import ParsedOperation, write_operations
from crl.extractor.outputs import Distilled
from crl.protocols import Chat, Environment, Start, Step
from crl.recipes.context import StageContext
from crl.recipes.plan import task_of
from crl.recipes.scripted import ScriptedPolicy
from crl.recipes.waves import play
from crl.recipes.weights import CHECKPOINT, new_weights, weights_of
from crl.records import QUESTION, Distillation, Episode, Generation, Metric, Operation, Sample, Turn, Weights
from crl.rollout.play import EpisodeSlot, PlayedEpisode

WAVE = 16
"""Most demonstrations played side by side."""


class _Watched:
    """An environment that remembers which actions are legal, for moves where its oracle knows none or is not asked."""

    def __init__(self, environment: Environment, seed: np.random.SeedSequence, *, asked: bool) -> None:
        self._environment, self._random, self._asked = environment, np.random.default_rng(seed), asked
        self._actions: dict[int, tuple[str, ...]] = {}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = self._environment.reset_many(seeds)
        self._actions = {slot: start.actions for slot, start in enumerate(starts)}
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = self._environment.step_many(actions)
        self._actions |= {slot: step.actions for slot, step in steps.items()}
        return steps

    def oracle(self, slot: int) -> str | None:
        """The oracle's move where it is asked and knows one, else a random legal one: then only form is taught."""
        move = self._environment.oracle(slot) if self._asked else None
        return move or str(self._random.choice(self._actions[slot]))

    def close(self) -> None:
        self._environment.close()


def warm_start_actor(ctx: StageContext) -> None:
    """Demonstrations, then a supervised update of the actor.

    Of the oracle's demonstrations those that were won are learnt (all if none was). Of random ones all are: winners
    only would teach which random actions win.
    """
    assert ctx.method.warm_start is not None
    by_oracle = ctx.method.warm_start.demonstrations == "oracle"
    before = weights_of(ctx, "actor", stage="initialise")
    chat, context = _chat_of(ctx, "actor", before)
    tag = ctx.method.rollout.action_format == "tag"
    played: list[PlayedEpisode] = []
    for wave in _waves(ctx, ctx.method.warm_start.actor_episodes):
        environment = _Watched(
            ctx.services.environment(wave[0].task.family), ctx.seed("oracle", len(played)), asked=by_oracle
        )

        def say(row: int, environment: _Watched = environment) -> str:
            action = environment.oracle(row) or ""
            return f"<action>{action}</action>" if tag else action

        played += play(
            ctx,
            ScriptedPolicy(chat, context, say),
            wave,
            sampling=ctx.method.actor.sampling,
            weights_digest=before.weights_digest,
            environment=environment,
        )
    won = [each for each in played if each.episode.success]
    _write_episodes(ctx, played)
    learnt = won if by_oracle and won else played
    samples = [_sample(ctx, "actor", each.generation) for each in learnt]
    _train(ctx, "actor", before, samples, {"demonstrations": len(played), "demonstrations_won": len(won)})


def _waves(ctx: StageContext, episodes: int) -> list[list[EpisodeSlot]]:
    """Demonstration episodes on training seeds, spread over the families, cut into waves of one family."""
    families = ctx.method.families
    waves = []
    for index, family in enumerate(families):
        count = episodes // len(families) + (index < episodes % len(families))
        drawn = np.random.default_rng(ctx.seed(family.name)).integers(family.train_seeds.count, size=count)
        seeds = [family.train_seeds.start + int(value) for value in drawn]
        # At least two waves: the extractor's second half is guided by what was written about the first.
        width = min(WAVE, max(1, -(-count // 2)))
        for at in range(0, count, width):
            part = seeds[at : at + width]
            starts = ctx.services.environment(family.name).reset_many(part)
            waves.append(
                [
                    EpisodeSlot(
                        task=task_of(
                            ctx,
                            start,
                            episode_id=f"{ctx.stage.name}-{family.name}-{at + offset:05d}",
                            family=family.name,
                            group=at + offset,
                            environment_seed=seed,
                        )
                    )
                    for offset, (seed, start) in enumerate(zip(part, starts, strict=True))
                ]
            )
    return waves


def warm_start_extractor(ctx: StageContext) -> None:
    """Templates over episodes that the warm actor played, then a supervised update of the extractor.

    The first half of the episodes is free and gets `add`; the second half is guided by what was written about the
    first, so that `update` and `return` occur where they belong.
    """
    assert ctx.method.warm_start is not None
    actor, before = weights_of(ctx, "actor", stage="update_actor"), weights_of(ctx, "extractor", stage="initialise")
    policy = ctx.services.policy("actor", actor)
    chat, context = _chat_of(ctx, "extractor", before)
    waves = _waves(ctx, ctx.method.warm_start.extractor_episodes)
    played: list[PlayedEpisode] = []
    results: list[Distilled] = []
    for index, wave in enumerate(waves):
        notes = [each.operations[0].text for each in results if each.operations and each.operations[0].text]
        slots = _guided(wave, notes) if notes and index >= len(waves) / 2 else wave
        episodes = play(
            ctx,
            policy,
            slots,
            sampling=ctx.method.actor.sampling,
            weights_digest=actor.weights_digest,
        )
        items = items_of(
            [each.episode for each in episodes],
            [turn for each in episodes for turn in each.turns],
            ctx.method.distill.model_copy(update={"episodes": "all"}),
        )
        said = [template_output(item.episode, item.turns, ctx.method.distill.format) for item in items]
        batch = ctx.method.distill.batch
        for at in range(0, len(items), batch):
            part = said[at : at + batch]
            results += distill_wave(
                ScriptedPolicy(chat, context, lambda row, part=part: part[row]),  # type: ignore[misc]
                items[at : at + batch],
                method=ctx.method,
                seed_of=lambda distillation_id: ctx.seed(distillation_id),
                weights_digest=before.weights_digest,
                round=ctx.round,
            )
        played += episodes
        ctx.progress(len(played), sum(len(each) for each in waves))
    outputs = [dataclasses.replace(each.generation, stage=ctx.stage.name) for each in results]
    sound = [row for row, each in zip(outputs, results, strict=True) if each.distillation.reason_code == "ok"]
    _write_episodes(ctx, played, outputs)
    ctx.write(Distillation, [each.distillation for each in results])
    ctx.write(Operation, [operation for each in results for operation in each.operations])
    figures = {"demonstrations": len(results), "demonstrations_in_form": len(sound)}
    _train(ctx, "extractor", before, [_sample(ctx, "extractor", row) for row in sound], figures)


def template_output(episode: Episode, turns: Sequence[Turn], form: Literal["json", "lines"]) -> str:
    """A plain, true sentence about an episode, as the operation that fits: form without judgement."""
    actions = [turn.action for turn in turns if turn.action and turn.action != QUESTION]
    moves = ", ".join(actions[:6]) or "nothing legal"
    if episode.success:
        text = f"From such a start, {moves} reached the goal."
    else:
        text = f"From such a start, {moves} did not reach the goal; try another way."
    if not episode.guided:
        operation = ParsedOperation("add", text)
    elif episode.success:
        operation = ParsedOperation("return")
    else:
        operation = ParsedOperation("update", text)
    return write_operations([operation], form)


def _guided(wave: Sequence[EpisodeSlot], notes: Sequence[str]) -> list[EpisodeSlot]:
    """Half of a wave guided by notes, which no bank holds: these episodes exist to be written about."""
    return [
        dataclasses.replace(
            slot,
            entry_id=f"warm-{index:05d}",
            content_digest=text_digest(notes[index % len(notes)]),
            experience=notes[index % len(notes)],
        )
        if index % 2 == 0
        else slot
        for index, slot in enumerate(wave)
    ]


def _chat_of(ctx: StageContext, role: str, weights: Weights) -> tuple[Chat, int]:
    policy = ctx.services.policy(role, weights)
    return policy.chat, policy.context


def _write_episodes(ctx: StageContext, played: Sequence[PlayedEpisode], outputs: Sequence[Generation] = ()) -> None:
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    ctx.write(Generation, [*(each.generation for each in played), *outputs])


def _sample(ctx: StageContext, role: str, generation: Generation) -> Sample:
    return Sample(
        sample_id=f"{ctx.stage.name}-{generation.generation_id}",
        round=ctx.round,
        role=role,
        objective="nll",
        source=f"{ctx.round:04d}/{ctx.stage.name}",
        generation_id=generation.generation_id,
        reward=0.0,
        advantage=1.0,
        weight=1.0,
        temperature=1.0,
        token_ids=generation.token_ids,
        loss_mask=generation.loss_mask,
        logprobs=generation.logprobs,
    )


def _train(
    ctx: StageContext, role: str, before: Weights, samples: Sequence[Sample], figures: Mapping[str, float]
) -> None:
    # It brings torch, which whoever only wants to know the stages of a recipe should not wait for.
    from crl.learn.warm_start import run_warm_start

    assert ctx.method.warm_start is not None
    metrics = run_warm_start(
        ctx.method.role(role),
        ctx.services.model_path(role),
        samples,
        ctx.method.warm_start,
        seed=int(ctx.seed("training").generate_state(1)[0]),
        threads=ctx.method.threads,
        output_dir=ctx.directory / CHECKPOINT,
    )
    ctx.write(Sample, samples)
    ctx.write(Weights, [new_weights(ctx, before, updates=0)])
    ctx.write(
        Metric,
        [
            Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=float(value), alarm=None)
            for name, value in sorted({**metrics, **figures}.items())
        ],
    )
