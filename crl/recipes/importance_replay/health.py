"""Stage `health`: what a round says about play, buffer, scores, probes and updates, from recorded rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from crl.recipes.importance_replay.config import ACTOR, config_of
from crl.recipes.importance_replay.credit import COLLECT
from crl.recipes.importance_replay.measure import CREDIT, MEASURE
from crl.recipes.importance_replay.play import AFTER_UPDATE, BEFORE_UPDATE
from crl.recipes.importance_replay.rows import HELD, Improvement, ReplayDraw, ReplayItem
from crl.records import Episode, Turn
from crl.rounds.alarms import Metrics, turn_metrics
from crl.rounds.context import StageContext
from crl.rounds.health import (
    age_metrics,
    group_metrics,
    mismatch_alarms_of,
    play_metrics,
    token_metrics,
    update_metrics,
    write_health,
)
from crl.rounds.weights import update_name

_CARRIED = ("replay_buffer", "replay_entered", "replay_evicted", "replay_without_advantage", "scores_refreshed")
LAST = 100
"""Episodes of the running mean of rewards."""
_LOSSES = ("extractor_loss", "coupling_loss", "draws_labeled")


def health(ctx: StageContext) -> None:
    """Write the metrics of the round."""
    config = config_of(ctx.method)
    episodes = ctx.rows(Episode, COLLECT)
    turns = ctx.table(Turn, COLLECT)["stop_reason"].to_pylist()
    owner = ctx.method.owner(ACTOR)
    update = ctx.metrics(update_name(owner))
    metrics: Metrics = {
        **play_metrics(episodes),
        **turn_metrics(episodes, turns),
        **group_metrics(episodes, subgroups=False),
        **token_metrics(ACTOR, episodes),
        **update_metrics(owner, update),
        **({"actor_loss": update["loss"]} if "loss" in update else {}),
    }
    if episodes:
        metrics["reward_mean"] = sum(row.reward for row in episodes) / len(episodes)
        last = last_episodes(ctx, episodes)
        metrics[f"reward_mean_{LAST}"] = sum(row.reward for row in last) / len(last)
    if config.replays:
        credited = ctx.metrics(CREDIT)
        metrics |= {name: credited[name] for name in _CARRIED if name in credited}
        metrics |= buffer_metrics([row for row in ctx.rows(ReplayItem, CREDIT) if row.status == HELD])
        metrics |= draw_metrics(ctx.rows(ReplayDraw, CREDIT))
    if config.learns:
        measured = ctx.metrics(MEASURE)
        metrics |= {name: measured[name] for name in _LOSSES if name in measured}
        probes = [row for stage in (BEFORE_UPDATE, AFTER_UPDATE) for row in ctx.rows(Episode, stage)]
        metrics |= {
            "probe_episodes": float(len(probes)),
            **token_metrics("probe", probes),
            **improvement_metrics(ctx.rows(Improvement, MEASURE)),
        }
    write_health(ctx, metrics, {ACTOR}, mismatch_alarms_of(ctx, metrics))


def last_episodes(ctx: StageContext, episodes: Sequence[Episode]) -> list[Episode]:
    """The last :data:`LAST` training episodes of the run, those of this round included."""
    found, number = list(episodes), ctx.round
    while len(found) < LAST and (number := number - 1) > 0:
        if ctx.recipe.resolve(ctx.method, number, COLLECT, 0) is not None:
            found = [*ctx.rows_at(Episode, number, COLLECT), *found]
    return found[-LAST:]


def buffer_metrics(held: Sequence[ReplayItem]) -> Metrics:
    """Mean, least and largest score of the buffer; nothing of an empty one."""
    scores = [item.score for item in held]
    if not scores:
        return {}
    return {"score_mean": sum(scores) / len(scores), "score_min": min(scores), "score_max": max(scores)}


def draw_metrics(draws: Sequence[ReplayDraw]) -> Metrics:
    """What the batches are made of: draws, distinct samples, ages in rounds, mean score; nothing without draws."""
    if not draws:
        return {}
    return {
        "replay_draws": float(len(draws)),
        "replay_distinct": float(len({row.generation_id for row in draws})),
        "replay_score_mean": sum(row.score for row in draws) / len(draws),
        **age_metrics("replay_age", [row.age for row in draws]),
    }


def improvement_metrics(improvements: Sequence[Improvement]) -> Metrics:
    """`probe_gain`: mean of after - before over the probes; `updates_improved`, `updates_worse`: verdicts among those
    of the round (one, one per family, or one per task that was probed)."""
    metrics: Metrics = {
        "updates_improved": float(sum(row.label == 1 for row in improvements)),
        "updates_worse": float(sum(row.label == 0 for row in improvements)),
    }
    pairs = sum(row.pairs for row in improvements)
    if pairs:
        metrics["probe_gain"] = sum(row.pairs * (row.difference or 0.0) for row in improvements) / pairs
    return metrics
