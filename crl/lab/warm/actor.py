"""Demonstrations for the actor: played by a script through the rollout itself, so their token records are exact.

The first turn writes a plan (key, its cell, goal, its cell) before the move: without a plan, supervised
learning of this task stays on a plateau. Later turns are moves of shortest safe ways; some slip to any safe move, so
that the actor meets states off the way, and a slip is not learned. Hints say the rule, half of it, or nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from crl.config import Method, SearchAndAskConfig
from crl.envs.realms import RealmsEnvironment, experience_text, symbol_at
from crl.lab.warm.advice import STAGE, WAVE, TruthfulAdvisor, any_two, question_about
from crl.lab.warm.config import ActorDemonstrations
from crl.protocols import Chat
from crl.records import Episode, Generation, Task
from crl.rollout.play import EpisodeSlot
from crl.rounds.demonstrations import ScriptedRole, play_script, records_without, slot_with
from crl.rounds.tasks import query_of
from crl.run.seeds import seed_for

FAMILY = "practice"


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One demonstration: what was played, and its token records with a loss only where something is to be learned."""

    task: Task
    episode: Episode
    generations: list[Generation]


def practice_slots(
    environment: RealmsEnvironment, seeds: Sequence[int], hints: Callable[[int], str | None], part: str
) -> list[EpisodeSlot]:
    """Slots of practice episodes. `hints` gives, for a slot of the environment, the experience shown to it."""
    starts = environment.reset_many(seeds)
    slots = []
    for index, (seed, start) in enumerate(zip(seeds, starts, strict=True)):
        task = Task(
            episode_id=f"{part}-{seed:07d}", round=0, family=FAMILY, group=seed, member=0, environment_seed=seed,
            stream="free", goal=start.goal, first_observation=start.observation,
            query=query_of(start),
        )  # fmt: skip
        slots.append(slot_with(task, hints(index), part))
    return slots


def actor_demonstrations(
    chat: Chat, method: Method, config: ActorDemonstrations, seed: int, *, first_seed: int
) -> Iterator[list[Demonstration]]:
    """Waves of demonstrations on the practice seeds from `first_seed` on. `method` gives prompts, context, family."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    asking = round(config.episodes * config.asking)
    for at in range(0, config.episodes, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, config.episodes))
        random = np.random.default_rng(seed_for(seed, "actor", at))
        yield _wave(chat, method, config, environment, seeds, random, asks=False)
    first_seed += config.episodes
    for at in range(0, asking, WAVE):
        seeds = range(first_seed + at, first_seed + min(at + WAVE, asking))
        random = np.random.default_rng(seed_for(seed, "asking", at))
        yield _wave(chat, method, config, environment, seeds, random, asks=True)


def _wave(
    chat: Chat,
    method: Method,
    config: ActorDemonstrations,
    environment: RealmsEnvironment,
    seeds: Sequence[int],
    random: np.random.Generator,
    *,
    asks: bool,
) -> list[Demonstration]:
    worth = random.random(len(seeds))

    def hint(slot: int) -> str | None:
        layout = environment.layout(slot)
        if asks:  # the experience may be wrong: that is why it asks
            return experience_text(*any_two(layout.cells, random))
        if worth[slot] < config.full:
            return experience_text(layout.key, layout.goal)
        return f"take {layout.key}" if worth[slot] < config.full + config.partial else None

    slipped: set[tuple[int, int]] = set()
    turns = [0] * len(seeds)

    def say(row: int) -> str:
        turn = turns[row]
        turns[row] += 1
        if asks and turn == 0:
            return question_about(environment, row)
        moves = environment.best_moves(row)
        if turn == int(asks):
            return f"{plan_of(environment, row)} {random.choice(moves)}"
        if random.random() < config.slips:
            slipped.add((row, turn))
            moves = environment.safe_moves(row)
        return str(random.choice(moves))

    slots = practice_slots(environment, seeds, hint, "demo")
    if config.instructed and not asks:
        instructed = random.random(len(seeds)) < config.instructed
        slots = [
            dataclasses.replace(slot, as_instructions=bool(told)) if slot.guides else slot
            for slot, told in zip(slots, instructed, strict=True)
        ]
    advisor = TruthfulAdvisor(environment, {slot.task.episode_id: index for index, slot in enumerate(slots)})
    played = play_script(
        asking_method(method) if asks else method,
        ScriptedRole(chat, method.role("actor").context),
        environment,
        slots,
        say,
        stage=STAGE,
        advisor=advisor if asks else None,
    )
    return [
        Demonstration(slot.task, each.episode, records_without(each, {turn for row, turn in slipped if row == index}))
        for index, (slot, each) in enumerate(zip(slots, played, strict=True))
    ]


def asking_method(method: Method) -> Method:
    """The method with search-and-ask on."""
    rollout = method.rollout.model_copy(update={"search_and_ask": SearchAndAskConfig()})
    return method.model_copy(update={"rollout": rollout})


def plan_of(environment: RealmsEnvironment, slot: int) -> str:
    """The plan of the layout's own rule."""
    layout = environment.layout(slot)
    return plan_text(environment, slot, (layout.key, layout.goal))


def plan_text(environment: RealmsEnvironment, slot: int, rule: tuple[str, str]) -> str:
    """The key, then the key with its cell; the goal, then the goal with its cell.

    The symbol comes first, as one word of a few: what reinforcement has to find out is which symbol it is.
    """
    cells = environment.layout(slot).cells
    return " ".join(f"{symbol} {symbol_at(symbol, cells[symbol])}" for symbol in rule)
