"""Samples: generations with an advantage and a weight. All that an update ever reads, whatever produced them.

Here is all of eq. 3 but its clipped sum (`crl/learn/objectives.py`): the batch, the reward of an output, its advantage.
Those of episodes, eq. 5, are in `advantages.py`. An episode makes a sample of each of its sequences, all with its own
advantage. Ids, masks and behavior log-probabilities are copied from the token record: what was sampled is what is
trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crl.config import ActorObjective, ExtractorObjective, StreamObjective
from crl.config.mechanisms import DynamicSampling, PolicyObjective
from crl.credit.advantages import stream_advantages, subgroup_advantages
from crl.credit.buffer import reweight, ripe_items
from crl.credit.turns import token_advantages, turn_advantages
from crl.credit.uses import usable
from crl.errors import RecordDamaged
from crl.records import FREE, GUIDED, SERVER, BufferItem, Episode, Generation, Sample, StrippedContext, Turn


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


def varied_groups(episodes: Iterable[Episode], *, pooled: bool = False) -> set[tuple[str, int]]:
    """(family, group) of the groups of a round in one of whose streams the outcome varies: some rollouts were won and
    others lost. By success, whatever the reward; where `pooled`, of all streams together, for they have one baseline.
    """
    outcomes: dict[Hashable, set[bool]] = defaultdict(set)
    found = set()
    for episode in episodes:
        if usable(episode):
            mine = outcomes[episode.family, episode.group, "" if pooled else episode.stream]
            mine.add(episode.success)
            if len(mine) > 1:
                found.add((episode.family, episode.group))
    return found


def trained_episodes(
    episodes: Sequence[Episode], sampling: DynamicSampling | None, *, pooled: bool = False
) -> list[Episode]:
    """The episodes that an update may learn from: with dynamic sampling those of :func:`varied_groups`."""
    if sampling is None:
        return list(episodes)
    varied = varied_groups(episodes, pooled=pooled)
    return [episode for episode in episodes if (episode.family, episode.group) in varied]


def weighed(
    rollouts: Sequence[tuple[Sequence[Generation], float]], config: PolicyObjective
) -> list[list[tuple[Generation, float]]]:
    """Of each rollout of a step (its sequences, its weight) the sequences that train (:func:`trained_of`), each with
    its weight in the objective, which takes the mean over the tokens of a sequence with `grpo` and else their sum.

    With `grpo` a sequence has the share of the weight that it has of the rollout's trained tokens: the sum is the mean
    over all of them, with |y_k| of eq. 5. Else each has the weight times :func:`token_factor`.
    """
    trained = [trained_of(records) for records, _ in rollouts]
    counts = [[sum(record.loss_mask) for record in records] for records in trained]
    factor = token_factor(config, [weight for _, weight in rollouts], [sum(own) for own in counts])
    found = []
    for (_, weight), records, own in zip(rollouts, trained, counts, strict=True):
        by_share = config.loss_type == "grpo" and any(own)
        shares = [n / sum(own) if by_share else factor for n in own]
        found.append([(record, weight * share) for record, share in zip(records, shares, strict=True)])
    return found


def token_factor(config: PolicyObjective, weights_N: Sequence[float], tokens_N: Sequence[float]) -> float:
    """What the sum over a rollout's tokens is multiplied by, in a step of N rollouts.

    `dr_grpo` divides by a constant length (arXiv 2503.20783). `dapo` and `cispo` take the mean over all tokens of the
    step (arXiv 2503.14476, eq. 8): sum_k w_k sum_t l_kt / sum_k w_k |y_k|, times sum_k w_k, which is 1 where no stream
    is empty. Rollouts without an advantage count. `token_sum` divides by nothing.
    """
    if config.loss_type == "dr_grpo":
        assert config.max_completion_length is not None
        return 1 / config.max_completion_length
    tokens = sum(weight * n for weight, n in zip(weights_N, tokens_N, strict=True))
    return sum(weights_N) / tokens if config.loss_type in ("dapo", "cispo") and tokens else 1.0


def rewarded(reward: float, records: Iterable[Generation], config: PolicyObjective) -> float:
    """The reward that a rollout is compared by: its own, less the soft overlong punishment (arXiv 2503.14476, eq. 13),
    where there is one, of all tokens that the model wrote in it."""
    longest, cache = config.max_completion_length, config.soft_punish_cache
    if longest is None or cache is None:
        return reward
    over = sum(sum(record.loss_mask) for record in records) - (longest - cache)
    return reward - min(1.0, max(0.0, over / cache))


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
    """The sample that an update learns from a token record. Raises RecordDamaged where its log-probabilities are those
    of what a server's cut left, and the objective compares with them."""
    if record.logprobs_by == SERVER and objective != "nll":
        raise RecordDamaged(
            f"{record.generation_id} has the log-probabilities of its server alone, of what top_p, top_k or min_p left",
            expected="rows of behavior_logprobs, from a stage of the round that sampled it",
            where=f"{record.round:04d}/{record.stage}",
            next_step="run `crl verify` on the run",
        )
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
    turns: Sequence[Turn] = (),
) -> list[Sample]:
    """The samples of every usable episode, in the order of `episodes` (eq. 5), one per sequence (:func:`weighed`).
    `generations` is keyed by generation id; `streams` are those that a group of the recipe may have, each with a
    baseline of its own. An episode counts once, however many sequences it has.

    Errored episodes are left out of the subgroup's size, mean and deviation; a group without any usable episode does
    not count among the groups that J is averaged over. Weight of an episode: 1/groups * 1/2 * 1/K_c (1/groups * 1/K
    pooled); its sequences share it. `turns` are those of the episodes, which `turn_credit` needs.
    """
    played = [episode for episode in episodes if usable(episode)]
    where = f"samples of {role}, round {round}"
    records = {episode.episode_id: records_of(episode, generations, where) for episode in played}
    rewards = {episode.episode_id: rewarded(episode.reward, records[episode.episode_id], config) for episode in played}

    def group_of(episode: Episode) -> tuple[int, str, int]:
        return episode.round, episode.family, episode.group

    groups: dict[tuple[int, str, int], list[Episode]] = defaultdict(list)
    for episode in played:
        groups[group_of(episode)].append(episode)
    scored: dict[str, tuple[float, float]] = {}
    for members in groups.values():
        advantages_G, weights_G = subgroup_advantages(
            [rewards[episode.episode_id] for episode in members],
            [episode.stream for episode in members],
            streams=streams,
            scale_rewards=config.scale_rewards,
            mode=config.advantage,
            groups=len(groups),
        )
        for episode, advantage, weight in zip(members, advantages_G, weights_G, strict=True):
            scored[episode.episode_id] = float(advantage), float(weight)
    sequences = weighed([(records[each.episode_id], scored[each.episode_id][1]) for each in played], config)
    samples = [
        grpo_sample(record, role, rewards[each.episode_id], scored[each.episode_id][0], weight, round=round)
        for each, trained in zip(played, sequences, strict=True)
        for record, weight in trained
    ]
    if config.turn_credit is None:
        return samples

    def compared(episode: Episode) -> Hashable:
        return group_of(episode) if config.advantage == "pooled" else (*group_of(episode), episode.stream)

    own = turn_advantages(played, turns, rewards, compared, config.turn_credit)
    sequence_turns: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        sequence_turns[turn.generation_id].append(turn)
    return [
        replace(
            sample,
            token_advantages=token_advantages(
                sequence_turns[sample.generation_id], sample, own, config.turn_credit.weight
            ),
        )
        for sample in samples
    ]


def output_reward(item: BufferItem) -> float:
    """r(m) of eq. 3: the mean of what the uses of an output earned."""
    return item.score_sum / item.uses


def output_advantages(batch: Sequence[BufferItem], config: ExtractorObjective) -> list[float]:
    """Â of eq. 3 of every output of a batch: r(m) less the baseline, the mean r(m) of the batch; of an output that was
    compared with others about its episode the advantage that it has there.

    With `baseline: used` it is the mean of the outputs that are not malformed, if there are any: a flood of malformed
    outputs then does not make experiences that always fail look good.
    """
    compared = [item for item in batch if item.kind != "malformed"] if config.baseline == "used" else []
    rewards = [output_reward(item) for item in compared or batch]
    baseline = sum(rewards) / len(rewards)
    return [output_reward(item) - baseline if item.advantage is None else item.advantage for item in batch]


def _without_gradient(batch: Sequence[BufferItem], config: ExtractorObjective) -> bool:
    """Whether no output of a batch has an advantage. Of equal rewards that is said without arithmetic: their mean may
    differ from them in its last digit."""
    equal = len({output_reward(item) for item in batch}) == 1 and not any(item.advantage for item in batch)
    return equal or not any(output_advantages(batch, config))


def select_batches(
    buffer: Sequence[BufferItem], config: ExtractorObjective, *, round: int
) -> tuple[list[list[BufferItem]], list[BufferItem]]:
    """The batches of this round's updates, oldest first, and the buffer after them.

    As many batches of `config.batch` ripe items (:func:`ripe_items`) as there are, at most `config.max_batches`.

    A batch takes the oldest. Equal rewards have no advantage and train nothing, so where the oldest are all equal the
    last place goes to the oldest item that changes this; where there is none, nothing is taken and all keep waiting.

    The selected items are returned as they are **before** this training (eq. 7 counts earlier ones); in the buffer
    returned they have status `selected`, one more training and this round as the last. All others are unchanged.
    """
    ripe = ripe_items(buffer, config, round=round)
    batches: list[list[BufferItem]] = []
    while len(ripe) >= config.batch and len(batches) < config.max_batches:
        batch = ripe[: config.batch]
        if _without_gradient(batch, config):
            left = ripe[config.batch :]
            other = next((item for item in left if not _without_gradient([*batch[:-1], item], config)), None)
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
    rollouts: Sequence[Rollout],
    objective: StreamObjective,
    weight_of: Callable[[str], float],
    *,
    round: int,
    owner: Callable[[str], str] = str,
) -> list[Sample]:
    """The GRPO samples of rollouts, one per sequence, in their order; `weight_of` is the weight of a rollout of a role,
    and `owner` names the weights that it trains: a step of their own."""
    rewards = [rewarded(each.reward, each.records, objective) for each in rollouts]
    advantages_N = stream_advantages(rewards, [each.group for each in rollouts], objective)
    sequences: dict[int, list[tuple[Generation, float]]] = {}
    for trained in dict.fromkeys(owner(each.role) for each in rollouts):
        places = [place for place, each in enumerate(rollouts) if owner(each.role) == trained]
        of_step = weighed([(rollouts[place].records, weight_of(rollouts[place].role)) for place in places], objective)
        sequences |= zip(places, of_step, strict=True)
    return [
        grpo_sample(record, each.role, rewards[place], float(advantages_N[place]), weight, round=round)
        for place, each in enumerate(rollouts)
        for record, weight in sequences[place]
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
