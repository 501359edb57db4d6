"""Samples: generations with an advantage and a weight. All that an update ever reads, whatever produced them.

Ids, masks and behavior log-probabilities are copied from the token record: what was sampled is what is trained.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from crl.config import ActorObjective, ExtractorObjective
from crl.credit.advantages import subgroup_advantages
from crl.credit.buffer import reweight
from crl.credit.credit import usable
from crl.errors import RecordDamaged
from crl.records import FREE, GUIDED, BufferItem, Episode, Generation, Sample


def _sample(
    generations: Mapping[str, Generation],
    generation_id: str,
    *,
    round: int,
    role: str,
    objective: str,
    reward: float,
    advantage: float,
    weight: float,
) -> Sample:
    generation = generations.get(generation_id)
    if generation is None:
        raise RecordDamaged(
            f"no token record of {generation_id}",
            expected="the generations of the stage that wrote it",
            where=f"samples of {role}, round {round}",
            next_step="run `crl verify` on the run",
        )
    return Sample(
        sample_id=f"r{round:04d}-{role}-{generation_id}",
        round=round,
        role=role,
        objective=objective,
        source=f"{generation.round:04d}/{generation.stage}",
        generation_id=generation_id,
        reward=reward,
        advantage=advantage,
        # An episode whose every turn left no choice (`sampling.constrain`) has nothing to train.
        weight=weight if any(generation.loss_mask) else 0.0,
        temperature=generation.temperature,
        token_ids=generation.token_ids,
        loss_mask=generation.loss_mask,
        logprobs=generation.logprobs,
        choices=generation.choices,
    )


def grpo_samples(
    episodes: Sequence[Episode],
    generations: Mapping[str, Generation],
    config: ActorObjective,
    *,
    round: int,
    role: str = "actor",
    streams: Sequence[str] = (GUIDED, FREE),
) -> list[Sample]:
    """One sample per usable episode, in the order of `episodes` (eq. 5). `generations` is keyed by generation id;
    `streams` are those that a group of the recipe may have, each with a baseline of its own.

    Errored episodes are left out of the subgroup's size, mean and deviation; a group without any usable episode does
    not count among the groups that J is averaged over. Weight: 1/groups * 1/2 * 1/K_c (1/groups * 1/K pooled).
    """
    groups: dict[tuple[int, str, int], list[Episode]] = defaultdict(list)
    for episode in episodes:
        if usable(episode):
            groups[episode.round, episode.family, episode.group].append(episode)
    scored: dict[str, tuple[float, float]] = {}
    for members in groups.values():
        advantages_G, weights_G = subgroup_advantages(
            [episode.reward for episode in members],
            [episode.stream for episode in members],
            streams=streams,
            normalize=config.normalize,
            mode=config.advantage,
            groups=len(groups),
        )
        for episode, advantage, weight in zip(members, advantages_G, weights_G, strict=True):
            scored[episode.episode_id] = float(advantage), float(weight)
    return [
        _sample(
            generations,
            episode.generation_id,
            round=round,
            role=role,
            objective="grpo",
            reward=episode.reward,
            advantage=scored[episode.episode_id][0],
            weight=scored[episode.episode_id][1],
        )
        for episode in episodes
        if episode.episode_id in scored
    ]


def cispo_samples(
    batches: Sequence[Sequence[BufferItem]],
    generations: Mapping[str, Generation],
    config: ExtractorObjective,
    *,
    round: int,
    role: str = "extractor",
) -> list[Sample]:
    """One sample per selected output, in the order given (eq. 3): r = score_sum / uses, advantage = r - baseline.

    `batches` are of :func:`crl.credit.buffer.select_batches`, so training counts are those of earlier updates; the
    weight is w(m) of eq. 7, and each batch is a step of its own. The baseline is the mean reward of the batch, or with
    `baseline: used` that of its outputs that are not malformed: a flood of malformed outputs then does not make notes
    that always fail look good.
    """
    samples = []
    for step, batch in enumerate(batches):
        baseline = _baseline(batch, config)
        for item in batch:
            reward = item.score_sum / item.uses
            sample = _sample(
                generations,
                item.generation_id,
                round=round,
                role=role,
                objective="cispo",
                reward=reward,
                advantage=reward - baseline,
                weight=reweight(item.train_count, item.last_trained_round, round=round, config=config),
            )
            samples.append(dataclasses.replace(sample, step=step))
    return samples


def _baseline(batch: Sequence[BufferItem], config: ExtractorObjective) -> float:
    rewards = [item.score_sum / item.uses for item in batch]
    if config.baseline == "used":
        in_form = [reward for item, reward in zip(batch, rewards, strict=True) if item.kind != "malformed"]
        rewards = in_form or rewards
    return sum(rewards) / len(rewards)
