"""Demonstrations of predicting (DreamGym): what a step of a practice episode leads to, and why.

Every practice episode has a rule of its own, so how grids work can be learned from these and what a symbol is cannot:
an experience model finds that out from the real episodes of its run.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np

from crl.config import Method
from crl.envs.realms import ACTIONS, RealmsEnvironment
from crl.lab.warm.actor import practice_slots
from crl.lab.warm.advice import STAGE, WAVE, any_two
from crl.lab.warm.config import ExperienceDemonstrations
from crl.lab.warm.extractor import carrying_out
from crl.protocols import Chat
from crl.recipes.dreamgym.config import EXPERIENCE
from crl.recipes.dreamgym.corpus import demonstrated
from crl.recipes.dreamgym.explore import Watched, real_transitions
from crl.recipes.dreamgym.prompts import answer_of
from crl.recipes.dreamgym.rows import NEITHER, Transition
from crl.records import Generation
from crl.rounds.demonstrations import ScriptedRole, play_script
from crl.run.seeds import seed_for

_NEIGHBOR = 0.5
"""Share of the steps that are shown a similar one, where there is one."""


def experience_demonstrations(
    chat: Chat, method: Method, config: ExperienceDemonstrations, seed: int, *, first_seed: int
) -> list[Generation]:
    """Outputs about the last step, and about any step, of each practice episode from `first_seed` on."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    found: list[Generation] = []
    for at in range(0, config.episodes, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, config.episodes))
        random = np.random.default_rng(seed_for(seed, EXPERIENCE, at))
        episodes = _played(chat, method, config, environment, seeds, random)
        similar: dict[tuple[str, str], list[Transition]] = defaultdict(list)
        for row in (row for rows in episodes for row in rows):
            similar[row.observation, row.action].append(row)
        for rows in episodes:
            for place in dict.fromkeys((len(rows) - 1, int(random.integers(len(rows))))):
                found.append(_shown(chat, method, rows[place], similar, random))
    return found


def _played(
    chat: Chat,
    method: Method,
    config: ExperienceDemonstrations,
    environment: RealmsEnvironment,
    seeds: range,
    random: np.random.Generator,
) -> list[list[Transition]]:
    """The steps of each episode, played by a plan that is right in half of them."""
    slots = practice_slots(environment, seeds, lambda slot: None, EXPERIENCE)
    layouts = [environment.layout(slot) for slot in range(len(slots))]
    plans = [(each.key, each.goal) if random.random() < 0.5 else any_two(each.cells, random) for each in layouts]
    ahead, watched = carrying_out(environment, plans), Watched(environment)

    def say(row: int) -> str:
        wanders, moves = random.random() < config.wander, ahead(row)
        return str(random.choice(list(ACTIONS) if wanders else moves))

    voice = ScriptedRole(chat, method.role("actor").context)
    play_script(method, voice, watched, slots, say, stage=STAGE)
    turns = environment.config.max_turns
    return [
        real_transitions(slot.task, seen, split=NEITHER, policy="script", history=turns)
        for slot, seen in zip(slots, watched.seen, strict=True)
    ]


def _shown(
    chat: Chat,
    method: Method,
    row: Transition,
    similar: dict[tuple[str, str], list[Transition]],
    random: np.random.Generator,
) -> Generation:
    others = [each for each in similar[row.observation, row.action] if each.episode_id != row.episode_id]
    shown = [others[int(random.integers(len(others)))]] if others and random.random() < _NEIGHBOR else []
    record = demonstrated(chat, method, row, shown, answer_of(row, row.reasoning), method.role("extractor").context)
    assert record is not None, "a step of a practice episode fits the context of a miniature"
    return dataclasses.replace(record, stage=STAGE)
