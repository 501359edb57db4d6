"""Demonstrations in practice games (`warm_start.demonstrations: practice`): how to play and how to write notes, and no
answer, since the rules that are practiced are nobody's (protocol `Teacher`).

The actor is shown notes that are true and plays as the rule of the game wants; with a true note at hand that is what
the note says, so it learns to read notes. The extractor is shown games of players of any skill, guided by notes that
are true or not, and what a careful player writes about each. Everything goes through rollout and extractor themselves
(a scripted policy speaks), so token records are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from crl.bank.segments import text_digest
from crl.extractor.distill import DistillItem, distill_wave
from crl.extractor.outputs import Distilled
from crl.protocols import Chat, Start, Step, Teacher, TeachingEnvironment
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.plan import task_of
from crl.recipes.complementary.scripted import ScriptedPolicy, as_output
from crl.recipes.context import StageContext
from crl.recipes.waves import of_all, play
from crl.rollout.actions import named_actions
from crl.rollout.play import EpisodeSlot, PlayedEpisode, Progress

WAVE = 16
"""Most demonstrations played side by side."""
TRUE_NOTES = 0.75
"""Share of the extractor's games that are guided by a true note, where they are guided at all."""
_SKILLS = (0.3, 0.5, 0.8, 1.0)
"""Shares of good moves of the players that the extractor reads about."""


class _Practice:
    """A practice environment that remembers the legal actions, for players who do not always find the good one."""

    def __init__(self, environment: TeachingEnvironment) -> None:
        self.environment = environment
        self.actions: dict[int, tuple[str, ...]] = {}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = self.environment.reset_many(seeds)
        self.actions = {slot: named_actions(start.actions) for slot, start in enumerate(starts)}
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = self.environment.step_many(actions)
        self.actions |= {slot: named_actions(step.actions) for slot, step in steps.items()}
        return steps

    def oracle(self, slot: int) -> str | None:
        return self.environment.oracle(slot)

    def close(self) -> None:
        self.environment.close()


def played_well(
    ctx: StageContext, chat: Chat, context: int, episodes: int, *, weights_digest: str
) -> list[PlayedEpisode]:
    """Practice games played as their rules want, under true notes or none: what the actor imitates."""
    played: list[PlayedEpisode] = []
    for practice, slots, _ in _waves(ctx, episodes, true_notes=1.0):

        def say(row: int, practice: _Practice = practice) -> str:
            return _as_answer(ctx, practice.oracle(row) or practice.actions[row][0])

        told = of_all(ctx, len(played), episodes)
        played += _play(ctx, chat, context, practice, slots, say, weights_digest, told)
    return played


def written_well(
    ctx: StageContext, actor: tuple[Chat, int], extractor: tuple[Chat, int], episodes: int, *, weights_digest: str
) -> tuple[list[PlayedEpisode], list[Distilled]]:
    """Practice games of players of any skill, and what a careful player writes about them: what the extractor imitates.

    `actor` and `extractor` are the chat formats and contexts of the two roles.
    """
    played: list[PlayedEpisode] = []
    results: list[Distilled] = []
    batch = config_of(ctx.method).distill.batch
    for practice, slots, random in _waves(ctx, episodes, true_notes=TRUE_NOTES):
        skills = random.choice(_SKILLS, size=len(slots))

        def say(
            row: int,
            practice: _Practice = practice,
            skills: np.ndarray = skills,
            random: np.random.Generator = random,
        ) -> str:
            good = practice.oracle(row) if random.random() < skills[row] else None
            return _as_answer(ctx, good or str(random.choice(practice.actions[row])))

        told = of_all(ctx, len(played), episodes)
        wave = _play(ctx, *actor, practice, slots, say, weights_digest, told)
        items = [DistillItem(each.episode, tuple(each.turns)) for each in wave]
        lessons = [practice.environment.lesson(item.episode, item.turns) for item in items]
        said = [as_output(lesson, config_of(ctx.method).distill.format) for lesson in lessons]
        for at in range(0, len(items), batch):
            part = said[at : at + batch]
            results += distill_wave(
                ScriptedPolicy(*extractor, lambda row, part=part: part[row]),  # type: ignore[misc]
                items[at : at + batch],
                role=ctx.method.role("extractor"),
                prompt=ctx.method.prompts["distill"],
                config=config_of(ctx.method).distill,
                seed_of=lambda distillation_id: ctx.seed(distillation_id),
                weights_digest=weights_digest,
                round=ctx.round,
            )
        played += wave
    return played, results


def _waves(
    ctx: StageContext, episodes: int, *, true_notes: float
) -> Iterator[tuple[_Practice, list[EpisodeSlot], np.random.Generator]]:
    """Waves of practice games of one family each, spread over the families, with the notes that guide them."""
    families = ctx.method.families
    for index, family in enumerate(families):
        count = episodes // len(families) + (index < episodes % len(families))
        environment = ctx.services.environment(family.name)
        assert isinstance(environment, Teacher), "checked before work starts"
        practice = _Practice(environment.practice())
        random = np.random.default_rng(ctx.seed(family.name))
        for at in range(0, count, WAVE):
            seeds = [int(seed) for seed in random.integers(2**31, size=min(WAVE, count - at))]
            starts = practice.reset_many([family.train_seeds.start + seed % family.train_seeds.count for seed in seeds])
            slots = []
            for place, (seed, start) in enumerate(zip(seeds, starts, strict=True)):
                task = task_of(
                    ctx,
                    start,
                    episode_id=f"{ctx.stage.name}-{family.name}-{at + place:05d}",
                    family=family.name,
                    group=at + place,
                    environment_seed=family.train_seeds.start + seed % family.train_seeds.count,
                )
                note = practice.environment.hint(place, random, true=bool(random.random() < true_notes))
                slots.append(
                    EpisodeSlot(task)
                    if note is None
                    else EpisodeSlot(task, f"practice-{at + place:05d}", text_digest(note), note)
                )
            yield practice, slots, random


def _play(
    ctx: StageContext,
    chat: Chat,
    context: int,
    practice: _Practice,
    slots: Sequence[EpisodeSlot],
    say: Callable[[int], str],
    weights_digest: str,
    progress: Progress,
) -> list[PlayedEpisode]:
    return play(
        ctx,
        ScriptedPolicy(chat, context, say),
        slots,
        sampling=ctx.method.role("actor").sampling,
        weights_digest=weights_digest,
        environment=practice,
        progress=progress,
    )


def _as_answer(ctx: StageContext, action: str) -> str:
    return f"<action>{action}</action>" if ctx.method.rollout.action_format == "tag" else action
