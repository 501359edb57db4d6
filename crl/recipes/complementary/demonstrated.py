"""Demonstrations in the tasks' own environments (`warm_start.demonstrations: oracle` or `random`).

The actor imitates an oracle of the environment, or random legal actions, on training seeds; the extractor imitates
templates over episodes that the warm actor really played. Practice games, for environments that have them, are in
`practice.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from crl.extractor.distill import items_of
from crl.extractor.outputs import Distilled
from crl.protocols import Environment, Instructive, Lesson
from crl.recipes.complementary.config import config_of
from crl.records import QUESTION, Episode, Turn
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import (
    WAVE,
    ScriptedRole,
    Watched,
    as_answer,
    demonstrate,
    demonstration,
    shares,
    slot_with,
    write_script,
)
from crl.rounds.waves import of_all, play, sampling_of, starts_of
from crl.rounds.weights import weights_of


def played_by_script(ctx: StageContext, actor: ScriptedRole, episodes: int, *, by_oracle: bool) -> list[PlayedEpisode]:
    """Episodes of the oracle, or of random legal actions: what the actor imitates.

    Where the oracle knows no move, it is a random legal one: then only form is taught.
    """
    played: list[PlayedEpisode] = []
    waves = _waves(ctx, episodes)
    for wave in waves:
        environment = Watched(ctx.environment(wave[0].task.family))
        random = np.random.default_rng(ctx.seed("oracle", len(played)))

        def move(row: int, environment: Watched = environment, random: np.random.Generator = random) -> str:
            action = environment.oracle(row) if by_oracle else None
            legal = environment.actions[row]
            said = action or (str(random.choice(legal)) if legal else "")
            return as_answer(ctx.method, said, environment.shown[row])

        progress = of_all(ctx, len(played), sum(map(len, waves)))
        played += demonstrate(ctx, actor, environment, wave, move, progress)
    return played


def _waves(ctx: StageContext, episodes: int) -> list[list[EpisodeSlot]]:
    """Demonstration episodes on training seeds, spread over the families, cut into waves of one family."""
    waves = []
    for family, count in shares(episodes, ctx.method.families):
        drawn = np.random.default_rng(ctx.seed(family.name)).integers(len(family.drawn), size=count)
        seeds = [family.drawn[int(value)] for value in drawn]
        # At least two waves: the extractor's second half is guided by what was written about the first.
        width = min(WAVE, max(1, -(-count // 2)))
        for at in range(0, count, width):
            part = seeds[at : at + width]
            starts = starts_of(ctx, [(family.name, seed) for seed in part], played_here=True)
            numbered = enumerate(zip(part, starts, strict=True), start=at)
            waves.append(
                [EpisodeSlot(demonstration(ctx, family, each, seed, start)) for each, (seed, start) in numbered]
            )
    return waves


def written_by_template(
    ctx: StageContext, extractor: ScriptedRole, episodes: int
) -> tuple[list[PlayedEpisode], list[Distilled]]:
    """Episodes that the warm actor played, and templates about them: what the extractor imitates.

    The first half of a family's episodes is free and gets `add`; the second half is guided by what was written about
    the first, so that `update` and `return` occur where they belong.
    """
    config, waves = config_of(ctx.method), _waves(ctx, episodes)
    actor = weights_of(ctx, "actor")
    policy = ctx.services.policy("actor", actor)
    played: list[PlayedEpisode] = []
    results: list[Distilled] = []
    experiences: dict[str, list[str]] = defaultdict(list)
    all_waves, done = Counter(wave[0].task.family for wave in waves), Counter[str]()
    for wave in waves:
        family = wave[0].task.family
        slots = (
            _guided(wave, experiences[family])
            if experiences[family] and done[family] >= all_waves[family] / 2
            else wave
        )
        finished = play(
            ctx,
            policy,
            slots,
            sampling=sampling_of(ctx.method, [slot.task.family for slot in slots]),
            weights_digest=actor.weights_digest,
            progress=of_all(ctx, len(played), sum(map(len, waves))),
        )
        items = items_of(
            [each.episode for each in finished],
            [turn for each in finished for turn in each.turns],
            config.distill.model_copy(update={"episodes": "all"}),
        )
        environment = ctx.environment(family)
        lessons = [lesson_about(environment, item.episode, item.turns) for item in items]
        made = write_script(ctx.method, extractor, items, lessons, config.distill, round=ctx.round)
        experiences[family] += [text for each in made if each.operations and (text := each.operations[0].text)]
        results += made
        played += finished
        done[family] += 1
    return played, results


def lesson_about(environment: Environment, episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """What a demonstration writes about an episode: the environment's own lesson, or plain true sentences."""
    if isinstance(environment, Instructive):
        return environment.lesson(episode, turns)
    actions = [turn.action for turn in turns if turn.action and turn.action != QUESTION]
    moves = ", ".join(actions[:6]) + (", …" if len(actions) > 6 else "")
    if episode.success:
        text = f"One game was won by {moves}."
    elif moves:
        text = f"One game was lost after {moves}."
    else:
        text = "One game was lost because no answer named a possible action."
    if not episode.guided:
        return Lesson("add", text)
    return Lesson("return") if episode.success else Lesson("update", text)


def _guided(wave: Sequence[EpisodeSlot], experiences: Sequence[str]) -> list[EpisodeSlot]:
    """Half of a wave guided by experiences, which no bank holds: these episodes exist to be written about."""
    return [
        slot_with(slot.task, experiences[index % len(experiences)] if index % 2 == 0 else None, f"warm-{index:05d}")
        for index, slot in enumerate(wave)
    ]
