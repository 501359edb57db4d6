"""Demonstrations for the extractor: noisy experiences about episodes of practice realms, played by a script with a
plan.

The plan is what a hint says, or any two symbols; it is carried out, and wins where it happens to be right. About a won
episode the demonstrated experience says the rule, each word replaced by any symbol of the grid with some probability;
about a lost one, of which nothing can be known, it says any two symbols but those of the plan. So the extractor starts
weak, and reinforcement has something to do. What it reads are ordinary distillation prompts. Chunks of entries to
merge, where asked for, teach the form of that output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from crl.config import Method
from crl.envs.realms import RealmsEnvironment, experience_text, symbol_names
from crl.extractor.distill import DistillItem
from crl.extractor.formats import ParsedOperation, write_operations
from crl.extractor.outputs import Distilled
from crl.extractor.prompts import merge_messages
from crl.lab.warm.actor import plan_text, practice_slots
from crl.lab.warm.advice import STAGE, WAVE, any_two
from crl.lab.warm.config import ExtractorDemonstrations
from crl.protocols import Chat, Lesson
from crl.recipes.complementary.config import config_of
from crl.records import Generation
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.demonstrations import ScriptedRole, play_script, say_script, write_script
from crl.run.seeds import seed_for

_FREE, _TRUE = 0.3, 0.8
"""Below the first an episode is free, below the second guided by the truth, above by an experience of any two
symbols."""
Rule = tuple[str, str]
"""Key and goal, as they are or as somebody thinks they are."""


def extractor_demonstrations(
    chat: Chat, method: Method, config: ExtractorDemonstrations, seed: int, *, first_seed: int
) -> Iterator[list[Distilled]]:
    """Waves of outputs with their token records, about episodes on the practice seeds from `first_seed` on."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    for at in range(0, config.episodes, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, config.episodes))
        random = np.random.default_rng(seed_for(seed, "extractor", at))
        yield _wave(chat, method, config, environment, seeds, random)


def _wave(
    chat: Chat,
    method: Method,
    config: ExtractorDemonstrations,
    environment: RealmsEnvironment,
    seeds: Sequence[int],
    random: np.random.Generator,
) -> list[Distilled]:
    kinds = random.random(len(seeds))
    plans: list[Rule] = []

    def hint(slot: int) -> str | None:
        layout = environment.layout(slot)
        true = _FREE <= kinds[slot] < _TRUE
        plans.append((layout.key, layout.goal) if true else any_two(layout.cells, random))
        return None if kinds[slot] < _FREE else experience_text(*plans[slot])

    slots = practice_slots(environment, seeds, hint, "play")
    played = play_plans(chat, method, environment, slots, plans, random)
    items = [DistillItem(each.episode, tuple(each.turns)) for each in played]
    lessons = [_note_about(item, environment, slot, plans[slot], config, random) for slot, item in enumerate(items)]
    return write_script(
        method, ScriptedRole(chat, method.role("extractor").context), items, lessons, config_of(method).distill
    )


def carrying_out(environment: RealmsEnvironment, plans: Sequence[Rule]) -> Callable[[int], list[str]]:
    """From a slot to the moves that carry out its plan, whether it is right or not; asked once per turn."""
    has_key = [False] * len(plans)

    def ahead(row: int) -> list[str]:
        key, goal = plans[row]
        has_key[row] = has_key[row] or environment.symbol_under(row) == key
        return environment.moves_to(row, goal if has_key[row] else key)

    return ahead


def play_plans(
    chat: Chat,
    method: Method,
    environment: RealmsEnvironment,
    slots: Sequence[EpisodeSlot],
    plans: Sequence[Rule],
    random: np.random.Generator,
) -> list[PlayedEpisode]:
    """Episodes in which each slot's plan is said and carried out, whether it is right or not."""
    ahead, first = carrying_out(environment, plans), [True] * len(slots)

    def say(row: int) -> str:
        move = str(random.choice(ahead(row)))
        said = f"{plan_text(environment, row, plans[row])} {move}" if first[row] else move
        first[row] = False
        return said

    return play_script(method, ScriptedRole(chat, method.role("actor").context), environment, slots, say, stage=STAGE)


def _note_about(
    item: DistillItem,
    environment: RealmsEnvironment,
    slot: int,
    plan: Rule,
    config: ExtractorDemonstrations,
    random: np.random.Generator,
) -> Lesson:
    layout, episode = environment.layout(slot), item.episode
    if random.random() < (config.returns_won if episode.success else config.returns_lost):
        return Lesson("return")
    if episode.success:
        return Lesson("add", experience_text(*_blurred((layout.key, layout.goal), layout.cells, config.noise, random)))
    other = plan
    while other == plan:
        other = any_two(layout.cells, random)
    kind: Literal["add", "update"] = "update" if episode.guided and random.random() < config.updates else "add"
    return Lesson(kind, experience_text(*other))


def _blurred(rule: Rule, symbols: Iterable[str], noise: float, random: np.random.Generator) -> Rule:
    """The rule with each word replaced by any symbol with probability `noise`; the words differ."""
    drawn = any_two(symbols, random)
    key, goal = (word if random.random() >= noise else other for word, other in zip(rule, drawn, strict=True))
    return (key, goal) if key != goal else rule


def merge_demonstrations(
    chat: Chat, method: Method, config: ExtractorDemonstrations, symbols: int, seed: int
) -> list[Generation]:
    """Chunks of experiences with repeated ones among them: repeated experiences become one entry, a single experience
    is kept."""
    random = np.random.default_rng(seed_for(seed, "merge"))
    letters = symbol_names(symbols)
    asked = []
    for index in range(config.merges):
        pool = [experience_text(*any_two(letters, random)) for _ in range(3)]
        shown = [
            str(text) for text in random.choice(pool, size=int(random.integers(2, config_of(method).merge.chunk + 1)))
        ]
        operations = []
        for text in dict.fromkeys(shown):
            places = tuple(place for place, other in enumerate(shown, start=1) if other == text)
            operations.append(
                ParsedOperation("merge", text, places) if len(places) > 1 else ParsedOperation("keep", None, places)
            )
        messages = merge_messages(method.prompts["merge"], method.families[0].name, shown, config_of(method).distill)
        asked.append((f"merge-{index:06d}", messages, write_operations(operations, "lines")))
    voice = ScriptedRole(chat, method.role("extractor").context)
    return say_script(method, voice, asked, role="extractor", kind="merge", stage=STAGE)
