"""Self-distillation: episodes that went well, trained by next-token loss without the experience.

The tokens that a guided actor sampled are learned in the context that a free one would have had: the rows
`stripped_contexts`, which the stage that played the episodes wrote. A free one, where it is learned too, is learned as
it was played. In the paper it helps early and collapses late when done in every round;
`method.recipe.self_distillation` says in which rounds it happens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from crl.config import SelfDistillationConfig
from crl.credit.uses import usable
from crl.errors import RecordDamaged
from crl.records import Episode, Generation, Sample, StrippedContext


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
        samples.append(
            Sample(
                sample_id=f"r{round:04d}-{role}-{episode.generation_id}-stripped",
                round=round,
                role=role,
                objective="nll",
                source=f"{generation.round:04d}/{generation.stage}",
                generation_id=episode.generation_id,
                reward=episode.reward,
                advantage=1.0,
                # An episode whose every turn left no choice has nothing to train.
                weight=config.weight if any(context.loss_mask) else 0.0,
                temperature=generation.temperature,
                token_ids=context.token_ids,
                loss_mask=context.loss_mask,
                choices=context.choices,
                logprobs=[0.0] * len(context.token_ids),
            )
        )
    return samples
