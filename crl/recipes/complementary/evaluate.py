"""Stage `evaluate`: held-out seeds, with and without the bank. Read-only: no counter moves, nothing is trained.

Each held-out task has one random stream, the same in every round and arm, so that differences between rounds and arms
are not sampling noise of their own. Rewards are the environments' own, whatever convention a family trains with.
`evaluate_base` is the same for the base model, before a warm start. In round 0 a uniformly random legal policy plays
the tasks as well (arm `random`): success means little until it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from crl.bank.snapshot import Snapshot
from crl.config import FamilyConfig, Method
from crl.credit.uses import shown_by_episode
from crl.protocols import Step, StopReason
from crl.recipes.complementary.asking import advisor_of
from crl.recipes.complementary.bank_access import open_retriever, retrieve_all, texts_of
from crl.recipes.complementary.judge import judged_in_evaluation
from crl.records import FREE, GUIDED, Evaluation, Retrieval, RetrievalCount, Turn
from crl.rollout.actions import named_actions
from crl.rollout.environments import Readable, broke, step_or_error
from crl.rollout.play import PlayedEpisode
from crl.rounds.broken import Game, naming
from crl.rounds.context import BANK, StageContext
from crl.rounds.single_plays import tasks_at, waves_over
from crl.rounds.stage import Read, Stage
from crl.rounds.update import update_name
from crl.rounds.waves import environment_of, play, sampling_of, slots_of
from crl.rounds.weights import weights_of
from crl.run.seeds import seed_for

WITH_BANK, WITHOUT_BANK, RANDOM = "with_bank", "without_bank", "random"
NOWHERE = "nowhere"
"""A stage that no round has: what reads its bank finds an empty one."""
RANDOM_PLAYS = 8
"""Plays of every held-out task by the random policy, in round 0: what success means is seen against it."""
_TOKENS_OF_A_TURN = 8
"""Tokens that a turn takes of the actor's context at least: the marks of two messages, a word in each."""


@dataclass(frozen=True)
class _Wave:
    """One part: an arm and consecutive held-out tasks, each a family and a seed; of one family unless waves mix."""

    arm: str
    tasks: tuple[tuple[str, int], ...]


def due(method: Method, round_number: int) -> bool:
    """After every `evaluation.every` rounds, and before round 1."""
    every = method.evaluation.every
    return every > 0 and round_number % every == 0


def base_due(method: Method, round_number: int) -> bool:
    """Before a warm start, wherever there is evaluation at all."""
    return method.evaluation.every > 0


def without_bank_stage(method: Method) -> Stage:
    """The stage of a recipe whose evaluation sees no bank, whether it keeps one or not."""
    return Stage(
        name="evaluate",
        reads=(Read(update_name(method.owner("actor")), 0, "actor"), Read(NOWHERE, 0, BANK)),
        writes=(Evaluation,),
        role="actor",
        due=due,
        parts=count_parts,
        run_part=evaluate_part,
    )


def count_parts(ctx: StageContext) -> int:
    """Waves over arms and families."""
    return len(_waves(ctx))


def evaluate_part(ctx: StageContext, part: int) -> None:
    """Play one wave of one arm with this round's actor."""
    wave = _waves(ctx)[part]
    if wave.arm == RANDOM:
        ctx.write(Evaluation, _random_plays(ctx, wave))
        return
    weights = weights_of(ctx, "actor")
    tasks = tasks_at(
        ctx,
        wave.tasks,
        name=lambda family, seed: f"e{ctx.round:04d}/{wave.arm}/{family}-s{seed}",
        stream=GUIDED if wave.arm == WITH_BANK else FREE,
    )
    bank = _bank(ctx)
    retrievals: list[Retrieval] = []
    if wave.arm == WITH_BANK:
        counts = ctx.rows(RetrievalCount, "plan")
        retriever = open_retriever(ctx, bank, counts, training=False)
        retrievals = retrieve_all(ctx, retriever, tasks, advance=False)
    chosen = shown_by_episode(retrievals)
    texts = texts_of(ctx, bank, {row.content_digest for rows in chosen.values() for row in rows})
    sampling = sampling_of(ctx.method, [family for family, _ in wave.tasks])
    sampling = sampling.model_copy(update={"temperature": ctx.method.evaluation.temperature})
    policy = ctx.services.policy("actor", weights)
    slots = slots_of(tasks, chosen, texts)
    verdicts: dict[str, tuple[int, int]] = {}
    advisor = None
    if wave.arm == WITH_BANK:
        # Questions are answered as in training; they are no rows here and count nowhere.
        advisor = advisor_of(
            ctx,
            bank,
            seed_of=lambda question_id: seed_for(ctx.method.seed, "evaluation", "ask", question_id.split("/")[-1]),
        )
    with ctx.timed(f"play {wave.arm}", len(slots)):
        if wave.arm == WITH_BANK:
            slots, verdicts = judged_in_evaluation(
                ctx,
                policy,
                slots,
                chosen,
                seed_of=lambda episode_id: seed_for(ctx.method.seed, "evaluation", "judge", episode_id.split("/")[-1]),
                weights_digest=weights.weights_digest,
            )
        played = play(
            ctx,
            policy,
            slots,
            sampling=sampling,
            weights_digest=weights.weights_digest,
            seed_of=lambda episode_id: seed_for(ctx.method.seed, "evaluation", episode_id.split("/")[-1]),
            advisor=advisor,
        )
    for each in played:
        if each.episode.error is not None:  # it counts as lost; the manifest says that it was not played to an end
            ctx.notes[f"error {each.episode.episode_id}"] = each.episode.error
    ctx.write(Evaluation, [_row(ctx, wave.arm, each, verdicts) for each in played])


def _bank(ctx: StageContext) -> Snapshot:
    return Snapshot.of(ctx.round, []) if ctx.stage.name == "evaluate_base" else ctx.bank()


def _waves(ctx: StageContext) -> list[_Wave]:
    arms = [WITHOUT_BANK] + ([WITH_BANK] if len(_bank(ctx)) else [])
    if ctx.round == 0 and ctx.stage.name == "evaluate":
        arms.append(RANDOM)
    if ctx.arms is not None:
        arms = [arm for arm in arms if arm in ctx.arms]
    held_out = waves_over(ctx.method, partial(_held_out, ctx))
    return [_Wave(arm, tuple(tasks)) for arm in arms for tasks in held_out]


def _held_out(ctx: StageContext, family: FamilyConfig) -> range:
    """Seeds of every held-out task of a family, none where it is not wanted."""
    first, wanted = family.evaluation_seeds.start, ctx.families is None or family.name in ctx.families
    return range(first, first + family.evaluation_seeds.count * wanted)


def _random_plays(ctx: StageContext, wave: _Wave) -> list[Evaluation]:
    """The tasks of a wave as a uniformly random legal policy plays them, :data:`RANDOM_PLAYS` times each.

    A task whose start names no action has nothing to draw among: it is left out, and the manifest says so. Where a
    later state names none, the turn goes by without an action. Where no turn limit is known, an episode ends after as
    many turns as the actor's context could hold: there the actor's own would have ended.
    """
    held = ctx.method.role("actor").context // _TOKENS_OF_A_TURN
    limits = {family.name: held for family in ctx.method.families if family.in_round(ctx.round).turn_limit is None}
    environment = Readable(
        environment_of(ctx, [family for family, _ in wave.tasks]), ctx.method.rollout.longest_observation
    )
    rows = []
    for play_number in range(RANDOM_PLAYS):
        with naming(wave.tasks[0][0]):
            starts = environment.reset_many([seed for _, seed in wave.tasks])
        legal = {slot: listed for slot, start in enumerate(starts) if (listed := named_actions(start.actions))}
        for slot, (family, _) in enumerate(wave.tasks):
            if slot not in legal:
                ctx.notes[f"{RANDOM} {family}"] = "left out: the environment names no action to draw"
        streams = [
            np.random.default_rng(seed_for(ctx.method.seed, "evaluation", RANDOM, f"{family}-s{seed}", play_number))
            for family, seed in wave.tasks
        ]
        actions: list[list[str]] = [[] for _ in wave.tasks]
        while legal:
            chosen = {slot: str(streams[slot].choice(listed)) if listed else None for slot, listed in legal.items()}
            begun = {slot: action for slot, action in chosen.items() if starts[slot].error is None}
            steps = step_or_error(environment, begun)
            unbegun = {slot: starts[slot] for slot in chosen if slot not in begun}
            steps |= {slot: broke(start.error or "", start.details) for slot, start in unbegun.items()}
            for slot, step in steps.items():
                actions[slot].append(chosen[slot] or "")
                if not step.done and len(actions[slot]) >= limits.get(wave.tasks[slot][0], np.inf):
                    steps[slot] = step = replace(step, done=True, stop_reason=StopReason.turn_limit)
                if step.done:
                    rows.append(_random_row(ctx, wave.tasks[slot], play_number, actions[slot], step))
                    ctx.note_games([Game(*wave.tasks[slot], step.error, step.details)])
            legal = {slot: named_actions(step.actions) for slot, step in steps.items() if not step.done}
    return rows


def _random_row(
    ctx: StageContext, task: tuple[str, int], play_number: int, actions: list[str], step: Step
) -> Evaluation:
    family, seed = task
    success = step.success and step.error is None
    reason = StopReason.error if step.error is not None else step.stop_reason
    if reason is None:
        reason = StopReason.success if success else StopReason.failure
    return Evaluation(
        evaluation_id=f"e{ctx.round:04d}/{RANDOM}/{family}-s{seed}/{play_number}",
        round=ctx.round,
        arm=RANDOM,
        family=family,
        environment_seed=seed,
        guided=False,
        entry_id=None,
        success=success,
        reward=step.reward if step.error is None else 0.0,
        turns=len(actions),
        invalid_actions=actions.count(""),
        tokens_read=0,
        tokens_sampled=0,
        stop_reason=reason.value,
        actions=actions,
    )


def _row(ctx: StageContext, arm: str, played: PlayedEpisode, verdicts: Mapping[str, tuple[int, int]]) -> Evaluation:
    episode = played.episode
    judged = verdicts.get(episode.episode_id, (0, 0))
    return Evaluation(
        evaluation_id=episode.episode_id,
        round=ctx.round,
        arm=arm,
        family=episode.family,
        environment_seed=episode.environment_seed,
        guided=episode.guided,
        entry_id=episode.entry_id,
        entry_ids=episode.entry_ids,
        success=episode.success,
        reward=played.raw_reward,
        turns=episode.turns,
        invalid_actions=episode.invalid_actions,
        tokens_read=episode.tokens_read + judged[0],
        tokens_sampled=episode.tokens_sampled + judged[1],
        stop_reason=episode.stop_reason,
        actions=[_action(turn) for turn in played.turns],
    )


def _action(turn: Turn) -> str:
    """What a turn did; empty where that was nothing, as a question that was refused is."""
    return (turn.action or "") if turn.valid else ""
