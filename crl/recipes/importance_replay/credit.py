"""Stage `credit`: the round's samples enter the buffer, the oldest leave, scores are refreshed, batches are drawn.

A sample keeps the advantage among the rollouts of its group in the round that played it, and the log-probabilities
that it was sampled with: the objective's ratio is off-policy by as much as the actor has moved since. Samples whose
group had equal rewards carry no gradient and stay out of the buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crl.credit.advantages import stream_advantages
from crl.credit.samples import grpo_sample, record_of
from crl.credit.uses import usable
from crl.recipes.importance_replay.buffer import (
    ORDERS_A_ROUND,
    Batch,
    drawn,
    entered,
    noted,
    probabilities,
    refresh_due,
    rescored,
    to_refresh,
)
from crl.recipes.importance_replay.config import ACTOR, NEUTRAL, ImportanceReplayConfig, config_of
from crl.recipes.importance_replay.network import features_of, matrix, network_of, text_of
from crl.recipes.importance_replay.rows import EVICTED, HELD, ReplayDraw, ReplayEmbedding, ReplayItem
from crl.records import Episode, Generation, Metric, Sample, Turn
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE

COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that ended by the rules, with its token record and its advantage."""

    episode: Episode
    generation: Generation
    advantage: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """One sample of one optimizer step."""

    generation: Generation
    reward: float
    advantage: float
    weight: float
    step: int


def credit(ctx: StageContext) -> None:
    """Fill the buffer, draw from it, make the samples of the update."""
    config, episodes = config_of(ctx.method), ctx.rows(Episode, COLLECT)
    played = played_of(episodes, ctx.rows(Generation, COLLECT), config)
    figures = {"episodes_errored": float(sum(not usable(episode) for episode in episodes))}
    if not config.replays:
        chosen = [
            Chosen(each.generation, each.episode.reward, each.advantage, 1 / len(played), step)
            for step in range(config.buffer.steps)
            for each in played
        ]
    else:
        new = [_item(each, place, ctx.round) for place, each in enumerate(played) if _trains(each)]
        items = entered(ctx.rows(ReplayItem, BEFORE), new, config.buffer.capacity)
        gone, held = ([item for item in items if item.status == status] for status in (EVICTED, HELD))
        embeddings = _Embeddings(ctx, new)
        if config.learns:
            held = _refreshed(ctx, held, embeddings)
        batches = _batches(ctx, held, len(played))
        rows = _draws(ctx, batches, held, embeddings)
        chosen = _chosen(ctx, rows, held)
        ctx.write(ReplayItem, [*gone, *noted(held, batches, round=ctx.round)])
        ctx.write(ReplayEmbedding, embeddings.new)
        ctx.write(ReplayDraw, rows)
        figures |= {
            "replay_buffer": float(len(held)),
            "replay_entered": float(len(new)),
            "replay_evicted": float(len(gone)),
            "replay_without_advantage": float(len(played) - len(new)),
            "scores_refreshed": float(sum(item.scored_round == ctx.round for item in held)),
        }
    ctx.write(Sample, [_sample(each, ctx.round) for each in chosen])
    ctx.write(Metric, [_metric(ctx, name, value) for name, value in figures.items()])


def played_of(
    episodes: Iterable[Episode], generations: Iterable[Generation], config: ImportanceReplayConfig
) -> list[Played]:
    """Usable episodes in their order; each advantage is among the rollouts of one group."""
    records = {row.generation_id: row for row in generations}
    ended = [episode for episode in episodes if usable(episode)]
    groups = [(episode.family, episode.group) for episode in ended]
    advantages = stream_advantages([episode.reward for episode in ended], groups, config.objective)
    return [
        Played(episode, record_of(records, episode.generation_id), float(advantage))
        for episode, advantage in zip(ended, advantages, strict=True)
    ]


def _trains(played: Played) -> bool:
    return played.advantage != 0 and any(played.generation.loss_mask)


def _item(played: Played, place: int, round: int) -> ReplayItem:
    episode, record = played.episode, played.generation
    logprobs = [value for value, mask in zip(record.logprobs, record.loss_mask, strict=True) if mask]
    return ReplayItem(
        generation_id=record.generation_id,
        generation_round=record.round,
        generation_stage=record.stage,
        episode_id=episode.episode_id,
        family=episode.family,
        reward=episode.reward,
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
                episodes[episode.generation_id] = episode
            for turn in self._ctx.rows_at(Turn, number, COLLECT):
                turns[turn.episode_id].append(turn)
        chosen = [episodes[item.generation_id] for item in items]
        texts = [text_of(episode, turns[episode.episode_id]) for episode in chosen]
        with self._ctx.timed("embedding", len(texts)):
            vectors = self._ctx.services.embedder().embed(texts).tolist()
        return {item.generation_id: vector for item, vector in zip(items, vectors, strict=True)}


def _refreshed(ctx: StageContext, held: list[ReplayItem], embeddings: _Embeddings) -> list[ReplayItem]:
    config = config_of(ctx.method).extractor
    if not held or not refresh_due(ctx.round, config.refresh_every):
        return held
    places = to_refresh(len(held), config.refresh_samples, np.random.default_rng(ctx.seed("refresh")))
    features_NF = matrix(embeddings.features([held[place] for place in places]))
    scores_N = network_of(ctx, features_NF.shape[1]).scores(features_NF)
    return rescored(held, places, [float(score) for score in scores_N], round=ctx.round)


def _batches(ctx: StageContext, held: Sequence[ReplayItem], episodes: int) -> list[Batch]:
    config = config_of(ctx.method)
    batch = episodes if config.buffer.batch is None else config.buffer.batch
    return drawn(probabilities(_scores(ctx, held)), batch, config.buffer.steps, np.random.default_rng(ctx.seed("draw")))


def _draws(
    ctx: StageContext, batches: Sequence[Batch], held: Sequence[ReplayItem], embeddings: _Embeddings
) -> list[ReplayDraw]:
    learns = config_of(ctx.method).learns
    probabilities_M = probabilities(_scores(ctx, held))
    places = sorted({place for batch in batches for place in batch.places})
    features: dict[int, list[float]] = {}
    if learns:
        features = dict(zip(places, embeddings.features([held[place] for place in places]), strict=True))
    return [
        ReplayDraw(
            step=step,
            generation_id=held[place].generation_id,
            episode_id=held[place].episode_id,
            family=held[place].family,
            draws=draws,
            probability=float(probabilities_M[place]),
            score=held[place].score,
            factor=held[place].score if learns else 1.0,
            age=ctx.round - held[place].generation_round,
            features=features.get(place, []),
        )
        for step, batch in enumerate(batches)
        for place, draws in zip(*batch, strict=True)
    ]


def _scores(ctx: StageContext, held: Sequence[ReplayItem]) -> NDArray[np.float64]:
    """What draws are in proportion to."""
    learns = config_of(ctx.method).learns
    return np.array([item.score if learns else 1.0 for item in held], dtype=np.float64)


def _chosen(ctx: StageContext, draws: Sequence[ReplayDraw], held: Sequence[ReplayItem]) -> list[Chosen]:
    """What the update trains: a sample that was drawn n times of B has the weight n/B times its factor."""
    items = {item.generation_id: item for item in held}
    records = _records(ctx, [items[row.generation_id] for row in draws])
    of_step: dict[int, int] = defaultdict(int)
    for row in draws:
        of_step[row.step] += row.draws
    return [
        Chosen(
            record_of(records, row.generation_id),
            items[row.generation_id].reward,
            items[row.generation_id].advantage,
            row.draws / of_step[row.step] * row.factor,
            row.step,
        )
        for row in draws
    ]


def _records(ctx: StageContext, items: Iterable[ReplayItem]) -> dict[str, Generation]:
    """Token records of samples, from the rounds that played them."""
    wanted: dict[tuple[int, str], set[str]] = defaultdict(set)
    for item in items:
        wanted[item.generation_round, item.generation_stage].add(item.generation_id)
    return {
        row.generation_id: row
        for place, ids in sorted(wanted.items())
        for row in ctx.rows_at(Generation, *place)
        if row.generation_id in ids
    }


def _sample(chosen: Chosen, round: int) -> Sample:
    return grpo_sample(
        chosen.generation, ACTOR, chosen.reward, chosen.advantage, chosen.weight, round=round, step=chosen.step
    )


def _metric(ctx: StageContext, name: str, value: float) -> Metric:
    broke = f"{value:.0f} episodes broke and train nothing" if name == "episodes_errored" and value else None
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=broke)
