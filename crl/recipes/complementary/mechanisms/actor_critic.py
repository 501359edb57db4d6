"""Stage `critique` (actor-critic, eq. 8): the actor critiques what was retrieved for it, before anything is played.

It comes between `plan` and `collect` where `actor_critic` is set, and nowhere else. Its prompt has the success rate
of all episodes of the family in earlier rounds, kept as cumulative rows. Evaluation critiques as well, in its own
stage: the verdict is part of how this actor uses a bank; held-out success with the bank would otherwise measure an
actor that is shown what it never was in training. Verdicts of an evaluation are no rows and reward nobody.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crl.config import ActorCriticConfig, Method
from crl.credit.uses import chosen_by_episode, usable
from crl.errors import BadInput
from crl.protocols import Policy
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, MetricsAndAlarms, Sources, TruthShare
from crl.recipes.complementary.plan import texts_of
from crl.records import Critique, Episode, Generation, Retrieval, SuccessRate, Task
from crl.rollout import critic
from crl.rollout.play import EpisodeSlot
from crl.rounds.context import StageContext
from crl.rounds.health import ALARM_SHARE, tokens_of
from crl.rounds.stage import BEFORE, Read, Stage
from crl.rounds.waves import wave_width
from crl.rounds.weights import weights_of

CRITIQUE = "critique"
PLAYED_BEFORE = "played_before"
"""Name of the read of the episodes of the round before."""


class ActorCritic(Mechanism):
    """`recipe.actor_critic`."""

    key = "recipe.actor_critic"
    after_rollouts = False
    config: ActorCriticConfig

    def problems(self, method: Method) -> Iterator[BadInput]:
        top_k = config_of(method).retrieval.top_k
        if top_k > 1:
            yield BadInput(
                f"the actor critiques one experience per episode (eq. 8), and top_k is {top_k}",
                expected="top_k 1, or no actor_critic",
                where="method.recipe.retrieval.top_k",
                next_step="set it to 1, or leave actor_critic out",
            )

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        before = (Read(CRITIQUE, -1, BEFORE), Read("collect", -1, PLAYED_BEFORE))
        return (
            Stage(
                name=CRITIQUE,
                reads=(Read("plan"), at.played, at.weights(ACTOR, 1), *before),
                writes=(Critique, Generation, SuccessRate),
                untrained=True,
                role=ACTOR,
                parts=count_parts,
                run_part=critique_part,
            ),
        )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return dict.fromkeys(("collect", "credit", "health", "evaluate"), Adds(reads=(Read(CRITIQUE),)))

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        read, sampled = tokens_of(ctx.table(Generation, CRITIQUE))
        shares, alarms = verdict_metrics(ctx.rows(Critique, CRITIQUE))
        return {**shares, "actor_tokens_read": float(read), "actor_tokens_sampled": float(sampled)}, alarms


def count_parts(ctx: StageContext) -> int:
    """Parts of as many experiences as a wave has episodes; one where there is none: the rates are kept."""
    return max(1, -(-len(_chosen(ctx)) // wave_width(ctx.method)))


def critique_part(ctx: StageContext, part: int) -> None:
    """Critique one part of the experiences that the round's plan chose."""
    chosen = _chosen(ctx)[part * wave_width(ctx.method) : (part + 1) * wave_width(ctx.method)]
    rates = _updated(ctx.rows(SuccessRate, BEFORE), ctx.rows(Episode, PLAYED_BEFORE))
    texts = texts_of(ctx, ctx.bank(), {row.content_digest for _, row in chosen})
    weights = weights_of(ctx, "actor")
    critiqued = critic.critique(
        ctx.services.policy("actor", weights),
        [_proposed(task, row, texts[row.content_digest], rates) for task, row in chosen],
        **_settings(ctx),
        seed_of=lambda episode_id: ctx.seed(episode_id),
        temperature=ctx.method.role("actor").sampling.temperature,
        weights_digest=weights.weights_digest,
        stage=ctx.stage.name,
    )
    ctx.write(Critique, [each.critique for each in critiqued])
    ctx.write(Generation, [each.generation for each in critiqued])
    # They are of the round, not of a part: the first one keeps them.
    ctx.write(SuccessRate, [rates[family] for family in sorted(rates)] if part == 0 else [])
    ctx.progress(len(critiqued), len(chosen))


def verdicts_of(ctx: StageContext) -> list[Critique]:
    """The verdicts of the round, read by another stage; none where the actor does not critique."""
    return [] if config_of(ctx.method).actor_critic is None else ctx.rows(Critique, CRITIQUE)


def with_verdicts(slots: Iterable[EpisodeSlot], verdicts: Iterable[Critique]) -> list[EpisodeSlot]:
    """Slots with what the actor's verdicts left of their experiences: refined ones rewritten, rejected ones free."""
    texts = {row.episode_id: row.text for row in verdicts}
    return [
        slot if slot.task.episode_id not in texts else _with_text(slot, texts[slot.task.episode_id]) for slot in slots
    ]


def critiqued_in_evaluation(
    ctx: StageContext,
    policy: Policy,
    slots: Sequence[EpisodeSlot],
    chosen: Mapping[str, Sequence[Retrieval]],
    *,
    seed_of: Callable[[str], np.random.SeedSequence],
    weights_digest: str,
) -> tuple[list[EpisodeSlot], dict[str, tuple[int, int]]]:
    """Slots of held-out episodes as the actor critiques their experiences; as they are where it does not critique.

    Beside them, by episode, how many tokens the actor read and wrote for its verdict.
    """
    if config_of(ctx.method).actor_critic is None:
        return list(slots), {}
    rates = {row.family: row for row in ctx.rows(SuccessRate, CRITIQUE)}
    settings, change = _settings(ctx), ctx.method.evaluation.sampling
    if change is not None:
        role = settings["role"]
        settings["role"] = role.model_copy(update={"sampling": change.over(role.sampling)})
    critiqued = critic.critique(
        policy,
        [
            _proposed(slot.task, chosen[slot.task.episode_id][0], slot.guides[0].experience, rates)
            for slot in slots
            if slot.guides
        ],
        **settings,
        seed_of=seed_of,
        temperature=ctx.method.evaluation.temperature,
        weights_digest=weights_digest,
        stage=ctx.stage.name,
    )
    tokens = {}
    for each in critiqued:
        wrote = sum(each.generation.loss_mask)
        tokens[each.critique.episode_id] = len(each.generation.token_ids) - wrote, wrote
    return with_verdicts(slots, [each.critique for each in critiqued]), tokens


def _settings(ctx: StageContext) -> dict[str, Any]:
    config = config_of(ctx.method)
    return {
        "role": ctx.method.role("actor"),
        "critic": config.actor_critic,
        "prompt": ctx.method.prompts["critic"],
        "own": ctx.method.own_prompts("critic"),
        "output_format": config.distill,
    }


def _chosen(ctx: StageContext) -> list[tuple[Task, Retrieval]]:
    """The planned episodes with their chosen retrieval (`top_k` is 1 where the actor critiques), in planned order."""
    chosen = chosen_by_episode(ctx.rows(Retrieval, "plan"))
    tasks = ctx.rows(Task, "plan")
    return [(task, chosen[task.episode_id][0]) for task in tasks if task.episode_id in chosen]


def _updated(before: Iterable[SuccessRate], episodes: Iterable[Episode]) -> dict[str, SuccessRate]:
    """Cumulative rates by family, with the episodes of one more round."""
    rates = {row.family: row for row in before}
    for episode in episodes:
        if usable(episode):
            old = rates.get(episode.family, SuccessRate(family=episode.family, episodes=0, successes=0))
            rates[episode.family] = dataclasses.replace(
                old, episodes=old.episodes + 1, successes=old.successes + episode.success
            )
    return rates


def _proposed(task: Task, row: Retrieval, experience: str, rates: Mapping[str, SuccessRate]) -> critic.Proposed:
    rate = rates.get(task.family)
    return critic.Proposed(task, row, experience, None if rate is None else rate.successes / rate.episodes)


def _with_text(slot: EpisodeSlot, text: str | None) -> EpisodeSlot:
    guides = () if text is None else (dataclasses.replace(slot.guides[0], experience=text),)
    return dataclasses.replace(slot, guides=guides)


def verdict_metrics(critiques: Sequence[Critique]) -> MetricsAndAlarms:
    """Share of every verdict of a round; malformed and rejected alarm above the bound of outputs."""
    if not critiques:
        return {}, {}
    counts = Counter(row.verdict for row in critiques)
    shares = {verdict: counts[verdict] / len(critiques) for verdict in ("accept", "refine", "reject", "malformed")}
    consequences = {"malformed": "experiences are shown as they are", "reject": "experiences hardly guide any more"}
    alarms = {
        f"verdict_{verdict}": f"{shares[verdict]:.0%} of the verdicts are {verdict} (bound {ALARM_SHARE:.0%}): {told}"
        for verdict, told in consequences.items()
        if shares[verdict] > ALARM_SHARE
    }
    return {f"verdict_{verdict}": share for verdict, share in shares.items()}, alarms
