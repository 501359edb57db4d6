"""Playing waves of planned tasks in a stage: shared by collecting, evaluation and warm start."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Method, SamplingConfig
from crl.protocols import Advisor, Environment, Policy, Start
from crl.records import Episode, Generation, Retrieval, Task, Turn
from crl.rollout.environments import MixedEnvironment, Readable
from crl.rollout.kept_steps import KeptSteps
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, Progress, play_wave, waves_of
from crl.rounds.context import StageContext
from crl.rounds.judge import judged, write_verdicts
from crl.rounds.provenance import games_from, games_of, naming
from crl.rounds.weights import weights_of
from crl.run.journal import JsonLines


def slots_of(
    tasks: Sequence[Task], chosen: Mapping[str, Sequence[Retrieval]], texts: Mapping[str, str]
) -> list[EpisodeSlot]:
    """Tasks with the experiences that guide each, if some were chosen. `texts` maps content digest to text."""
    return [EpisodeSlot(task, guides_of(chosen.get(task.episode_id, []), texts)) for task in tasks]


def guides_of(retrievals: Sequence[Retrieval], texts: Mapping[str, str]) -> tuple[Guide, ...]:
    """The experiences that retrievals name, in their order. `texts` maps content digest to text."""
    return tuple(Guide(row.entry_id, row.content_digest, texts[row.content_digest]) for row in retrievals)


def play(
    ctx: StageContext,
    policy: Policy,
    slots: Sequence[EpisodeSlot],
    *,
    sampling: SamplingConfig,
    weights_digest: str,
    seed_of: Callable[[str], np.random.SeedSequence] | None = None,
    environment: Environment | None = None,
    advisor: Advisor | None = None,
    progress: Progress | None = None,
    predicted: bool = False,
    groups: bool = True,
) -> list[PlayedEpisode]:
    """Play one wave, in the environment of its family (or of its families) unless another is given.

    `advisor` answers the questions of guided episodes; without one they are offered none. `progress` takes the metrics
    of the wave where it is not a part of the stage. `predicted`: the environment is a model, whose breaks are no fault.
    `groups`: a judge may read the groups of the wave as such; else it reads one episode at a time.
    """
    seed_of = seed_of or (lambda episode_id: ctx.seed(episode_id))
    wave: dict[str, Any] = {
        "method": ctx.method,
        "seed_of": seed_of,
        "sampling": sampling,
        "weights_digest": weights_digest,
        "stage": ctx.stage.name,
        "progress": progress or (lambda metrics: ctx.progress(**metrics)),
    }
    with naming(slots[0].task.family if slots else ""):
        if environment is None and _runs_programs(ctx.method, slots):
            played = _play_programs(ctx, policy, slots, wave)
        else:
            environment = environment or kept_environment(ctx, slots, weights_digest)
            played = play_wave(policy, environment, slots, advisor=advisor, **wave)
    played = judged(ctx, played, seed_of=seed_of, thinking=policy.chat.opens_thought, groups=groups)
    if not predicted:
        ctx.add_games(games_of(played))
    return played


def _runs_programs(method: Method, slots: Sequence[EpisodeSlot]) -> bool:
    """Whether nobody steps the environment of these slots: such a family shares its waves with no other."""
    families = {slot.task.family for slot in slots}
    return any(family.environment.runs_programs for family in method.families if family.name in families)


def _play_programs(
    ctx: StageContext, policy: Policy, slots: Sequence[EpisodeSlot], wave: Mapping[str, Any]
) -> list[PlayedEpisode]:
    """A wave of programs. What has ended, and the folders that they run in, are with what is unfinished."""
    from crl.rollout.programs import play_programs  # a server comes with it

    file, families = _kept_file(ctx, slots, wave["weights_digest"]), [slot.task.family for slot in slots]
    several: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="crl-programs-") as temporary:
        folder = Path(temporary, "wave") if file is None else file.path.with_suffix("")
        played = play_programs(
            policy, environment_of(ctx, families), slots, folder=folder, file=file, at_once=several.add, **wave
        )
    if several:
        ctx.provenance[f"not deterministic {families[0]}"] = (
            f"{len(several)} programs had several calls open at a time, {min(several)} for example: another run may "
            "answer them in another order"
        )
    return played


def kept_environment(ctx: StageContext, slots: Sequence[EpisodeSlot], weights_digest: str) -> Environment:
    """The environment of a wave; where it keeps steps, with those of an earlier attempt at the same wave."""
    environment = environment_of(ctx, [slot.task.family for slot in slots])
    file = _kept_file(ctx, slots, weights_digest)
    return environment if file is None else KeptSteps(environment, file, [slot.task.episode_id for slot in slots])


def _kept_file(ctx: StageContext, slots: Sequence[EpisodeSlot], weights_digest: str) -> JsonLines | None:
    """What is kept of a wave that is played by this method, with these weights; None where nothing is."""
    families = {slot.task.family for slot in slots}
    keeps = any(family.environment.keeps_steps for family in ctx.method.families if family.name in families)
    if ctx.unfinished is None or not keeps:
        return None
    played = [(slot.task.episode_id, slot.shown) for slot in slots]
    wave = {"method": ctx.method.digest(), "inputs": ctx.digests(), "weights": weights_digest, "played": played}
    name = hashlib.sha256(json.dumps(wave, sort_keys=True).encode()).hexdigest()
    ctx.unfinished.mkdir(parents=True, exist_ok=True)
    return JsonLines(ctx.unfinished / f"steps-{name[:32]}.jsonl")


def play_with_actor(
    ctx: StageContext,
    slots: Sequence[EpisodeSlot],
    *,
    seed_of: Callable[[str], np.random.SeedSequence] | None = None,
    environment: Environment | None = None,
    advisor: Advisor | None = None,
    predicted: bool = False,
    groups: bool = True,
    work: str = "play",
    temperature: float | None = None,
) -> list[PlayedEpisode]:
    """Play one wave with the actor's weights that the stage reads; nothing where there is nothing to play. `work` is
    what its time is noted as, `temperature` another one than the actor's; the others as in :func:`play`."""
    if not slots:
        return []
    weights = weights_of(ctx, "actor")
    policy = ctx.services.policy("actor", weights)
    sampling = sampling_of(ctx.method, [slot.task.family for slot in slots])
    if temperature is not None:
        sampling = sampling.model_copy(update={"temperature": temperature})
    with ctx.timed(work, len(slots)):
        return play(
            ctx,
            policy,
            slots,
            sampling=sampling,
            weights_digest=weights.weights_digest,
            seed_of=seed_of,
            environment=environment,
            advisor=advisor,
            predicted=predicted,
            groups=groups,
        )


def planned_waves(ctx: StageContext) -> list[list[Task]]:
    """The tasks of the stage `plan` in waves of whole groups, of one family or of those that share waves."""
    return waves_of(ctx.rows(Task, "plan"), ctx.method.rollout.wave_groups, together(ctx.method))


def count_waves(ctx: StageContext) -> int:
    """Waves of the round: the parts of a stage that plays them. One that is empty where nothing is planned."""
    return max(1, len(planned_waves(ctx)))


def planned_wave(ctx: StageContext, part: int) -> list[Task]:
    """The tasks of one of these parts."""
    return [task for wave in planned_waves(ctx)[part : part + 1] for task in wave]


def collect_wave(ctx: StageContext, part: int) -> None:
    """Play one planned wave with the actor of the round before, guided by nothing."""
    write_played(ctx, play_with_actor(ctx, [EpisodeSlot(task) for task in planned_wave(ctx, part)]))


def write_played(ctx: StageContext, played: Sequence[PlayedEpisode], outputs: Sequence[Generation] = ()) -> None:
    """Write episodes with their turns and token records, those of the answers that their actors asked for, and of other
    `outputs` about them."""
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    answers = [answer for each in played for answer in each.answers]
    ctx.write(Generation, [*(record for each in played for record in each.generations), *answers, *outputs])
    write_verdicts(ctx, played)


def wave_width(method: Method) -> int:
    """Episodes that are played side by side."""
    return method.rollout.wave_groups * method.rollout.group_size


def together(method: Method) -> dict[str, str]:
    """By task family, the first one of those that it may share a wave with.

    A wave is sampled with one setting: families share waves where waves may mix and their sampling is the same. One
    whose episodes run themselves shares none.
    """
    alone = {family.name: family.environment.runs_programs for family in method.families}
    first: dict[str, str] = {}
    for family in method.families:
        same = (
            other
            for other in first.values()
            if method.rollout.mixed_waves
            and method.sampling("actor", other) == method.sampling("actor", family.name)
            and not (alone[other] or alone[family.name])
        )
        first[family.name] = next(same, family.name)
    return first


def sampling_of(method: Method, families: Iterable[str]) -> SamplingConfig:
    """How the actor samples in a wave of these families, which share their setting (:func:`together`)."""
    return method.sampling("actor", next(iter(families)))


def of_all(ctx: StageContext, before: int, total: int) -> Progress:
    """Progress of a wave as that of all demonstrations. Who wins among them says nothing about the model."""
    return lambda metrics: ctx.progress(before + metrics["done"], total)


def starts_of(ctx: StageContext, task_seeds: Sequence[tuple[str, int]], *, played_here: bool = False) -> list[Start]:
    """What an actor is shown first at each place: a task family and an environment seed.

    `played_here`: this stage plays them too, and counts them there; those that do not start are counted here.
    """
    with naming(task_seeds[0][0] if task_seeds else ""):
        environment = environment_of(ctx, [family for family, _ in task_seeds])
        readable = Readable(environment, ctx.method.rollout.max_observation_characters)
        starts = readable.reset_many([seed for _, seed in task_seeds])
    games = games_from(starts, task_seeds)
    ctx.add_games([game for game in games if game.error is not None] if played_here else games)
    return starts


def environment_of(ctx: StageContext, families: Sequence[str]) -> Environment:
    """The environment of a wave whose slots are of these families."""
    if len(set(families)) == 1:
        return ctx.environment(families[0])
    return MixedEnvironment(families, ctx.environment)
