"""Stage `credit`: the round's samples enter the buffer, the oldest leave, scores are refreshed, batches are drawn.

A sample keeps the advantage among the rollouts of its group in the round that played it, and the log-probabilities
that it was sampled with: the objective's ratio is off-policy by as much as the actor has moved since. Samples whose
group had equal rewards carry no gradient and stay out of the buffer. What becomes of the buffer (entry, eviction of the
oldest, scores, draws in proportion to them) are pure functions.

A sample is a sequence of an episode. What is counted are episodes, which come and go as a whole: the capacity, and the
draws of a batch. An episode is drawn at most once per batch, by the mean score of its trained tokens, and brings all of
its sequences.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crl.credit.advantages import stream_advantages
from crl.credit.buffer import ORDERS_A_ROUND, chances, drawn_once
from crl.credit.samples import grpo_sample, record_of, records_of, rewarded, trained_episodes, weighed
from crl.credit.uses import usable
from crl.recipes.importance_replay.config import ACTOR, NEUTRAL, ImportanceReplayConfig, config_of
from crl.recipes.importance_replay.network import features_of, matrix, network_of, text_of
from crl.recipes.importance_replay.rows import EVICTED, HELD, ReplayDraw, ReplayEmbedding, ReplayItem
from crl.records import Episode, Generation, Sample, Turn
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE

COLLECT = "collect"


def buffer_after(before: Iterable[ReplayItem], new: Sequence[ReplayItem], capacity: int) -> list[ReplayItem]:
    """The buffer of the round before and its new samples, in order of entry; of more than `capacity` episodes the
    oldest are marked as evicted. What was evicted before is gone."""
    items = [item for item in before if item.status == HELD] + list(new)
    items.sort(key=lambda item: item.entered_order)
    episodes = list(dict.fromkeys(item.episode_id for item in items))
    gone = set(episodes[: max(0, len(episodes) - capacity)])
    return [replace(item, status=EVICTED) if item.episode_id in gone else item for item in items]


def episodes_of(items: Sequence[ReplayItem]) -> list[list[int]]:
    """Places of the sequences of every episode, in the order in which the episodes entered."""
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(item.episode_id, []).append(place)
    return list(places.values())


def score_of(sequences: Sequence[ReplayItem]) -> float:
    """The score of an episode: the mean over its trained tokens, each with the score of its sequence."""
    total = sum(item.trained for item in sequences)
    return sum(item.score * (item.trained / total) for item in sequences)


def drawn(scores_E: Sequence[float], batch: int, steps: int, generator: np.random.Generator) -> list[list[int]]:
    """`steps` batches of at most `batch` different episodes, as their places, ascending; none of an empty buffer."""
    scores = np.array(scores_E, dtype=np.float64)
    return [sorted(drawn_once(scores, batch, generator)) for _ in range(steps if scores.size and batch else 0)]


def refresh_due(round_number: int, episodes: int, every: int) -> bool:
    """Whether scores are refreshed in a round of so many episodes: where it plays the `every`-th of the run, or one of
    its multiples."""
    return round_number * episodes // every > (round_number - 1) * episodes // every


def to_refresh(items: int, most: int | None, generator: np.random.Generator) -> list[int]:
    """Places of the samples that are scored anew: all, or `most` of them drawn evenly without replacement."""
    if most is None or items <= most:
        return list(range(items))
    return sorted(int(place) for place in generator.choice(items, size=most, replace=False))


def rescored(
    items: Sequence[ReplayItem], indices: Sequence[int], scores: Sequence[float], *, round: int
) -> list[ReplayItem]:
    """The items with new scores at these indices."""
    new: Mapping[int, float] = dict(zip(indices, scores, strict=True))
    return [
        replace(item, score=new[place], scored_round=round) if place in new else item
        for place, item in enumerate(items)
    ]


def noted(items: Sequence[ReplayItem], draws: Iterable[ReplayDraw], *, round: int) -> list[ReplayItem]:
    """The items with how often they have been drawn."""
    counts = Counter(row.generation_id for row in draws)
    return [
        replace(item, draws=item.draws + counts[item.generation_id], last_drawn_round=round)
        if item.generation_id in counts
        else item
        for item in items
    ]


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that ended by the rules, with the token records of its sequences, the reward that it is compared by
    and its advantage."""

    episode: Episode
    records: Sequence[Generation]
    reward: float
    advantage: float


def credit(ctx: StageContext) -> None:
    """Fill the buffer, draw from it, make the samples of the update."""
    config, episodes = config_of(ctx.method), ctx.rows(Episode, COLLECT)
    trained = trained_episodes(episodes, ctx.method.rollout.dynamic_sampling)
    played = played_of(trained, ctx.rows(Generation, COLLECT), config)
    metrics = {"episodes_errored": float(sum(not usable(episode) for episode in episodes))}
    if not config.replays:
        sequences = weighed([(each.records, 1 / len(played)) for each in played], config.objective)
        samples = [
            _sample(ctx, record, each.reward, each.advantage, weight, step)
            for step in range(config.buffer.steps)
            for each, of_it in zip(played, sequences, strict=True)
            for record, weight in of_it
        ]
    else:
        numbered = enumerate((each, record) for each in played for record in each.records)
        new = [_item(each, record, n, ctx.round) for n, (each, record) in numbered if _trains(each, record)]
        items = buffer_after(ctx.rows(ReplayItem, BEFORE), new, config.buffer.capacity)
        gone, held = ([item for item in items if item.status == status] for status in (EVICTED, HELD))
        embeddings = _Embeddings(ctx, new)
        if config.learns:
            held = _refreshed(ctx, held, embeddings)
        rows = _draws(ctx, held, len(played), embeddings)
        samples = _samples(ctx, rows, held)
        ctx.write(ReplayItem, [*gone, *noted(held, rows, round=ctx.round)])
        ctx.write(ReplayEmbedding, embeddings.new)
        ctx.write(ReplayDraw, rows)
        metrics |= {
            "replay_buffer": float(_episodes(held)),
            "replay_entered": float(_episodes(new)),
            "replay_evicted": float(_episodes(gone)),
            "replay_without_advantage": float(len(played) - _episodes(new)),
            "scores_refreshed": float(sum(item.scored_round == ctx.round for item in held)),
        }
    ctx.write(Sample, samples)
    broke = f"{metrics['episodes_errored']:.0f} episodes broke and train nothing"
    ctx.write_metrics(metrics, {"episodes_errored": broke if metrics["episodes_errored"] else None})


def played_of(
    episodes: Iterable[Episode], generations: Iterable[Generation], config: ImportanceReplayConfig
) -> list[Played]:
    """Usable episodes in their order; each advantage is among the rollouts of one group."""
    records = {row.generation_id: row for row in generations}
    ended = [(episode, records_of(episode, records)) for episode in episodes if usable(episode)]
    rewards = [rewarded(episode.reward, of_it, config.objective) for episode, of_it in ended]
    groups = [(episode.family, episode.group) for episode, _ in ended]
    advantages = stream_advantages(rewards, groups, config.objective)
    return [
        Played(*each, reward, float(advantage))
        for each, reward, advantage in zip(ended, rewards, advantages, strict=True)
    ]


def _episodes(items: Iterable[ReplayItem]) -> int:
    return len({item.episode_id for item in items})


def _trains(played: Played, record: Generation) -> bool:
    return played.advantage != 0 and any(record.loss_mask)


def _item(played: Played, record: Generation, place: int, round: int) -> ReplayItem:
    episode = played.episode
    logprobs = [value for value, mask in zip(record.logprobs, record.loss_mask, strict=True) if mask]
    return ReplayItem(
        generation_id=record.generation_id,
        generation_round=record.round,
        generation_stage=record.stage,
        episode_id=episode.episode_id,
        family=episode.family,
        environment_seed=episode.environment_seed,
        reward=played.reward,
        advantage=played.advantage,
        turns=episode.turns,
        trained=len(logprobs),
        mean_logprob=sum(logprobs) / len(logprobs),
        entered_order=round * ORDERS_A_ROUND + place,
        score=NEUTRAL,
        scored_round=None,
        draws=0,
        last_drawn_round=None,
        status=HELD,
    )


class _Embeddings:
    """Embeddings of buffered samples: of new ones from the embedder, of others from the round that they came in."""

    def __init__(self, ctx: StageContext, new: Sequence[ReplayItem]) -> None:
        config = config_of(ctx.method)
        self._ctx, self._embeds = ctx, config.embedder() is not None
        self.new: list[ReplayEmbedding] = []
        if config.learns and new:
            vectors = self._embedded(new) if self._embeds else {}
            self.new = [
                ReplayEmbedding(generation_id=item.generation_id, embedding=vectors.get(item.generation_id, []))
                for item in new
            ]

    def features(self, items: Sequence[ReplayItem]) -> list[list[float]]:
        """Features of samples as they are in this round, in their order."""
        found: dict[str, list[float]] = {}
        if self._embeds:
            wanted = {item.generation_id for item in items}
            for number in sorted({item.generation_round for item in items}):
                rows = (
                    self.new
                    if number == self._ctx.round
                    else self._ctx.rows_at(ReplayEmbedding, number, self._ctx.stage.name)
                )
                found |= {row.generation_id: row.embedding for row in rows if row.generation_id in wanted}
            # A fork inherits samples without any from a buffer that was drawn from evenly.
            missing = [item for item in items if item.generation_id not in found]
            found |= self._embedded(missing) if missing else {}
        return [features_of(item, found.get(item.generation_id, []), round=self._ctx.round) for item in items]

    def _embedded(self, items: Sequence[ReplayItem]) -> dict[str, list[float]]:
        """Vectors of samples by id, from their episodes."""
        episodes: dict[str, Episode] = {}
        turns: dict[str, list[Turn]] = defaultdict(list)
        for number in sorted({item.generation_round for item in items}):
            for episode in self._ctx.rows_at(Episode, number, COLLECT):
                episodes[episode.episode_id] = episode
            for turn in self._ctx.rows_at(Turn, number, COLLECT):
                turns[turn.episode_id].append(turn)
        chosen = [episodes[item.episode_id] for item in items]
        texts = [text_of(episode, turns[episode.episode_id]) for episode in chosen]
        with self._ctx.timed("embedding", len(texts)):
            vectors = self._ctx.services.embedder().embed(texts).tolist()
        return {item.generation_id: vector for item, vector in zip(items, vectors, strict=True)}


def _refreshed(ctx: StageContext, held: list[ReplayItem], embeddings: _Embeddings) -> list[ReplayItem]:
    config = config_of(ctx.method).extractor
    if not held or not refresh_due(ctx.round, ctx.method.episodes, config.refresh_every):
        return held
    places = to_refresh(len(held), config.refresh_samples, np.random.default_rng(ctx.seed("refresh")))
    features_NF = matrix(embeddings.features([held[place] for place in places]))
    scores_N = network_of(ctx, features_NF.shape[1]).scores(features_NF)
    return rescored(held, places, [float(score) for score in scores_N], round=ctx.round)


def _draws(ctx: StageContext, held: Sequence[ReplayItem], played: int, embeddings: _Embeddings) -> list[ReplayDraw]:
    """The batches of the update, a row per sequence; one is as large as the round's play unless a setting says."""
    config = config_of(ctx.method)
    episodes = episodes_of(held)
    scores_E = [score_of([held[place] for place in places]) if config.learns else 1.0 for places in episodes]
    batch = played if config.buffer.batch is None else config.buffer.batch
    batches = drawn(scores_E, batch, config.buffer.steps, np.random.default_rng(ctx.seed("draw")))
    chances_E = chances(np.array(scores_E, dtype=np.float64))
    features: dict[int, list[float]] = {}
    if config.learns:
        places = sorted({place for batch in batches for index in batch for place in episodes[index]})
        features = dict(zip(places, embeddings.features([held[place] for place in places]), strict=True))
    return [
        ReplayDraw(
            step=step,
            generation_id=held[place].generation_id,
            episode_id=held[place].episode_id,
            family=held[place].family,
            environment_seed=held[place].environment_seed,
            probability=float(chances_E[index]),
            score=held[place].score,
            factor=scores_E[index],
            age=ctx.round - held[place].generation_round,
            features=features.get(place, []),
        )
        for step, batch in enumerate(batches)
        for index in batch
        for place in episodes[index]
    ]


def _sample(ctx: StageContext, record: Generation, reward: float, advantage: float, weight: float, step: int) -> Sample:
    return grpo_sample(record, ACTOR, reward, advantage, weight, round=ctx.round, step=step)


def _samples(ctx: StageContext, draws: Sequence[ReplayDraw], held: Sequence[ReplayItem]) -> list[Sample]:
    """What the update trains: an episode of a batch of B has the weight 1/B times its factor."""
    items = {item.generation_id: item for item in held}
    records = ctx.generations_at(
        (item.generation_round, item.generation_stage, item.generation_id)
        for item in (items[row.generation_id] for row in draws)
    )
    batches: dict[int, dict[str, list[ReplayDraw]]] = defaultdict(lambda: defaultdict(list))
    for row in draws:
        batches[row.step][row.episode_id].append(row)
    found = []
    for step, episodes in batches.items():
        rollouts = [
            ([record_of(records, row.generation_id) for row in rows], rows[0].factor / len(episodes))
            for rows in episodes.values()
        ]
        for sequences in weighed(rollouts, config_of(ctx.method).objective):
            for record, weight in sequences:
                item = items[record.generation_id]
                found.append(_sample(ctx, record, item.reward, item.advantage, weight, step))
    return found
