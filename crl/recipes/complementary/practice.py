"""Demonstrations in practice games (`warm_start.demonstrations: practice`): how to play and how to write experiences,
and no answer, since the rules that are practiced are nobody's (protocol `Teacher`).

The actor is shown experiences that are true and plays as the rule of the game wants; with a true experience at hand
that is what the experience says, so it learns to read experiences. The extractor is shown games of players of any
skill, guided by experiences that are true or not, and what a careful player writes about each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crl.extractor.distill import DistillItem
from crl.extractor.formats import ParsedOperation
from crl.extractor.outputs import Distilled
from crl.protocols import Teacher, TeachingEnvironment
from crl.recipes.complementary.config import config_of
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import (
    WAVE,
    ScriptedRole,
    Watched,
    as_answer,
    demonstrate,
    demonstration,
    merge_script,
    shares,
    slot_with,
    write_script,
)
from crl.rounds.waves import of_all
from crl.text.unicode import valid_text

TRUE_EXPERIENCES = 0.75
"""Share of the extractor's games that are guided by a true experience, where they are guided at all."""
FREE = 0.5
"""Share of the extractor's games that nothing guides, as in a round. One of them that is lost late is rare, and the
hardest to write about: an extractor that saw few such games calls the last thing that was tried the rule."""
_SKILLS = (0.3, 0.5, 0.7, 0.9)
"""Shares of good moves of the players that the extractor reads about."""


def played_well(ctx: StageContext, actor: ScriptedRole, episodes: int) -> list[PlayedEpisode]:
    """Practice games played as their rules want, under true experiences or none: what the actor imitates."""
    played: list[PlayedEpisode] = []
    for _, practice, slots, _ in _waves(ctx, episodes, true_experiences=1.0, free=0.0):

        def move(row: int, practice: Watched = practice) -> str:
            return as_answer(ctx.method, practice.oracle(row) or practice.actions[row][0])

        played += demonstrate(ctx, actor, practice, slots, move, of_all(ctx, len(played), episodes))
    return played


def written_well(
    ctx: StageContext, actor: ScriptedRole, extractor: ScriptedRole, episodes: int
) -> tuple[list[PlayedEpisode], list[Distilled]]:
    """Practice games of players of any skill, and what a careful player writes about them: what the extractor
    imitates."""
    played: list[PlayedEpisode] = []
    results: list[Distilled] = []
    for teacher, practice, slots, random in _waves(ctx, episodes, true_experiences=TRUE_EXPERIENCES, free=FREE):
        skills = random.choice(_SKILLS, size=len(slots))

        def move(
            row: int,
            practice: Watched = practice,
            skills: np.ndarray = skills,
            random: np.random.Generator = random,
        ) -> str:
            good = practice.oracle(row) if random.random() < skills[row] else None
            return as_answer(ctx.method, good or str(random.choice(practice.actions[row])))

        wave = demonstrate(ctx, actor, practice, slots, move, of_all(ctx, len(played), episodes))
        items = [DistillItem(each.episode, tuple(each.turns)) for each in wave]
        lessons = [teacher.lesson(item.episode, item.turns) for item in items]
        config = config_of(ctx.method).distill
        results += write_script(ctx.method, extractor, items, lessons, config, round=ctx.round)
        played += wave
    return played, results


def merged_well(ctx: StageContext, extractor: ScriptedRole, lists: int) -> list[Distilled]:
    """Lists of experiences of one practice game each, true or not, and what a careful player makes of them: what the
    extractor imitates when it merges."""
    results: list[Distilled] = []
    most = config_of(ctx.method).merge.chunk
    for family, count in shares(lists, ctx.method.families):
        environment = ctx.environment(family.name)
        assert isinstance(environment, Teacher), "checked before work starts"
        teacher, random = environment.practice(), np.random.default_rng(ctx.seed("merge", family.name))
        done = 0
        while done < count:
            teacher.reset_many([family.drawn[int(random.integers(len(family.drawn)))]])
            drawn = [
                teacher.hint(0, random, true=bool(random.random() < TRUE_EXPERIENCES))
                for _ in range(int(random.integers(2, 2 * most)))
            ]
            texts = [valid_text(each) for each in drawn if each is not None][:most]
            if len(texts) < 2:
                continue
            operations = [
                ParsedOperation("merge", text, tuple(place + 1 for place in places))
                if len(places) > 1
                else ParsedOperation("keep", None, (places[0] + 1,))
                for text, places in teacher.tidied(texts)
            ]
            name = f"practice-{family.name}-{done:05d}"
            config = config_of(ctx.method).distill
            results += merge_script(
                ctx.method, extractor, family.name, name, texts, operations, config, round=ctx.round
            )
            done += 1
    return results


def _waves(
    ctx: StageContext, episodes: int, *, true_experiences: float, free: float
) -> Iterator[tuple[TeachingEnvironment, Watched, list[EpisodeSlot], np.random.Generator]]:
    """Waves of practice games of one family each, spread over the families, with the experiences that guide them."""
    for family, count in shares(episodes, ctx.method.families):
        environment = ctx.environment(family.name)
        assert isinstance(environment, Teacher), "checked before work starts"
        teacher = environment.practice()
        practice = Watched(teacher)
        random = np.random.default_rng(ctx.seed(family.name))
        for at in range(0, count, WAVE):
            drawn = random.integers(2**31, size=min(WAVE, count - at))
            seeds = [family.drawn[int(value) % len(family.drawn)] for value in drawn]
            starts = practice.reset_many(seeds)
            slots = []
            for place, (seed, start) in enumerate(zip(seeds, starts, strict=True)):
                task = demonstration(ctx, family, at + place, seed, start)
                guides = not free or random.random() >= free
                hint = teacher.hint(place, random, true=bool(random.random() < true_experiences))
                experience = hint if guides else None
                slots.append(slot_with(task, experience and valid_text(experience), f"practice-{at + place:05d}"))
            yield teacher, practice, slots, random
