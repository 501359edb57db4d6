"""Self-distillation (`recipe.self_distillation`): episodes that went well are trained on without their experiences too.

Collecting keeps what such an episode looks like with all experience text stripped from its context; credit makes
next-token samples of those that are chosen. An output that was no action is read and not learned: a win shows only that
it did no harm, and learning it round after round unlearns the form of actions (research/falling.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from crl.config import Method, SelfDistillationConfig
from crl.credit.samples import sample_of, stripped_records, trained_of
from crl.credit.uses import usable
from crl.errors import BadInput
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, RowsByType, Sources
from crl.records import QUESTION, Episode, Generation, Sample, StrippedContext, Turn
from crl.rollout.play import PlayedEpisode, stripped_contexts
from crl.rounds.context import StageContext


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

        taught = recipe.context_distillation
        if taught is not None and self.config.share is not None and self.config.share + taught.share >= 1:
            yield BadInput(
                f"self-distillation is to have {self.config.share:g} of the squared gradient and context distillation "
                f"{taught.share:g}, which leaves nothing to the policy objective",
                expected="shares whose sum is below 1",
                where="method.recipe.self_distillation.share",
                next_step="lower one of the two",
            )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return {"collect": Adds(writes=(StrippedContext,))}

    def wave_rows(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        guided = [each for each in played if each.episode.guided]
        return {StrippedContext: [row for each in guided for row in stripped_contexts(each)]}


def distilled_samples(
    ctx: StageContext, episodes: Sequence[Episode], generations: Mapping[str, Generation]
) -> list[Sample] | None:
    """Samples of self-distillation; None in rounds where it is not due."""
    config = config_of(ctx.method).self_distillation
    if config is None or not config.due(ctx.round):
        return None
    contexts = {row.generation_id: row for row in ctx.rows(StrippedContext, "collect")}
    chosen = distilled_episodes(episodes, config)
    turns = ctx.rows(Turn, "collect") if any(episode.invalid_actions for episode in chosen) else []
    return nll_samples(chosen, contexts, generations, config, round=ctx.round, turns=turns)


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
    turns: Iterable[Turn] = (),
    role: str = "actor",
) -> list[Sample]:
    """The samples of episodes, in their order, one per sequence; both maps are by generation id. `turns` are those of
    the episodes: outputs of invalid ones are masked.

    The loss of all of them is weight · mean over their trained tokens of −log π, beside the policy objective: the
    update divides by the tokens of these samples alone. Logits are divided by the temperature that sampled the tokens.
    Raises RecordDamaged for a guided episode without a stripped context, or any without a token record.
    """
    wrote: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        wrote[turn.generation_id].append(turn)
    samples = []
    for episode in episodes:
        stripped = stripped_records(episode, generations, contexts, f"round {round}")
        actions = [_actions_of(learned, generations, wrote, asked=not episode.guided) for learned in stripped]
        for learned in trained_of(actions):
            sample = sample_of(
                learned, round=round, role=role, objective="nll", reward=episode.reward, advantage=1.0,
                weight=config.weight,
            )  # fmt: skip
            samples.append(replace(sample, sample_id=f"{sample.sample_id}-stripped"))
    return samples


def _actions_of(
    learned: Generation, records: Mapping[str, Generation], turns: Mapping[str, Sequence[Turn]], *, asked: bool
) -> Generation:
    """A sequence of which only valid turns are learned; `asked`: turns that asked a question are still in it."""
    played = records[learned.generation_id].loss_mask
    own = [turn for turn in turns[learned.generation_id] if asked or turn.action != QUESTION]
    if all(turn.valid for turn in own):
        return learned
    kept = [turn.valid for turn in own for _ in range(sum(played[turn.first_token : turn.last_token]))]
    trained = [at for at, mask in enumerate(learned.loss_mask) if mask]
    mask = [0] * len(learned.loss_mask)
    for at, keep in zip(trained, kept, strict=True):
        mask[at] = int(keep)
    choices = [each for each, keep in zip(learned.choices, kept, strict=False) if keep]
    return replace(learned, loss_mask=mask, choices=choices)
