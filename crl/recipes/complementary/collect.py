"""Stage `collect`: play the planned episodes, one wave per part; shards are whole waves."""

from __future__ import annotations

from crl.credit.uses import shown_by_episode
from crl.recipes.complementary.asking import advisor_of
from crl.recipes.complementary.bank_access import texts_of
from crl.recipes.complementary.config import config_of, declares_rewards
from crl.recipes.complementary.judge import as_judged, verdicts_of
from crl.records import Episode, Generation, Question, RawReward, Retrieval, StrippedContext, Task, Turn
from crl.rollout.play import PlayedEpisode, stripped_context, waves_of
from crl.rounds.context import StageContext
from crl.rounds.waves import play, sampling_of, slots_of, together
from crl.rounds.weights import weights_of


def count_parts(ctx: StageContext) -> int:
    """Waves of the round."""
    return len(_waves(ctx))


def collect_part(ctx: StageContext, part: int) -> None:
    """Play one wave with the actor of the round before."""
    tasks = _waves(ctx)[part]
    wanted = {task.episode_id for task in tasks}
    chosen = shown_by_episode(row for row in ctx.rows(Retrieval, "plan") if row.episode_id in wanted)
    digests = {row.content_digest for rows in chosen.values() for row in rows}
    bank = ctx.bank()
    texts = texts_of(ctx, bank, digests)
    weights = weights_of(ctx, "actor")
    policy = ctx.services.policy("actor", weights)
    slots = as_judged(slots_of(tasks, chosen, texts), verdicts_of(ctx))
    advisor = advisor_of(ctx, bank, seed_of=lambda question_id: ctx.seed("ask", question_id))
    with ctx.timed("play", len(slots)):
        played = play(
            ctx,
            policy,
            slots,
            sampling=sampling_of(ctx.method, [task.family for task in tasks]),
            weights_digest=weights.weights_digest,
            advisor=advisor,
        )
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    answers = [answer for each in played for answer in each.answers]
    ctx.write(Generation, [*(each.generation for each in played), *answers])
    if ctx.method.rollout.search_and_ask is not None:
        ctx.write(Question, [question for each in played for question in each.questions])
    if declares_rewards(ctx.method):
        declaring = {family.name for family in ctx.method.families if family.reward is not None}
        ctx.write(RawReward, [_raw(each) for each in played if each.episode.family in declaring])
    if config_of(ctx.method).self_distillation is not None:
        guided = [each for each in played if each.episode.guided]
        ctx.write(StrippedContext, [stripped_context(policy.chat, each, ctx.method) for each in guided])


def _raw(played: PlayedEpisode) -> RawReward:
    episode = played.episode
    return RawReward(episode_id=episode.episode_id, family=episode.family, raw_reward=played.raw_reward)


def _waves(ctx: StageContext) -> list[list[Task]]:
    rollout = ctx.method.rollout
    return waves_of(ctx.rows(Task, "plan"), rollout.wave_groups, together(ctx.method))
