"""Samples: generations with an advantage and a weight. All that an update ever reads, whatever produced them.

Here is all of eq. 3 but its clipped sum (`crl/learn/objectives.py`): the batch, the reward of an output, its advantage.
Those of episodes, eq. 5, are in `advantages.py`. An episode makes a sample of each of its sequences, all with its own
advantage. Ids, masks and behavior log-probabilities are copied from the token record: what was sampled is what is
trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crl.config import ActorObjective, ClippedObjective, ExtractorObjective
from crl.credit.advantages import stream_advantages, subgroup_advantages
from crl.credit.buffer import reweight, ripe_items
from crl.credit.uses import usable
from crl.errors import RecordDamaged
from crl.records import FREE, GUIDED, BufferItem, Episode, Generation, Sample, StrippedContext


def record_of(records: Mapping[str, Generation], generation_id: str, where: str | None = None) -> Generation:
    """A token record by its id. Raises RecordDamaged, with `where` it was looked for, if there is none."""
    if generation_id not in records:
        raise RecordDamaged(
            f"no token record of {generation_id}",
            expected="the generations of the stage that wrote it",
            where=where,
            next_step="run `crl verify` on the run",
        )
    return records[generation_id]


def records_of(episode: Episode, records: Mapping[str, Generation], where: str | None = None) -> list[Generation]:
    """Token records of an episode's sequences, in their order. Raises as :func:`record_of`."""
    return [record_of(records, name, where) for name in episode.generation_ids]


def stripped_records(
    episode: Episode,
    records: Mapping[str, Generation],
    contexts: Mapping[str, StrippedContext],
    where: str | None = None,
) -> list[Generation]:
    """An episode's sequences as they are learned without its experiences: those of a guided one in their stripped
    contexts. Nothing was sampled there, so there are no behavior log-probabilities: they are 0 and not read.

    Both maps are by generation id. Raises RecordDamaged where one of them lacks a sequence.
    """
    found = []
    for record in records_of(episode, records, where):
        if episode.guided and record.generation_id not in contexts:
            raise RecordDamaged(
                f"no stripped context of {record.generation_id}",
                expected="one of each sequence of a guided episode, from the stage that played it",
                where=where,
                next_step="run `crl verify` on the run",
            )
        made = contexts[record.generation_id] if episode.guided else record
        found.append(
            replace(
                record,
                token_ids=made.token_ids,
                loss_mask=made.loss_mask,
                choices=made.choices,
                logprobs=[0.0] * len(made.token_ids),
            )
        )
    return found


def trained_of(records: Sequence[Generation]) -> list[Generation]:
    """The sequences of an episode that have a trained token; without any the first one, whose sample weighs nothing."""
    return [record for record in records if any(record.loss_mask)] or list(records[:1])


def shared(
    records: Sequence[Generation], aggregation: Literal["token_mean", "token_sum"]
) -> list[tuple[Generation, float]]:
    """The sequences of an episode that train (:func:`trained_of`), each with what its weight is of the episode's.

    With `token_mean` an objective takes the mean over the tokens of a sequence, and the factor is the share of the
    episode's trained tokens that are in it: the sum is the mean over all of them, with |y_k| of eq. 5. With
    `token_sum` it is 1.
    """
    trained = trained_of(records)
    counts = [sum(record.loss_mask) for record in trained]
    by_share = aggregation == "token_mean" and any(counts)
    return [(record, n / sum(counts) if by_share else 1.0) for record, n in zip(trained, counts, strict=True)]


def sample_of(
    record: Generation,
    *,
    round: int,
    role: str,
    objective: str,
    reward: float,
    advantage: float,
    weight: float,
    step: int = 0,
) -> Sample:
    """The sample that an update learns from a token record."""
    return Sample(
        sample_id=f"r{round:04d}-{role}-{record.generation_id}",
        round=round,
        role=role,
        objective=objective,
        source=f"{record.round:04d}/{record.stage}",
        generation_id=record.generation_id,
        reward=reward,
        advantage=advantage,
        # An episode whose every turn left no choice (`sampling.constrain`) has nothing to train.
        weight=weight if any(record.loss_mask) else 0.0,
        step=step,
        temperature=record.temperature,
        token_ids=record.token_ids,
        loss_mask=record.loss_mask,
        logprobs=record.logprobs,
        choices=record.choices,
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
    """The samples of every usable episode, in the order of `episodes` (eq. 5), one per sequence (:func:`shared`).
    `generations` is keyed by generation id; `streams` are those that a group of the recipe may have, each with a
    baseline of its own. An episode counts once, however many sequences it has.

    Errored episodes are left out of the subgroup's size, mean and deviation; a group without any usable episode does
    not count among the groups that J is averaged over. Weight of an episode: 1/groups * 1/2 * 1/K_c (1/groups * 1/K
    pooled); its sequences share it.
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
            scale_rewards=config.scale_rewards,
            mode=config.advantage,
            groups=len(groups),
        )
        for episode, advantage, weight in zip(members, advantages_G, weights_G, strict=True):
            scored[episode.episode_id] = float(advantage), float(weight)
    samples = []
    for episode in episodes:
        if episode.episode_id in scored:
            advantage, weight = scored[episode.episode_id]
            records = records_of(episode, generations, f"samples of {role}, round {round}")
            samples += [
                grpo_sample(record, role, episode.reward, advantage, weight * share, round=round)
                for record, share in shared(records, config.aggregation)
            ]
    return samples


def output_reward(item: BufferItem) -> float:
    """r(m) of eq. 3: the mean of what the uses of an output earned."""
    return item.score_sum / item.uses


def output_advantages(batch: Sequence[BufferItem], config: ExtractorObjective) -> list[float]:
    """Â of eq. 3 of every output of a batch: r(m) less the baseline, the mean r(m) of the batch.

    With `baseline: used` it is the mean of the outputs that are not malformed, if there are any: a flood of malformed
    outputs then does not make experiences that always fail look good.
    """
    compared = [item for item in batch if item.kind != "malformed"] if config.baseline == "used" else []
    rewards = [output_reward(item) for item in compared or batch]
    baseline = sum(rewards) / len(rewards)
    return [output_reward(item) - baseline for item in batch]


def select_batches(
    buffer: Sequence[BufferItem], config: ExtractorObjective, *, round: int
) -> tuple[list[list[BufferItem]], list[BufferItem]]:
    """The batches of this round's updates, oldest first, and the buffer after them.

    As many batches of `config.batch` ripe items (:func:`ripe_items`) as there are, at most `config.max_batches`.

    A batch takes the oldest. Equal rewards have no advantage and train nothing, so where the oldest are all equal the
    last place goes to the oldest item with another reward; where there is none, nothing is taken and all keep waiting.

    The selected items are returned as they are **before** this training (eq. 7 counts earlier ones); in the buffer
    returned they have status `selected`, one more training and this round as the last. All others are unchanged.
    """
    ripe = ripe_items(buffer, config, round=round)
    batches: list[list[BufferItem]] = []
    while len(ripe) >= config.batch and len(batches) < config.max_batches:
        batch = ripe[: config.batch]
        if output_reward(batch[0]) == min(map(output_reward, batch)) == max(map(output_reward, batch)):
            other = next((item for item in ripe if output_reward(item) != output_reward(batch[0])), None)
            if other is None:
                break
            batch[-1] = other
        taken = {item.generation_id for item in batch}
        ripe = [item for item in ripe if item.generation_id not in taken]
        batches.append(batch)
    chosen = {item.generation_id for batch in batches for item in batch}
    after = [
        replace(item, status="selected", train_count=item.train_count + 1, last_trained_round=round)
        if item.generation_id in chosen
        else item
        for item in buffer
    ]
    return batches, after


def cispo_samples(
    batches: Sequence[Sequence[BufferItem]],
    generations: Mapping[str, Generation],
    config: ExtractorObjective,
    *,
    round: int,
    role: str = "extractor",
) -> list[Sample]:
    """One sample per selected output, in the order given: advantage of eq. 3, weight w(m) of eq. 7.

    `batches` are of :func:`select_batches`, so training counts are those of earlier updates; each batch is a step of
    its own.
    """
    return [
        sample_of(
            record_of(generations, item.generation_id, f"samples of {role}, round {round}"),
            round=round,
            role=role,
            objective="cispo",
            reward=output_reward(item),
            advantage=advantage,
            weight=reweight(item.train_count, item.last_trained_round, round=round, config=config),
            step=step,
        )
        for step, batch in enumerate(batches)
        for item, advantage in zip(batch, output_advantages(batch, config), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout of a stream, an episode or a single output, with its reward and the group that it is compared in."""

    role: str
    records: Sequence[Generation]
    """Token records of its sequences."""
    reward: float
    group: Hashable


def rollout_samples(
    rollouts: Sequence[Rollout], objective: ClippedObjective, weight_of: Callable[[str], float], *, round: int
) -> list[Sample]:
    """The GRPO samples of rollouts, one per sequence, in their order; `weight_of` is the weight of a rollout of a
    role."""
    advantages_N = stream_advantages([each.reward for each in rollouts], [each.group for each in rollouts], objective)
    return [
        grpo_sample(record, each.role, each.reward, float(advantage), weight_of(each.role) * share, round=round)
        for each, advantage in zip(rollouts, advantages_N, strict=True)
        for record, share in shared(each.records, objective.aggregation)
    ]


def grpo_sample(
    record: Generation,
    role: str,
    reward: float,
    advantage: float,
    weight: float,
    *,
    round: int,
    step: int | None = None,
) -> Sample:
    """The sample that an update learns from a token record; `step` is its optimizer step, where a round has several."""
    sample = sample_of(
        record,
        round=round,
        role=role,
        objective="grpo",
        reward=reward,
        advantage=advantage,
        weight=weight,
        step=step or 0,
    )
    return sample if step is None else replace(sample, sample_id=f"r{round:04d}-{role}-s{step}-{record.generation_id}")
