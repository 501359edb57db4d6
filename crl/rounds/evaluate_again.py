"""Evaluating a round again, outside the record: some tasks, other held-out seeds, or a round that was not evaluated.

The same stage code runs against a writer that keeps its rows in memory; nothing of the run is changed. What is played
is said by a :class:`Choice`: an episode is the same whatever else is played beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crl.config import FamilyConfig, Method, SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import MOST_HELD_OUT
from crl.errors import BadInput
from crl.paths import short
from crl.protocols import Services
from crl.records import Evaluation
from crl.rounds.context import Reader, StageContext
from crl.rounds.evaluate import RANDOM, WITH_BANK, WITHOUT_BANK
from crl.rounds.memory import MemoryWriter
from crl.rounds.stage import Recipe

ARMS = {"with": WITH_BANK, "without": WITHOUT_BANK, "random": RANDOM}
"""The arms of an evaluation by the word for each."""


@dataclass(frozen=True)
class Choice:
    """What of an evaluation is played. Everything that is left out is as the experiment has it."""

    tasks: tuple[str, ...] | None = None
    """Names of task families."""
    episodes: int | None = None
    """Held-out seeds of each task, from the start of its split."""
    seeds: SeedRange | None = None
    """Other held-out seeds, for every task. Not together with `episodes`."""
    arms: tuple[str, ...] | None = None
    """Words of :data:`ARMS`."""


@dataclass(frozen=True)
class Evaluated:
    """What came of it."""

    round: int
    rows: list[Evaluation]
    inputs: dict[str, str]
    """Digests of the stages that were read, by `0007/update_actor`."""


def chosen_method(method: Method, choice: Choice) -> Method:
    """The method with the tasks and the held-out seeds of a choice. Raises BadInput for what cannot be chosen."""
    _check_arms(choice.arms)
    families = _families(method, choice.tasks)
    if choice.seeds is not None and choice.episodes is not None:
        raise BadInput("episodes and seeds are both given", expected="one of them: seeds say how many there are")
    if choice.episodes is not None:
        families = [_with_seeds(family, _first(family, choice.episodes)) for family in families]
    if choice.seeds is not None:
        for family in families:
            _check_held_out(family, choice.seeds)
        families = [_with_seeds(family, choice.seeds) for family in families]
    return method.model_copy(update={"families": families})


def evaluate_again(
    reader: Reader,
    method: Method,
    recipe: Recipe,
    round_number: int,
    services: Services,
    *,
    choice: Choice | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda figures: None,
    broken_episodes_limit: float = 0.9,
) -> Evaluated:
    """An evaluation of a round, with and without its bank, or what `choice` leaves of it.

    Raises BadInput for a choice that cannot be (seeds that training knows, a task that is not there), where the round
    has no evaluation stage to stand in for, or where none of the chosen arms can be played in it; EnvironmentBroken
    where a larger share of its games broke than `broken_episodes_limit`.
    """
    choice = choice or Choice()
    chosen = {family.name: family for family in chosen_method(method, choice).families}
    # Families that are not played stay in the method: they say which part of the bank others search.
    method = method.model_copy(update={"families": [chosen.get(each.name, each) for each in method.families]})
    stages = recipe.preparation if round_number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None or stage.parts is None or stage.run_part is None:
        raise BadInput(f"recipe {recipe.name} has no evaluation", expected="a recipe with the stage evaluate")
    writer = MemoryWriter()
    arms = None if choice.arms is None else frozenset(ARMS[word] for word in choice.arms)
    context = StageContext(
        method=method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=reader,
        writer=writer,
        services=services,
        progress=progress,
        arms=arms,
        families=frozenset(chosen),
        broken_episodes_limit=broken_episodes_limit,
    )
    parts = stage.parts(context)
    if not parts and arms is not None:
        raise _no_arm(round_number, choice.arms or ())
    for part in range(parts):
        stage.run_part(context, part)
    context.require_games()
    # A recipe of another package may play every arm and family whatever was asked for.
    rows = [row for row in writer.rows(Evaluation) if row.family in chosen and (arms is None or row.arm in arms)]
    return Evaluated(round_number, rows, context.digests())


def _check_arms(arms: Sequence[str] | None) -> None:
    unknown = [word for word in arms or () if word not in ARMS]
    if unknown:
        raise BadInput(f"there is no arm {short(unknown[0])}", expected=f"some of {', '.join(ARMS)}")
    if arms is not None and not arms:
        raise BadInput("no arm is named", expected=f"some of {', '.join(ARMS)}")


def _no_arm(round_number: int, arms: Sequence[str]) -> BadInput:
    return BadInput(
        f"round {round_number} has nothing to play of the arms {', '.join(arms)}",
        expected="`with` in a round whose bank has entries; `without` in any; `random` in round 0",
        next_step="name other arms, or another round",
    )


def _families(method: Method, tasks: Sequence[str] | None) -> list[FamilyConfig]:
    if tasks is None:
        return list(method.families)
    known = [family.name for family in method.families]
    unknown = [name for name in tasks if name not in known]
    if unknown or not tasks:
        raise BadInput(
            f"the run has no task {', '.join(map(short, unknown))}" if unknown else "no task is named",
            expected=f"some of {', '.join(known)}",
        )
    return [family for family in method.families if family.name in tasks]


def _first(family: FamilyConfig, episodes: int) -> SeedRange:
    """The first held-out seeds of a task: of its split, and of those after it where they are held out too."""
    split, first = family.evaluation_seeds, family.environment.held_out_from
    if not 1 <= episodes <= MOST_HELD_OUT:
        raise BadInput(f"{episodes} episodes of each task", expected=f"a number from 1 to {MOST_HELD_OUT}")
    wanted = SeedRange.model_construct(start=split.start, count=episodes)
    if episodes <= split.count:
        return wanted
    if first is None:
        raise BadInput(
            f"{episodes} episodes of task {family.name}, whose split has {split.count} held-out seeds",
            expected=f"at most {split.count}: environment.held_out_from is null, so nothing says that other seeds are "
            "held out",
            next_step="name other tasks, or seeds that you know to be held out",
        )
    held_out = family.fewest_held_out_seeds
    most = LAST_SEED + 1 - split.start if held_out is None else held_out
    if episodes > most:
        raise BadInput(
            f"{episodes} episodes of task {family.name}, whose environment has {most} held-out seeds from "
            f"{split.start} on",
            expected=f"at most {most}; its split has {split.count}",
        )
    return wanted


def _check_held_out(family: FamilyConfig, seeds: SeedRange) -> None:
    told = f"seeds {seeds.start} to {seeds.start + seeds.count - 1}"
    if seeds.overlaps(family.train_seeds):
        raise BadInput(
            f"{told} overlap the training seeds of task {family.name}", expected="seeds that were never trained on"
        )
    first = family.environment.held_out_from
    if first is not None and seeds.start < first:
        raise BadInput(
            f"{told} draw levels of training in task {family.name}",
            expected=f"seeds from environment.held_out_from {first} on, which draw held-out levels",
        )
    most = _with_seeds(family, seeds).fewest_held_out_seeds
    if most is not None and seeds.count > most:
        raise BadInput(
            f"{told} of task {family.name}, whose environment has {most} held-out seeds from {seeds.start} on: some "
            "would be played twice, and counted as if they were others",
            expected=f"at most {most} seeds from {seeds.start} on" if most else f"seeds from {first} on",
        )


def _with_seeds(family: FamilyConfig, seeds: SeedRange) -> FamilyConfig:
    return family.model_copy(update={"evaluation_seeds": seeds})
