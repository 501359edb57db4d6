"""Self-distillation (`recipe.self_distillation`): episodes that went well are trained on without their experiences too.

Collecting keeps what such an episode looks like with all experience text stripped from its context; credit makes
next-token samples of those that are chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from crl.config import Method, SelfDistillationConfig
from crl.credit.samples import sample_of
from crl.credit.uses import usable
from crl.errors import BadInput, RecordDamaged
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, RowsByType, Sources
from crl.records import Episode, Generation, Sample, StrippedContext
from crl.rollout.play import PlayedEpisode, stripped_context
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of


class SelfDistillation(Mechanism):
    """`recipe.self_distillation`."""

    key = "recipe.self_distillation"
    after_rollouts = True
    config: SelfDistillationConfig

    @property
    def needs_guided(self) -> bool:
        return self.config.guided_only

    def problems(self, method: Method) -> Iterator[BadInput]:
        recipe = config_of(method)
        if ACTOR not in recipe.TRAINED:
            yield BadInput(
                f"recipe {recipe.kind} does not train the actor, so it distills nothing into it",
                expected="a recipe that trains the actor",
                where="method.recipe.self_distillation",
                next_step="set method.recipe.self_distillation to null, or choose another recipe",
            )
        if self.config.episodes == "beats_free" and recipe.always_guided(method):
            yield BadInput(
                "guided episodes are to beat unguided rollouts of the same group, and guided_share leaves none",
                expected="a share that leaves some free, or episodes: wins",
                where="method.recipe.self_distillation.episodes",
                next_step="lower recipe.guided_share, or set self_distillation.episodes to wins",
            )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return {"collect": Adds(writes=(StrippedContext,))}

    def kept(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        chat = ctx.services.policy("actor", weights_of(ctx, "actor")).chat
        guided = [each for each in played if each.episode.guided]
        return {StrippedContext: [stripped_context(chat, each, ctx.method) for each in guided]}


def distilled_samples(
    ctx: StageContext, episodes: Sequence[Episode], generations: Mapping[str, Generation]
) -> list[Sample] | None:
    """Samples of self-distillation; None in rounds where it is not due."""
    config = config_of(ctx.method).self_distillation
    if config is None or not config.due(ctx.round):
        return None
    contexts = {row.episode_id: row for row in ctx.rows(StrippedContext, "collect")}
    return nll_samples(distilled_episodes(episodes, config), contexts, generations, config, round=ctx.round)


def distilled_episodes(episodes: Sequence[Episode], config: SelfDistillationConfig) -> list[Episode]:
    """The episodes to learn from, in their order.

    `beats_free`: guided ones whose reward is above the mean reward of the free episodes of their group, so none where
    a group has no free one. `wins`: guided ones that were won. `all_wins`: all that were won. Episodes that the
    environment broke are left out.
    """
    sound = [episode for episode in episodes if usable(episode)]
    if config.episodes != "beats_free":
        return [episode for episode in sound if episode.success and (episode.guided or not config.guided_only)]
    free: dict[tuple[str, int], list[float]] = defaultdict(list)
    for episode in sound:
        if not episode.guided:
            free[episode.family, episode.group].append(episode.reward)
    means = {group: sum(rewards) / len(rewards) for group, rewards in free.items()}
    return [
        episode
        for episode in sound
        if episode.guided and episode.reward > means.get((episode.family, episode.group), float("inf"))
    ]


def nll_samples(
    episodes: Iterable[Episode],
    contexts: Mapping[str, StrippedContext],
    generations: Mapping[str, Generation],
    config: SelfDistillationConfig,
    *,
    round: int,
    role: str = "actor",
) -> list[Sample]:
    """One sample per episode, in their order; `contexts` by episode id, `generations` by generation id.

    The loss of all of them is weight · mean over their trained tokens of −log π, beside the policy objective: the
    update divides by the tokens of these samples alone. Logits are divided by the temperature that sampled the tokens.
    Nothing was sampled in stripped contexts, so there are no behavior log-probabilities: they are 0 and not read.
    Raises RecordDamaged for a guided episode without a stripped context, or any without a token record.
    """
    samples = []
    for episode in episodes:
        generation = generations.get(episode.generation_id)
        context = contexts.get(episode.episode_id) if episode.guided else generation
        if context is None or generation is None:
            raise RecordDamaged(
                f"episode {episode.episode_id} is to be distilled, but has no "
                + ("stripped context" if context is None else "token record"),
                expected="both from the stage that played it",
                where=f"round {round}",
                next_step="run `crl verify` on the run",
            )
        learned = replace(
            generation,
            token_ids=context.token_ids,
            loss_mask=context.loss_mask,
            choices=context.choices,
            logprobs=[0.0] * len(context.token_ids),
        )
        sample = sample_of(
            learned, round=round, role=role, objective="nll", reward=episode.reward, advantage=1.0, weight=config.weight
        )
        samples.append(replace(sample, sample_id=f"{sample.sample_id}-stripped"))
    return samples
