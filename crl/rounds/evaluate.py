"""Stage `evaluate`: held-out seeds, with and without the bank. Read-only: no counter moves, nothing is trained.

Each play of a held-out task (`evaluation.samples`) has one random stream, the same in every round and condition, so
that differences between rounds and conditions are not sampling noise of their own. Rewards are the environments' own,
whatever convention a family trains with. `evaluate_base` is the same for the base model, before a warm start. In round
0 a uniformly random legal policy plays the tasks as well (condition `random`): success means little until it is known.

A round may be evaluated again outside the record (:func:`evaluate_again`): some tasks, other held-out seeds, or a round
that was not evaluated. The same stage runs against a writer that keeps its rows in memory; nothing of the run is
changed. An episode is the same whatever else is played beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from crl.config import FamilyConfig, Method, SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import MOST_HELD_OUT
from crl.errors import BadInput, RecordDamaged
from crl.faults import broke
from crl.paths import short
from crl.protocols import Advisor, Policy, Services, Step, StopReason
from crl.records import FREE, GUIDED, Evaluation, Task, Turn, rows_of
from crl.rollout.actions import named_actions
from crl.rollout.environments import Readable, step_or_error
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import BANK, MemoryWriter, Reader, StageContext
from crl.rounds.judge import is_unscored, write_verdicts
from crl.rounds.provenance import Game, naming, unscored_games
from crl.rounds.stage import PUBLISHES, Read, Recipe, Stage, when
from crl.rounds.tasks import tasks_at, waves_over
from crl.rounds.waves import environment_of, play
from crl.rounds.weights import update_name, weights_of
from crl.run.seeds import seed_for

WITH_BANK, WITHOUT_BANK, RANDOM = "with_bank", "without_bank", "random"
RANDOM_PLAYS = 8
"""Plays of every held-out task by the random policy, in round 0: what success means is seen against it."""
_TOKENS_OF_A_TURN = 8
"""Tokens that a turn takes of the actor's context at least: the marks of two messages, a word in each."""
CONDITIONS = {"with": WITH_BANK, "without": WITHOUT_BANK, "random": RANDOM}
"""The conditions of an evaluation by the word for each."""


@dataclass(frozen=True, slots=True)
class Guided:
    """How the tasks of a wave are played."""

    slots: list[EpisodeSlot]
    advisor: Advisor | None = None
    """Who answers questions. They are no rows here and count nowhere."""
    tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By episode, tokens that the actor read and wrote before its first turn."""


class Recorded(Reader, Protocol):
    """The part of the run directory that says which rounds were evaluated."""

    def rounds(self) -> list[int]: ...

    def is_complete(self, round_number: int, stage: str) -> bool: ...


Guides = Callable[[StageContext, Sequence[Task], Policy, str], Guided]
"""From held-out tasks, and the actor with the digest of its weights, to how they are played with the bank."""


@dataclass(frozen=True)
class _Wave:
    """One part: a condition and consecutive held-out tasks, each a family and a seed; of one family unless waves
    mix."""

    condition: str
    tasks: tuple[tuple[str, int], ...]
    play: int = 0
    """Which play of these tasks, of `evaluation.samples`."""


def due(method: Method, round_number: int) -> bool:
    """After every `evaluation.every` rounds, and before round 1."""
    every = method.evaluation.every
    return every > 0 and round_number % every == 0


def base_due(method: Method, round_number: int) -> bool:
    """Before a warm start, wherever there is evaluation at all."""
    return method.evaluation.every > 0


def evaluation_stage(method: Method, *reads: Read, guides: Guides | None = None) -> Stage:
    """The stage of a recipe. `guides` says how tasks are played with the bank, for which it needs `reads`; without it
    an evaluation sees no bank, whether the recipe keeps one or not."""
    return Stage(
        name="evaluate",
        reads=(
            Read(update_name(method.owner("actor")), 0, "actor"),
            *when(guides is not None, Read(PUBLISHES, 0, BANK)),
            *reads,
        ),
        writes=(Evaluation,),
        role="actor",
        due=due,
        parts=count_parts,
        run_part=partial(evaluate_part, guides=guides),
    )


def base_evaluation_stage(method: Method) -> Stage:
    """`evaluate_base`, of the base model."""
    reads = (Read("initialize", 0, "actor"),)
    return replace(evaluation_stage(method), name="evaluate_base", reads=reads, due=base_due)


def count_parts(ctx: StageContext) -> int:
    """Waves over conditions and families."""
    return len(_waves(ctx))


def evaluate_part(ctx: StageContext, part: int, guides: Guides | None = None) -> None:
    """Play one wave of one condition with this round's actor."""
    wave = _waves(ctx)[part]
    if wave.condition == RANDOM:
        ctx.write(Evaluation, _random_plays(ctx, wave))
        return
    weights = weights_of(ctx, "actor")
    further = f"-p{wave.play}" if wave.play else ""
    tasks = tasks_at(
        ctx,
        wave.tasks,
        name=lambda family, seed: f"e{ctx.round:04d}/{wave.condition}/{family}-s{seed}{further}",
        stream=GUIDED if wave.condition == WITH_BANK else FREE,
    )
    policy = ctx.services.policy("actor", weights)
    with_bank = Guided([EpisodeSlot(task) for task in tasks])
    if wave.condition == WITH_BANK and guides is not None:
        with_bank = guides(ctx, tasks, policy, weights.weights_digest)
    with ctx.timed(f"play {wave.condition}", len(tasks)):
        played = play(
            ctx,
            policy,
            with_bank.slots,
            sampling=ctx.method.evaluation_sampling("actor", wave.tasks[0][0]),
            weights_digest=weights.weights_digest,
            seed_of=lambda episode_id: seed_of_task(ctx.method, episode_id),
            advisor=with_bank.advisor,
            groups=False,
        )
    for each in played:
        if each.episode.error is not None:  # it counts as lost; the manifest says that it was not played to an end
            ctx.provenance[f"error {each.episode.episode_id}"] = each.episode.error
    # What a judge gave no score is neither lost nor won: it is in `verdicts`, and counted as broken.
    scored = [each for each in played if not is_unscored(each.episode)]
    ctx.write(Evaluation, [_row(ctx, wave.condition, each, with_bank.tokens) for each in scored])
    write_verdicts(ctx, played)


def seed_of_task(method: Method, episode_id: str, *kind: str) -> np.random.SeedSequence:
    """The random stream of a held-out task, for one kind of work: the same in every round and condition."""
    return seed_for(method.seed, "evaluation", *kind, episode_id.split("/")[-1])


def _waves(ctx: StageContext) -> list[_Wave]:
    has_bank = any(read.name == BANK for read in ctx.stage.reads) and len(ctx.bank()) > 0
    conditions = [WITHOUT_BANK, *when(has_bank, WITH_BANK)]
    if ctx.round == 0 and ctx.stage.name == "evaluate":
        conditions.append(RANDOM)
    if ctx.conditions is not None:
        conditions = [condition for condition in conditions if condition in ctx.conditions]
    held_out = waves_over(ctx.method, partial(_held_out, ctx))
    # The first plays are those of an evaluation that plays once. The random policy has a number of plays of its own.
    return [
        _Wave(condition, tuple(tasks), play)
        for condition in conditions
        for play in range(1 if condition == RANDOM else ctx.method.evaluation.samples)
        for tasks in held_out
    ]


def _held_out(ctx: StageContext, family: FamilyConfig) -> range:
    """Seeds of every held-out task of a family, none where it is not wanted."""
    first, wanted = family.evaluation_seeds.start, ctx.families is None or family.name in ctx.families
    return range(first, first + family.evaluation_seeds.count * wanted)


def _random_plays(ctx: StageContext, wave: _Wave) -> list[Evaluation]:
    """The tasks of a wave as a uniformly random legal policy plays them, :data:`RANDOM_PLAYS` times each.

    A task whose start names no action has nothing to draw among: it is left out, and the manifest says so. So is one
    whose reward is a judge's: its success is on another scale than the environment's. Where a later state parses text,
    the turn goes by without an action. Where no turn limit is known, an episode ends after as
    many turns as the actor's context could hold: there the actor's own would have ended.
    """
    judged = {family.name for family in ctx.method.judged}
    held = ctx.method.role("actor").context // _TOKENS_OF_A_TURN
    limits = {family.name: held for family in ctx.method.families if family.in_round(ctx.round).turn_limit is None}
    environment = Readable(
        environment_of(ctx, [family for family, _ in wave.tasks]), ctx.method.rollout.max_observation_characters
    )
    rows = []
    for play_number in range(RANDOM_PLAYS):
        with naming(wave.tasks[0][0]):
            starts = environment.reset_many([seed for _, seed in wave.tasks])
        legal = {
            slot: listed
            for slot, start in enumerate(starts)
            if (listed := named_actions(start.actions)) and wave.tasks[slot][0] not in judged
        }
        for slot, (family, _) in enumerate(wave.tasks):
            if slot not in legal:
                why = (
                    "a judge reads what models write" if family in judged else "the environment names no action to draw"
                )
                ctx.provenance[f"{RANDOM} {family}"] = f"left out: {why}"
        streams = [
            np.random.default_rng(seed_for(ctx.method.seed, "evaluation", RANDOM, f"{family}-s{seed}", play_number))
            for family, seed in wave.tasks
        ]
        actions: list[list[str]] = [[] for _ in wave.tasks]
        while legal:
            chosen = {slot: str(streams[slot].choice(listed)) if listed else None for slot, listed in legal.items()}
            begun = {slot: action for slot, action in chosen.items() if starts[slot].error is None}
            steps = step_or_error(environment, begun)
            unbegun = {slot: starts[slot] for slot in chosen if slot not in begun}
            steps |= {slot: broke(start.error or "", start.details) for slot, start in unbegun.items()}
            for slot, step in steps.items():
                actions[slot].append(chosen[slot] or "")
                if not step.done and len(actions[slot]) >= limits.get(wave.tasks[slot][0], np.inf):
                    steps[slot] = step = replace(step, done=True, stop_reason=StopReason.turn_limit)
                if step.done:
                    rows.append(_random_row(ctx, wave.tasks[slot], play_number, actions[slot], step))
                    ctx.add_games([Game(*wave.tasks[slot], step.error, step.details)])
            legal = {slot: named_actions(step.actions) for slot, step in steps.items() if not step.done}
    return rows


def _random_row(
    ctx: StageContext, task: tuple[str, int], play_number: int, actions: list[str], step: Step
) -> Evaluation:
    family, seed = task
    success = step.success and step.error is None
    reason = StopReason.error if step.error is not None else step.stop_reason
    if reason is None:
        reason = StopReason.success if success else StopReason.failure
    return Evaluation(
        evaluation_id=f"e{ctx.round:04d}/{RANDOM}/{family}-s{seed}/{play_number}",
        round=ctx.round,
        condition=RANDOM,
        family=family,
        environment_seed=seed,
        guided=False,
        success=success,
        reward=step.reward if step.error is None else 0.0,
        turns=len(actions),
        invalid_actions=actions.count(""),
        tokens_read=0,
        tokens_sampled=0,
        stop_reason=reason.value,
        actions=actions,
    )


def _row(ctx: StageContext, condition: str, played: PlayedEpisode, tokens: Mapping[str, tuple[int, int]]) -> Evaluation:
    episode = played.episode
    read, sampled = tokens.get(episode.episode_id, (0, 0))
    return Evaluation(
        evaluation_id=episode.episode_id,
        round=ctx.round,
        condition=condition,
        family=episode.family,
        environment_seed=episode.environment_seed,
        guided=episode.guided,
        entry_ids=episode.entry_ids,
        success=episode.success,
        reward=played.raw_reward,
        turns=episode.turns,
        invalid_actions=episode.invalid_actions,
        tokens_read=episode.tokens_read + read,
        tokens_sampled=episode.tokens_sampled + sampled,
        stop_reason=episode.stop_reason,
        actions=[_action(turn) for turn in played.turns],
        reward_names=episode.reward_names,
        reward_values=episode.reward_values,
    )


def _action(turn: Turn) -> str:
    """What a turn did; empty where that was nothing, as a question that was refused is."""
    return (turn.action or "") if turn.valid else ""


@dataclass(frozen=True)
class Choice:
    """What of an evaluation is played. Everything that is left out is as the experiment has it."""

    tasks: tuple[str, ...] | None = None
    """Names of task families."""
    episodes: int | None = None
    """Held-out seeds of each task, from the start of its split."""
    seeds: SeedRange | None = None
    """Other held-out seeds, for every task. Not together with `episodes`."""
    conditions: tuple[str, ...] | None = None
    """Words of :data:`CONDITIONS`."""


@dataclass(frozen=True)
class Evaluated:
    """What came of it."""

    round: int
    rows: list[Evaluation]
    inputs: dict[str, str]
    """Digests of the stages that were read, by `0007/update_actor`."""
    unscored: int = 0
    """Episodes that are left out because their judge gave no score."""


def chosen_method(method: Method, choice: Choice) -> Method:
    """The method with the tasks and the held-out seeds of a choice. Raises BadInput for what cannot be chosen."""
    _check_conditions(choice.conditions)
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
    progress: Callable[[dict[str, Any]], None] = lambda metrics: None,
    broken_episodes_limit: float = 0.9,
) -> Evaluated:
    """An evaluation of a round, with and without its bank, or what `choice` leaves of it.

    Raises BadInput for a choice that cannot be (seeds that training knows, a task that is not there), where the round
    has no evaluation stage to stand in for, or where none of the chosen conditions can be played in it;
    EnvironmentBroken where a larger share of its games broke than `broken_episodes_limit`.
    """
    evaluated, context = play_again(
        reader, method, recipe, round_number, services,
        choice=choice, progress=progress, broken_episodes_limit=broken_episodes_limit,
    )  # fmt: skip
    return replace(evaluated, inputs=context.digests())


def play_again(
    reader: Reader,
    method: Method,
    recipe: Recipe,
    round_number: int,
    services: Services,
    *,
    choice: Choice | None = None,
    **how: Any,
) -> tuple[Evaluated, StageContext]:
    """As :func:`evaluate_again`, of a round that may be in no run: it says no digests of what was read. Beside it, what
    its stage saw. `how`: `progress` and `broken_episodes_limit`."""
    choice = choice or Choice()
    chosen = {family.name: family for family in chosen_method(method, choice).families}
    # Families that are not played stay in the method: they say which part of the bank others search.
    method = method.model_copy(update={"families": [chosen.get(each.name, each) for each in method.families]})
    writer = MemoryWriter()
    conditions = None if choice.conditions is None else frozenset(CONDITIONS[word] for word in choice.conditions)
    context = evaluation_context(
        reader,
        method,
        recipe,
        round_number,
        services,
        writer=writer,
        conditions=conditions,
        families=frozenset(chosen),
        **how,
    )
    stage = context.stage
    if stage.parts is None or stage.run_part is None:
        raise _no_evaluation(recipe)
    parts = stage.parts(context)
    if not parts and conditions is not None:
        raise _no_condition(round_number, choice.conditions or ())
    for part in range(parts):
        stage.run_part(context, part)
    context.require_games()
    # A recipe of another package may play every condition and family whatever was asked for.
    rows = [
        row
        for row in writer.rows(Evaluation)
        if row.family in chosen and (conditions is None or row.condition in conditions)
    ]
    return Evaluated(round_number, rows, {}, unscored_games(context.provenance)), context


def evaluation_context(
    reader: Reader, method: Method, recipe: Recipe, round_number: int, services: Services, **how: Any
) -> StageContext:
    """What the stage `evaluate` of a round sees, beside the record. `how`: other arguments of `StageContext`.

    Raises BadInput where the recipe has no such stage in the round.
    """
    stages = recipe.preparation if round_number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None:
        raise _no_evaluation(recipe)
    given = {"writer": MemoryWriter(), "progress": lambda metrics: None, **how}
    return StageContext(
        method=method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=reader,
        services=services,
        **given,
    )


def _no_evaluation(recipe: Recipe) -> BadInput:
    return BadInput(f"recipe {recipe.name} has no evaluation", expected="a recipe with the stage evaluate")


def held_out_success(method: Method, rows: Sequence[Evaluation]) -> float | None:
    """Success on held-out seeds, the mean over the tasks: with the bank where it was played in each of them, else
    without; None where neither was."""
    for condition in (WITH_BANK, WITHOUT_BANK):
        won = [
            [row.success for row in rows if (row.family, row.condition) == (family.name, condition)]
            for family in method.families
        ]
        if all(won):
            return sum(sum(each) / len(each) for each in won) / len(won)
    return None


def recorded_evaluations(
    run: Recorded, rounds: Iterable[int] | None = None
) -> dict[int, list[Evaluation] | RecordDamaged]:
    """What the stage `evaluate` wrote, by round (default all), in order; why, where that cannot be read."""
    found: dict[int, list[Evaluation] | RecordDamaged] = {}
    for number in run.rounds() if rounds is None else rounds:
        if run.is_complete(number, "evaluate"):
            try:
                found[number] = rows_of(Evaluation, run.read(number, "evaluate", Evaluation))
            except RecordDamaged as error:
                found[number] = error
    return found


def best_round(method: Method, evaluations: Mapping[int, list[Evaluation] | RecordDamaged]) -> int | None:
    """The round with the most success on held-out seeds (:func:`held_out_success`), of equals the later; None where
    none can be told."""
    readable = {number: rows for number, rows in evaluations.items() if not isinstance(rows, RecordDamaged)}
    return best_of({number: held_out_success(method, rows) for number, rows in readable.items()})


def best_of(success: Mapping[int, float | None]) -> int | None:
    """The round with the most success, of equals the later; None where none has any."""
    known = {number: value for number, value in success.items() if value is not None}
    return max(known, key=lambda number: (known[number], number), default=None)


def _check_conditions(conditions: Sequence[str] | None) -> None:
    unknown = [word for word in conditions or () if word not in CONDITIONS]
    if unknown:
        raise BadInput(f"there is no condition {short(unknown[0])}", expected=f"some of {', '.join(CONDITIONS)}")
    if conditions is not None and not conditions:
        raise BadInput("no condition is named", expected=f"some of {', '.join(CONDITIONS)}")


def _no_condition(round_number: int, conditions: Sequence[str]) -> BadInput:
    return BadInput(
        f"round {round_number} has nothing to play of the conditions {', '.join(conditions)}",
        expected="`with` in a round whose bank has entries; `without` in any; `random` in round 0",
        next_step="name other conditions, or another round",
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
