"""Demonstrations of reflecting (Experiential RL): what to do in the next attempt at a layout that was just lost.

Nothing can be known from one lost attempt but that its plan was wrong. So a reflection repeats what the memory says
where that fits the grid and was not what failed, and says any two other symbols where it does not.
"""

from __future__ import annotations

import numpy as np

from crl.config import Method
from crl.envs.realms import RealmsEnvironment, experience_text, symbol_names
from crl.lab.warm.actor import practice_slots
from crl.lab.warm.advice import STAGE, WAVE, any_two, fits
from crl.lab.warm.extractor import Rule, play_plans
from crl.protocols import Chat
from crl.recipes.erl.config import REFLECT, ReflectConfig
from crl.recipes.erl.prompts import Attempt, Memory, reflect_messages
from crl.records import Generation
from crl.rounds.demonstrations import ScriptedRole, say_script
from crl.run.seeds import seed_for
from crl.text.outputs import Messages

_EMPTY, _TRUE = 0.4, 0.8
"""Below the first the memory is empty, below the second it says the rule, above any two symbols."""


def reflection_demonstrations(
    chat: Chat, method: Method, count: int, seed: int, *, first_seed: int
) -> list[Generation]:
    """Reflections on the lost ones of `count` attempts, on the practice seeds from `first_seed` on."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    asked: list[tuple[str, Messages, str]] = []
    for at in range(0, count, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, count))
        random = np.random.default_rng(seed_for(seed, REFLECT, at))
        slots = practice_slots(environment, seeds, lambda slot: None, REFLECT)
        plans = [any_two(environment.layout(slot).cells, random) for slot in range(len(slots))]
        played = play_plans(chat, method, environment, slots, plans, random)
        for slot, each in enumerate(played):
            if not each.episode.success:
                memory, said = _reflected(environment, slot, plans[slot], random)
                attempt = Attempt(each.episode, tuple(each.turns), method.prompts["actor"].system)
                messages = reflect_messages(
                    method.prompts[REFLECT], attempt, list(map(Memory, memory)), ReflectConfig()
                )
                asked.append((f"{REFLECT}-{each.episode.episode_id}", messages, said))
    voice = ScriptedRole(chat, method.role("extractor").context)
    return say_script(method, voice, asked, role="extractor", kind=REFLECT, stage=STAGE)


def _reflected(
    environment: RealmsEnvironment, slot: int, plan: Rule, random: np.random.Generator
) -> tuple[list[str], str]:
    """What the memory shows, and what is said."""
    layout, kind = environment.layout(slot), random.random()
    letters = symbol_names(environment.config.symbols)
    rule = (layout.key, layout.goal) if kind < _TRUE else any_two(letters, random)
    other = plan
    while other == plan:
        other = any_two(layout.cells, random)
    if kind < _EMPTY:
        return [], experience_text(*other)
    remembered = experience_text(*rule)
    return [remembered], remembered if rule != plan and fits(remembered, layout.cells) else experience_text(*other)
