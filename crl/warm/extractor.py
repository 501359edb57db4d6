"""Demonstrations for the extractor: noisy notes about episodes that the warm actor really played in practice realms.

The notes are drawn from the practice rule, which the extractor never reads: key and goal words are each replaced by any
symbol of the grid with some probability, so it starts weak, and reinforcement has something to do. What it reads are
ordinary distillation prompts. Chunks of entries to merge, where asked for, teach the form of that output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from crl.config import Method
from crl.envs.realms import RealmsEnvironment, note
from crl.extractor.distill import DistillItem, distill_wave
from crl.extractor.formats import ParsedOperation, write_operations
from crl.extractor.outputs import Distilled
from crl.extractor.prompts import merge_messages, prompt_text
from crl.protocols import Chat, Policy
from crl.recipes.scripted import ScriptedPolicy
from crl.records import Generation
from crl.rollout.play import play_wave
from crl.run.seeds import seed_for
from crl.warm.actor import practice_slots
from crl.warm.config import ExtractorDemonstrations
from crl.warm.rows import STAGE, written_row

WAVE = 500
"""Episodes played side by side."""
_FREE, _TRUE = 0.4, 0.7
"""Below the first an episode is free, below the second guided by the truth, above by a note of any two symbols."""


def extractor_demonstrations(
    actor: Policy, chat: Chat, method: Method, config: ExtractorDemonstrations, seed: int, *, first_seed: int
) -> Iterator[list[Distilled]]:
    """Waves of outputs with their token records, about episodes on the practice seeds from `first_seed` on."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    for at in range(0, config.episodes, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, config.episodes))
        random = np.random.default_rng(seed_for(seed, "extractor", at))
        yield _wave(actor, chat, method, config, environment, seeds, random, seed)


def _wave(
    actor: Policy,
    chat: Chat,
    method: Method,
    config: ExtractorDemonstrations,
    environment: RealmsEnvironment,
    seeds: Sequence[int],
    random: np.random.Generator,
    seed: int,
) -> list[Distilled]:
    kinds = random.random(len(seeds))

    def hint(slot: int) -> str | None:
        layout = environment.layout(slot)
        if kinds[slot] < _FREE:
            return None
        if kinds[slot] < _TRUE:
            return note(layout.key, layout.goal)
        first, second = random.choice(sorted(layout.cells), size=2, replace=False)
        return note(str(first), str(second))

    slots = practice_slots(environment, seeds, hint, "play")
    played = play_wave(
        actor,
        environment,
        slots,
        method=method,
        seed_of=lambda episode_id: seed_for(seed, "play", episode_id),
        sampling=method.actor.sampling,
        weights_digest="",
        stage=STAGE,
    )
    items = [DistillItem(each.episode, tuple(each.turns)) for each in played]
    said = [_note_about(item, environment, slot, config, random) for slot, item in enumerate(items)]
    return distill_wave(
        ScriptedPolicy(chat, method.extractor.context, lambda row: write_operations([said[row]], "lines")),
        items,
        method=method,
        seed_of=lambda distillation_id: seed_for(0),
        weights_digest="",
        round=0,
    )


def _note_about(
    item: DistillItem,
    environment: RealmsEnvironment,
    slot: int,
    config: ExtractorDemonstrations,
    random: np.random.Generator,
) -> ParsedOperation:
    layout, episode = environment.layout(slot), item.episode
    symbols = sorted(layout.cells)
    key = layout.key if random.random() >= config.noise else str(random.choice(symbols))
    others = [symbol for symbol in symbols if symbol != key]
    keeps_goal = random.random() >= config.noise and layout.goal != key
    text = note(key, layout.goal if keeps_goal else str(random.choice(others)))
    if random.random() < (config.returns_won if episode.success else config.returns_lost):
        return ParsedOperation("return")
    lost_guided = episode.guided and not episode.success
    if lost_guided and text != episode.experience and random.random() < config.updates:
        return ParsedOperation("update", text)
    return ParsedOperation("add", text)


def merge_demonstrations(
    chat: Chat, method: Method, config: ExtractorDemonstrations, symbols: int, seed: int
) -> list[Generation]:
    """Chunks of notes with twins among them: twins become one entry, a note that stands alone is kept."""
    random = np.random.default_rng(seed_for(seed, "merge"))
    letters = [chr(ord("A") + index) for index in range(symbols)]
    rows = []
    for index in range(config.merges):
        pool = [note(*map(str, random.choice(letters, size=2, replace=False))) for _ in range(3)]
        shown = [str(text) for text in random.choice(pool, size=int(random.integers(2, method.merge.chunk + 1)))]
        operations = []
        for text in dict.fromkeys(shown):
            places = tuple(place for place, other in enumerate(shown, start=1) if other == text)
            operations.append(
                ParsedOperation("merge", text, places) if len(places) > 1 else ParsedOperation("keep", None, places)
            )
        messages = merge_messages(method.prompts.merge, method.families[0].name, shown, method.distill)
        opening, answer = chat.opening(messages), chat.answer(write_operations(operations, "lines"))
        rows.append(
            written_row(f"merge-{index:06d}", "extractor", "merge", opening, answer, chat, prompt_text(messages))
        )
    return rows
