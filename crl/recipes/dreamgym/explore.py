"""Stage `explore`: real episodes for the experience model, and what they did as transitions.

The first ones are played at random or by the actor, later ones by the actor of the round before: its states are those
that the model will be asked about. A share of them is played on the training seeds that no fit sees. Parts are waves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crl.config import FamilyConfig, Method
from crl.protocols import Environment, Explains
from crl.recipes.dreamgym.config import ACTOR, config_of
from crl.recipes.dreamgym.corpus import CORPUS
from crl.recipes.dreamgym.rows import EXPLORED, Transition
from crl.recipes.dreamgym.store import split_of
from crl.recipes.dreamgym.watching import Watched, real_transitions
from crl.records import Episode, Generation, Task, Turn
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import as_answer, demonstrate, scripted_role, shares
from crl.rounds.stage import Recipe
from crl.rounds.tasks import task_of
from crl.rounds.waves import kept_environment, play, sampling_of, starts_of
from crl.rounds.weights import weights_of

EXPLORE = "explore"


def due(method: Method, round_number: int) -> bool:
    """Before every fit."""
    return config_of(method).fits(round_number)


def fitted_before(recipe: Recipe, method: Method, round_number: int) -> bool:
    """Whether the experience model was fitted in an earlier round; in a fork also by the run it goes on from."""
    return any(recipe.resolve(method, number, CORPUS, 0) is not None for number in range(1, round_number))


def explorer(recipe: Recipe, method: Method, round_number: int) -> str:
    """Who plays: `random` or `actor`."""
    return ACTOR if fitted_before(recipe, method, round_number) else config_of(method).explore.policy


def seeds_of(ctx: StageContext, family: FamilyConfig, count: int) -> list[int]:
    """Training seeds of `count` episodes: those that fits may see, then those that none does."""
    config, own = config_of(ctx.method), family.train_seeds
    border = config.held_out_from(own.start, own.count)
    held_out = config.held_out(count)
    generator = np.random.default_rng(ctx.seed(family.name))
    seen = own.start + generator.integers(border - own.start, size=count - held_out)
    unseen = border + generator.integers(own.start + own.count - border, size=held_out)
    return [int(seed) for seed in (*seen, *unseen)]


def waves(ctx: StageContext) -> list[tuple[FamilyConfig, list[tuple[int, int]]]]:
    """The episodes of the stage in waves of one family, (group, seed) of each. Groups come after those of the batch."""
    config = config_of(ctx.method).explore
    episodes = config.further if fitted_before(ctx.recipe, ctx.method, ctx.round) else config.first
    width = ctx.method.rollout.wave_groups * ctx.method.rollout.group_size
    group = sum(family.groups for family in ctx.method.families)
    found = []
    for family, count in shares(episodes, ctx.method.families):
        numbered = [(group + index, seed) for index, seed in enumerate(seeds_of(ctx, family, count))] if count else []
        group += count
        found += [(family, numbered[at : at + width]) for at in range(0, count, width)]
    return found


def count_parts(ctx: StageContext) -> int:
    """Waves of the stage."""
    return len(waves(ctx))


def explore_part(ctx: StageContext, part: int) -> None:
    """Play one wave and write what it did."""
    family, numbered = waves(ctx)[part]
    tasks = _tasks(ctx, family, numbered)
    slots = [EpisodeSlot(task) for task in tasks]
    watched, policy = watched_wave(ctx, slots), explorer(ctx.recipe, ctx.method, ctx.round)
    with ctx.timed("play", len(slots)):
        played = _by_chance(ctx, watched, slots, part) if policy == "random" else _by_actor(ctx, watched, slots)
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    ctx.write(Generation, [each.generation for each in played])
    ctx.write(Transition, transitions_of(ctx, tasks, watched, policy))


def watched_wave(ctx: StageContext, slots: Sequence[EpisodeSlot]) -> Watched:
    """The real environment of a wave, watched; where it keeps steps, with those of an earlier attempt at the wave."""
    environment: Environment = ctx.environment(slots[0].task.family)
    # Of a step that it did not take, it cannot say why it went so: one that explains itself takes them all again.
    if not isinstance(environment, Explains):
        environment = kept_environment(ctx, slots, weights_of(ctx, ACTOR).weights_digest)
    return Watched(environment, ctx.method.rollout.longest_observation)


def transitions_of(ctx: StageContext, tasks: Sequence[Task], watched: Watched, policy: str) -> list[Transition]:
    """The rows of what a watched wave did."""
    history = config_of(ctx.method).predict.history
    return [
        row
        for task, seen in zip(tasks, watched.seen, strict=True)
        for row in real_transitions(
            task, seen, split=split_of(ctx.method, task.family, task.environment_seed), policy=policy, history=history
        )
    ]


def _tasks(ctx: StageContext, family: FamilyConfig, numbered: Sequence[tuple[int, int]]) -> list[Task]:
    starts = starts_of(ctx, [(family.name, seed) for _, seed in numbered], played_here=True)
    return [
        task_of(
            ctx, start, episode_id=f"r{ctx.round:04d}-{family.name}-x{group:05d}", family=family.name, group=group,
            environment_seed=seed, stream=EXPLORED,
        )
        for (group, seed), start in zip(numbered, starts, strict=True)
    ]  # fmt: skip


def _by_actor(ctx: StageContext, watched: Watched, slots: Sequence[EpisodeSlot]) -> list[PlayedEpisode]:
    weights = weights_of(ctx, ACTOR)
    return play(
        ctx,
        ctx.services.policy(ACTOR, weights),
        slots,
        sampling=sampling_of(ctx.method, [slot.task.family for slot in slots]),
        weights_digest=weights.weights_digest,
        environment=watched,
    )


def _by_chance(ctx: StageContext, watched: Watched, slots: Sequence[EpisodeSlot], part: int) -> list[PlayedEpisode]:
    """Random legal actions; where a page lists none, nothing."""
    random = np.random.default_rng(ctx.seed("random", part))

    def move(row: int) -> str:
        legal = watched.shown(row)
        return as_answer(ctx.method, str(random.choice(legal)) if legal else "")

    return demonstrate(ctx, scripted_role(ctx, ACTOR), watched, slots, move)
