"""Demonstrations: a script plays and a script writes, through rollout and extractor themselves, so that their token
records are exact; what they said becomes the samples of a supervised start.

Ids, masks and chat glue of a warm start are made by the code that samples later, and cannot differ from it. The warm
starts of a run and of the laboratory share what is here and differ in what their scripts say. A script draws nothing:
the sampling seeds that it is given are of no account.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from crl.bank.segments import text_digest
from crl.config import DistillConfig, FamilyConfig, MergeConfig, Method, SamplingConfig
from crl.config.roles import SummaryHistory
from crl.extractor.distill import DistillItem, distill_wave
from crl.extractor.formats import ParsedOperation, write_operations
from crl.extractor.merge import run_merge
from crl.extractor.outputs import Distilled
from crl.protocols import (
    Actions,
    Advisor,
    Answers,
    Chat,
    Environment,
    FreeText,
    Lesson,
    Sampled,
    Start,
    Step,
    StopReason,
    ToolCalls,
    WholeTurns,
)
from crl.records import BankEntry, Generation, Sample, Task
from crl.rollout.actions import named_actions
from crl.rollout.environments import Readable
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, Progress, play_wave
from crl.rounds.context import StageContext
from crl.rounds.provenance import games_of
from crl.rounds.tasks import task_of
from crl.rounds.waves import sampling_of
from crl.rounds.weights import weights_of
from crl.run.seeds import number_of, seed_for
from crl.text.outputs import Messages, Prompt, sample_outputs, token_record
from crl.text.unicode import valid_text

WAVE = 16
"""Most demonstrations of a run that are played side by side."""
_SEED = seed_for(0)
Script = Callable[[int], str]
"""From the row of a session to what it says now."""


@dataclass(frozen=True, slots=True)
class ScriptedRole:
    """Whom a script speaks for: the chat format of a model, its context in tokens, and the digest of its weights."""

    chat: Chat
    context: int
    weights_digest: str = ""

    def saying(self, script: Script, calls: Callable[[int], bool] | None = None) -> ScriptedPolicy:
        """The policy that says what a script tells it. `calls`: whether a row calls tools now."""
        return ScriptedPolicy(self.chat, self.context, script, calls)


class Watched:
    """An environment that remembers what may be done, for moves that its oracle is not asked for, and for calls."""

    def __init__(self, environment: Environment) -> None:
        self._environment = Readable(environment)
        self.actions: dict[int, tuple[str, ...]] = {}
        self.shown: dict[int, Actions] = {}
        """What may be done, of any form."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = self._environment.reset_many(seeds)
        self.shown = {slot: start.actions for slot, start in enumerate(starts)}
        self.actions = {slot: named_actions(start.actions) for slot, start in enumerate(starts)}
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = self._environment.step_many(actions)
        self.shown |= {slot: step.actions for slot, step in steps.items()}
        self.actions |= {slot: named_actions(step.actions) for slot, step in steps.items()}
        return steps

    def oracle(self, slot: int) -> str | None:
        return self._environment.oracle(slot)

    def close(self) -> None:
        self._environment.close()


def shares(episodes: int, families: Sequence[FamilyConfig]) -> list[tuple[FamilyConfig, int]]:
    """Demonstrations spread over the families: how many of each, the first ones taking what is left."""
    whole, left = divmod(episodes, len(families))
    return [(family, whole + (index < left)) for index, family in enumerate(families)]


def slot_with(task: Task, experience: str | None, name: str) -> EpisodeSlot:
    """A slot guided by an experience that no bank holds, under the id `name`; a free one without an experience."""
    return EpisodeSlot(task, () if experience is None else (Guide(name, text_digest(experience), experience),))


def play_script(
    method: Method,
    actor: ScriptedRole,
    environment: Environment,
    slots: Sequence[EpisodeSlot],
    move: Callable[[int], str],
    *,
    stage: str,
    advisor: Advisor | None = None,
    progress: Progress | None = None,
) -> list[PlayedEpisode]:
    """Play a wave by a script. `move` gives what the actor says in a slot, as its answer is to be worded. No script
    writes summaries: a history that has them is appended to here."""
    actor_role = method.roles["actor"]
    if isinstance(actor_role.history, SummaryHistory):
        roles = {**method.roles, "actor": actor_role.model_copy(update={"history": "append"})}
        method = method.model_copy(update={"roles": roles})

    def calls(row: int) -> bool:
        return isinstance(environment, Watched) and isinstance(environment.shown.get(row), ToolCalls)

    return play_wave(
        actor.saying(move, calls),
        environment,
        slots,
        method=method,
        seed_of=lambda episode_id: _SEED,
        sampling=sampling_of(method, [slot.task.family for slot in slots]),
        weights_digest=actor.weights_digest,
        stage=stage,
        advisor=advisor,
        progress=progress,
    )


def scripted_role(ctx: StageContext, role: str) -> ScriptedRole:
    """A role for which a stage has a script, with the weights that the stage reads."""
    weights = weights_of(ctx, role)
    policy = ctx.services.policy(role, weights)
    return ScriptedRole(policy.chat, policy.context, weights.weights_digest)


def demonstration(ctx: StageContext, family: FamilyConfig, number: int, environment_seed: int, start: Start) -> Task:
    """The task of a demonstration, which is the only one of its group."""
    name = f"{ctx.stage.name}-{family.name}-{number:05d}"
    return task_of(ctx, start, episode_id=name, family=family.name, group=number, environment_seed=environment_seed)


def demonstrate(
    ctx: StageContext,
    actor: ScriptedRole,
    environment: Environment,
    slots: Sequence[EpisodeSlot],
    move: Callable[[int], str],
    progress: Progress | None = None,
) -> list[PlayedEpisode]:
    """Play a wave of a stage by a script; its games are counted."""
    played = play_script(ctx.method, actor, environment, slots, move, stage=ctx.stage.name, progress=progress)
    ctx.add_games(games_of(played))
    return played


def write_script(
    method: Method,
    extractor: ScriptedRole,
    items: Sequence[DistillItem],
    lessons: Sequence[Lesson],
    config: DistillConfig,
    *,
    round: int = 0,
) -> list[Distilled]:
    """The extractor's outputs about episodes, each of which says the lesson beside it."""
    written: list[Distilled] = []
    for item, lesson in zip(items, lessons, strict=True):
        said = valid_text(write_operations([ParsedOperation(lesson.kind, lesson.text)], config.format))
        written += distill_wave(
            extractor.saying(lambda row, said=said: said),  # type: ignore[misc]
            [item],
            role=method.role("extractor"),
            prompt=method.prompts["distill"],
            own=method.own_prompts("distill"),
            config=config,
            seed_of=lambda distillation_id: _SEED,
            weights_digest=extractor.weights_digest,
            round=round,
        )
    return written


def merge_script(
    method: Method,
    extractor: ScriptedRole,
    family: str,
    name: str,
    texts: Sequence[str],
    operations: Sequence[ParsedOperation],
    config: DistillConfig,
    *,
    round: int = 0,
) -> list[Distilled]:
    """The extractor's output about a list of experiences that no bank holds: these operations."""
    digests = [text_digest(text) for text in texts]
    said = valid_text(write_operations(operations, config.format))
    entries = [
        BankEntry(
            entry_id=f"{name}-{place}", family=family, content_digest=digest, segment="", embedding_file="", version=1,
            created_round=round, updated_round=round, order=place, operation_id="", distillation_id="",
            generation_id="", episode_ids=[name], parents=[], embedder_cut=False,
        )
        for place, digest in enumerate(digests)
    ]  # fmt: skip
    return run_merge(
        extractor.saying(lambda row: said),
        {name: [entries]},
        dict(zip(digests, texts, strict=True)),
        applied=lambda done: {operation.operation_id for operation in done},
        role=method.role("extractor"),
        prompt=method.prompts["merge"],
        config=MergeConfig(chunk=len(texts)),
        output_format=config,
        seed_of=lambda distillation_id: _SEED,
        weights_digest=extractor.weights_digest,
        round=round,
    )


def say_script(
    method: Method, voice: ScriptedRole, asked: Sequence[tuple[str, Messages, str]], *, role: str, kind: str, stage: str
) -> list[Generation]:
    """Token records of what is said to single prompts: id, messages and what is said to them."""
    prompts = [
        Prompt(name, messages, list(voice.chat.opening(messages)), number_of(_SEED)) for name, messages, _ in asked
    ]
    policy = voice.saying(lambda row: asked[row][2])
    return [
        token_record(
            output, generation_id=output.prompt.name, round=0, stage=stage, role=role, kind=kind, weights_digest="",
            temperature=1.0,
        )
        for output in sample_outputs(policy, prompts, method.role(role).sampling, batch=max(1, len(prompts)))
    ]  # fmt: skip


def as_answer(method: Method, action: str, possible: Actions = ()) -> str:
    """An action as the actor's answers are worded, where such actions are possible."""
    whole = isinstance(possible, FreeText) and possible.whole
    return f"<action>{action}</action>" if method.rollout.action_format == "tag" and not whole else action


def records_without(played: PlayedEpisode, turns: Collection[int]) -> list[Generation]:
    """The token records of an episode's sequences in which the outputs of some turns are read and not learned."""
    records = []
    for record in played.generations:
        mask = list(record.loss_mask)
        for turn in played.turns:
            if turn.turn in turns and turn.generation_id == record.generation_id:
                mask[turn.first_token : turn.last_token] = [0] * (turn.last_token - turn.first_token)
        records.append(replace(record, loss_mask=mask))
    return records


def sample_of(generation: Generation) -> Sample:
    """What a supervised start learns from a demonstration: its token record, under the loss mask that it has."""
    return Sample(
        sample_id=f"{generation.stage}-{generation.generation_id}",
        round=generation.round,
        role=generation.role,
        objective="nll",
        source=f"{generation.round:04d}/{generation.stage}",
        generation_id=generation.generation_id,
        reward=0.0,
        advantage=1.0,
        weight=1.0,
        temperature=1.0,
        token_ids=generation.token_ids,
        loss_mask=generation.loss_mask,
        logprobs=generation.logprobs,
    )


class ScriptedSession(WholeTurns):
    """A session without a model: answers are encoded, log-probabilities are 0."""

    def __init__(
        self, chat: Chat, prompts: Sequence[Sequence[int]], script: Script, calls: Callable[[int], bool] | None
    ) -> None:
        self._chat, self._script, self._calls = chat, script, calls
        self._lengths = [len(prompt) for prompt in prompts]

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, ids in pieces.items():
            self._lengths[row] += len(ids)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        self._lengths[row] = len(token_ids)

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> dict[int, Sampled]:
        said = {row: self._said(row) for row in rows}
        for row, ids in said.items():
            self._lengths[row] += len(ids)
        return {row: Sampled(ids, [0.0] * len(ids), StopReason.end_of_turn) for row, ids in said.items()}

    def _said(self, row: int) -> list[int]:
        """As the model would write it: a call in its own form, if it has one."""
        text = self._script(row)
        in_form = self._calls is not None and self._calls(row) and self._chat.takes_tools
        return list(self._chat.answer(text, call=True) if in_form else self._chat.answer(text))

    def drop(self, rows: Sequence[int]) -> None:
        """Nothing is held."""

    def length(self, row: int) -> int:
        return self._lengths[row]


class ScriptedPolicy:
    """Opens scripted sessions with the chat format of a real policy."""

    def __init__(self, chat: Chat, context: int, script: Script, calls: Callable[[int], bool] | None = None) -> None:
        self.chat, self.context, self._script, self._calls = chat, context, script, calls

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ScriptedSession:
        return ScriptedSession(self.chat, prompts, self._script, self._calls)
