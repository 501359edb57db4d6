"""Stage `health`: what a round says about play, the experience model, its data and updates, from rows alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from crl.credit.uses import usable
from crl.recipes.dreamgym.collect import COLLECT, PLAN
from crl.recipes.dreamgym.config import ACTOR, EXPERIENCE, TEACHER, config_of
from crl.recipes.dreamgym.corpus import ANNOTATE_STAGE
from crl.recipes.dreamgym.explore import EXPLORE, explorer
from crl.recipes.dreamgym.form import OK
from crl.recipes.dreamgym.plan import DRAWN
from crl.recipes.dreamgym.rows import ENDINGS, REAL, DreamTask, PoolItem, Prediction
from crl.recipes.dreamgym.store import POOL
from crl.recipes.dreamgym.validate import DRIFT, FLOORED, UNSEEN, VALIDATE
from crl.records import SUMMARY, SYNTHETIC, Episode, Generation, Turn, rows_with
from crl.rounds.alarms import Metrics, turn_metrics
from crl.rounds.context import StageContext
from crl.rounds.health import (
    group_metrics,
    mismatch_alarms_of,
    play_metrics,
    token_metrics,
    tokens_of,
    update_metrics,
    write_health,
)
from crl.rounds.stage import BEFORE
from crl.rounds.weights import update_name

REAL_STEPS, TOTAL = "real_steps", "real_steps_total"
MOST_MALFORMED = 0.25
"""Above this share of malformed predictions many synthetic episodes are lost."""
TRUTH = (*FLOORED, *map(UNSEEN.format, FLOORED), "seen_share", "epsilon_r", "epsilon_p", "gap_bound")
FEWEST_ALIKE = 8
"""Fewer synthetic episodes may be worth the same by chance."""
BLANK = "blank_observations"
SHARES = ("synthetic_share", "pool_episodes_real", "pool_episodes_synthetic", "pool_batches")

Seen = tuple[str, str, str | None]
"""Of a turn: its episode, what was seen before it, and the action."""


def health(ctx: StageContext) -> None:
    """Write the metrics of the round."""
    played, explored = ctx.rows(Episode, COLLECT), ctx.rows(Episode, EXPLORE)
    before, checked, drifted = (ctx.metrics(name) for name in (BEFORE, VALIDATE, DRIFT))
    of_stream = {stream: [row for row in played if row.stream == stream] for stream in (SYNTHETIC, REAL)}
    steps = real_steps(explored, of_stream[REAL])
    # Random play is recorded in the words of an actor, and nobody read or sampled it.
    acted = [*played, *(explored if explorer(ctx.recipe, ctx.method, ctx.round) == ACTOR else ())]
    metrics: Metrics = {
        **play_metrics(played),
        **turn_metrics(played, ctx.table(Turn, COLLECT)["stop_reason"].to_pylist()),
        **group_metrics(played, subgroups=True),
        REAL_STEPS: float(steps),
        TOTAL: before.get(TOTAL, 0.0) + steps,
        "synthetic_steps": float(sum(row.turns for row in of_stream[SYNTHETIC])),
        **token_metrics(ACTOR, acted),
        **_tokens(ctx, EXPERIENCE, (DRIFT, VALIDATE, PLAN, COLLECT)),
        **(_tokens(ctx, TEACHER, (ANNOTATE_STAGE,)) if TEACHER in config_of(ctx.method).roles() else {}),
        **_of(ctx.metrics("credit"), SHARES),
        **_pools(ctx),
        **_predictions(ctx),
        "new_tasks": float(sum(row.made != DRAWN for row in ctx.rows(DreamTask, PLAN))),
    }
    for stream, episodes in of_stream.items():
        found = play_metrics(episodes)
        if "success" in found:
            metrics[f"success_{stream}"] = found["success"]
    # Between fits the last metrics still describe the model.
    metrics |= _of(checked or before, TRUTH)
    if "drift_observation_agreement" in drifted and "observation_agreement" in before:
        # What the model of the fit before has lost on what the newer policy does.
        metrics["drift"] = before["observation_agreement"] - drifted["drift_observation_agreement"]
    alarms = {}
    steps_blank, endings_blank = blank_steps([*explored, *of_stream[REAL]], _turns(ctx))
    if steps_blank:
        metrics[BLANK] = float(steps_blank)
        alarms[BLANK] = (
            f"{steps_blank} real steps, {endings_blank} of them endings, lead to a blank observation, which no "
            "prediction can say: the model does not learn them; let the environment say what is seen then"
        )
    if metrics.get("dream_malformed", 0.0) > MOST_MALFORMED:
        alarms["dream_malformed"] = (
            f"more than {MOST_MALFORMED:.0%} of the predictions are malformed, and each ends an episode that trains "
            "nothing"
        )
    sound = [row for row in of_stream[SYNTHETIC] if usable(row)]
    if len(sound) >= FEWEST_ALIKE and group_metrics(sound, subgroups=False)["actor_groups_equal"] == 1:
        alarms["success_synthetic"] = (
            "every episode in the experience model is worth as much as the others of its group: the actor learns "
            "nothing there; `ending_accuracy` says whether the model knows how a game ends"
        )
    for owner in sorted(ctx.recipe.trains):
        metrics |= update_metrics(owner, ctx.metrics(update_name(owner))) if owner != EXPERIENCE else {}
    experience = ctx.metrics(update_name(EXPERIENCE))
    if "loss" in experience:
        metrics["experience_loss"] = experience["loss"]
    alarms |= mismatch_alarms_of(ctx, metrics)
    write_health(ctx, metrics, {ACTOR}, alarms)


def real_steps(*episodes: list[Episode]) -> int:
    """Steps that were taken in the real environment: one per turn."""
    return sum(row.turns for rows in episodes for row in rows)


def blank_steps(episodes: Sequence[Episode], turns: Sequence[Seen]) -> tuple[int, int]:
    """How many steps of real episodes lead to a blank observation, and with how many of these the environment ends an
    episode. `turns` are those of these episodes and perhaps others, each episode's in their order."""
    shown: dict[str, list[Seen]] = defaultdict(list)
    for turn in turns:
        shown[turn[0]].append(turn)
    steps = endings = 0
    for episode in episodes:
        own = shown[episode.episode_id]
        after = [*(observation for _, observation, _ in own[1:]), episode.last_observation]
        # A turn that names no action is answered by a rule in the model too; an environment that broke said nothing.
        blank = [
            action is not None and seen is not None and not seen.strip()
            for (_, _, action), seen in zip(own, after, strict=False)
        ]
        steps += sum(blank)
        endings += bool(blank) and blank[-1] and episode.stop_reason in ENDINGS
    return steps, endings


def _turns(ctx: StageContext) -> list[Seen]:
    tables = [ctx.table(Turn, stage).select(["episode_id", "observation", "action"]) for stage in (EXPLORE, COLLECT)]
    rows = [row for table in tables for row in table.to_pylist()]
    return [tuple(row.values()) for row in rows if row["action"] != SUMMARY]


def _pools(ctx: StageContext) -> Metrics:
    sizes = Counter(ctx.table(PoolItem, POOL)["pool"].to_pylist())
    return {f"pool_{name}": float(sizes[name]) for name in (REAL, SYNTHETIC, "held_out")}


def _predictions(ctx: StageContext) -> Metrics:
    """Of the predictions in episodes: the share of malformed ones, and how many similar transitions each was shown."""
    rows = ctx.rows(Prediction, COLLECT)
    if not rows:
        return {}
    return {
        "dream_malformed": sum(row.reason_code != OK for row in rows) / len(rows),
        "neighbors_shown": sum(len(row.neighbors) for row in rows) / len(rows),
    }


def _tokens(ctx: StageContext, role: str, stages: Iterable[str]) -> Metrics:
    """Tokens that a role read and sampled in these stages; nothing where it did neither."""
    written = pa.concat_tables([rows_with(ctx.table(Generation, stage), "role", [role]) for stage in stages])
    read, sampled = tokens_of(written)
    return {f"{role}_tokens_read": float(read), f"{role}_tokens_sampled": float(sampled)} if written.num_rows else {}


def _of(metrics: Metrics, names: tuple[str, ...]) -> Metrics:
    return {name: metrics[name] for name in names if name in metrics}
