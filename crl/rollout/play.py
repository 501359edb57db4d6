"""Playing a wave: all its episodes over one session, each at its own pace, with token-exact bookkeeping.

A wave is a fixed set of whole groups (:func:`waves_of`), of one task family unless waves are mixed; each row has the
prompts and the reward convention of its family. Its rows share one
session, which keeps the key-value cache between turns. A row acts as soon as its turn is sampled, and reads what came
of it while others still write theirs; a finished row is dropped and makes room for a waiting one. The token record
of an episode is exactly what went into the session, in order: first prompt, sampled ids, reply ids, sampled ids …
What later turns read of it may be cut (`history`): then the row goes on in a new sequence. Nothing is tokenized twice,
and the mask is 1 exactly on the ids that were drawn. Rows are returned to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crl.config import Method, RolloutConfig, SamplingConfig
from crl.errors import StageFailed
from crl.faults import broke
from crl.protocols import (
    Advisor,
    Chat,
    Environment,
    Inquiry,
    Policy,
    Sampled,
    Session,
    Start,
    Step,
    StopReason,
    ToolCalls,
    Written,
)
from crl.records import (
    FREE,
    GUIDED,
    QUESTION,
    SAMPLER,
    SERVER,
    SUMMARY,
    Episode,
    Generation,
    Question,
    StrippedContext,
    Task,
    TeacherContext,
    Turn,
    Verdict,
    shown_text,
)
from crl.rollout.actions import AnswerTrees, from_calls, parse_action
from crl.rollout.asking import advise, questions_of, record
from crl.rollout.environments import Readable
from crl.rollout.history import begin_sequence, following, is_summary_due, remember
from crl.rollout.live import EpisodeSlot, Guide, LiveEpisode, opened_row
from crl.rollout.prompts import following_text
from crl.rollout.stepping import Stepping
from crl.text.outputs import fill
from crl.text.unicode import valid_text

__all__ = ["EpisodeSlot", "PlayedEpisode", "PlayedSequence", "Progress", "play_wave", "waves_of"]

CONTINUED = "continued"
"""Why sampling in a sequence ended that another one of its episode follows."""


@dataclass(frozen=True, slots=True)
class PlayedSequence:
    """One sequence of a played episode."""

    generation: Generation
    """Its token record."""
    prompt_with: Callable[[str | None], list[int]] = field(compare=False, repr=False)
    """Ids of its first prompt as an episode with this experience has it, or a free one (None): without any."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """The rows of one played episode."""

    episode: Episode
    turns: list[Turn]
    sequences: list[PlayedSequence]
    """In the order in which they began."""
    start: Start
    """What the environment said at reset."""
    questions: list[Question]
    answers: list[Generation]
    """Token records of the answers that it got."""
    raw_reward: float
    """What the environment gave; `episode.reward` is by the convention of the family."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Those of a judge that are about it, or about its group."""
    details: str | None = None
    """Beside `episode.error`: the traceback, or in words what was wrong."""

    @property
    def generations(self) -> list[Generation]:
        """Token records of its sequences."""
        return [sequence.generation for sequence in self.sequences]

    @property
    def feedback(self) -> str:
        """What may be said about the whole episode: the environment's last words on it, else its outcome."""
        return feedback_of(self.episode, self.turns)


def feedback_of(episode: Episode, turns: Sequence[Turn]) -> str:
    """What may be said about a whole episode: the environment's last words on it, else its outcome.

    Words on a refused action, or before an end by a limit or an error, may be about one step: its outcome follows.
    """
    outcome = f"The episode ended: {episode.stop_reason.replace('_', ' ')}. Reward: {episode.reward:g}."
    last = turns[-1] if turns else None
    if last is None or not last.feedback:
        return outcome
    of_all = last.valid and episode.stop_reason in (StopReason.success, StopReason.failure)
    return last.feedback if of_all else f"{last.feedback} {outcome}"


Progress = Callable[[dict[str, Any]], None]
"""Told `done`, `total`, `turns` and `won` of the wave, at first and after each turn; never part of the record."""


def waves_of(tasks: Sequence[Task], wave_groups: int, together: Mapping[str, str] | None = None) -> list[list[Task]]:
    """Cut the tasks of a round into waves of at most `wave_groups` whole groups, in planned order.

    A wave is of one family, or of those that `together` maps to the same name: then it takes their next groups.
    """
    families: dict[str, dict[int, list[Task]]] = {}
    for task in tasks:
        families.setdefault((together or {}).get(task.family, task.family), {}).setdefault(task.group, []).append(task)
    waves: list[list[Task]] = []
    for groups in families.values():
        members = list(groups.values())
        for first in range(0, len(members), wave_groups):
            waves.append([task for group in members[first : first + wave_groups] for task in group])
    return waves


def play_wave(
    policy: Policy,
    environment: Environment,
    slots: Sequence[EpisodeSlot],
    *,
    method: Method,
    seed_of: Callable[[str], np.random.SeedSequence],
    sampling: SamplingConfig,
    weights_digest: str,
    stage: str,
    advisor: Advisor | None = None,
    progress: Progress | None = None,
) -> list[PlayedEpisode]:
    """Play every slot of a wave to its end; results in the order of the slots.

    Each episode is sampled from its own seed, `seed_of(episode_id)`, so its tokens do not depend on which rows share
    its wave as far as the policy's arithmetic does not. An invalid action is answered and kept. An episode ends by
    success, failure or turn limit as the environment says, at the context limit where the next reply and a full turn no
    longer fit, or by an error of the environment (kept, with a reason code and reward 0), as which a first prompt
    counts that leaves no room for a turn (`opening.PROMPT_TOO_LONG`). `sampling` is that of all
    families of the wave; the reward is by the convention of the episode's. With an `advisor`, guided
    episodes are offered to ask; questions that are asked at one time are answered as one batch.

    Raises PromptTooLong where a prompt alone leaves no room, StageFailed where the environment starts
    otherwise than planned or the session's length disagrees with the token record.
    """
    if not slots:
        return []
    if len({slot.task.family for slot in slots}) > 1 and not getattr(environment, "spans_families", False):
        raise ValueError("a wave of several task families needs an environment of them all")
    environment = Readable(environment, method.rollout.max_observation_characters)
    starts = environment.reset_many([slot.task.environment_seed for slot in slots])
    trees = AnswerTrees(policy.chat, sampling.max_new_tokens) if sampling.constrain == "actions" else None
    if trees is not None:
        starts = [_answerable(trees, start) for start in starts]
    rows = [
        opened_row(
            policy, slot, start, method=method, seed_of=seed_of, sampling=sampling, stage=stage,
            answered=advisor is not None,
        )
        for slot, start in zip(slots, starts, strict=True)
    ]  # fmt: skip
    session = policy.open([row.sequence.token_ids for row in rows], [row.seed for row in rows], method.rollout.batch)

    def begin(indices: Sequence[int]) -> None:
        acting = [index for index in indices if rows[index].held is None]
        answers = None if trees is None else {index: trees.of(rows[index].actions) for index in acting}
        session.begin(indices, sampling, answers)

    begin(range(len(rows)))
    tell(progress, rows)
    acted: dict[int, _Acted] = {}
    with Stepping(environment, session, len(rows), method.rollout.environment_lag) as stepping, closing(session):
        while (sampled := stepping.advance()) or acted:
            acted |= _act(policy, stepping, rows, sampled, method)
            if not (steps := stepping.due(more=bool(sampled))):
                continue
            if trees is not None:
                steps = {index: _answered_next(trees, step) for index, step in steps.items()}
            turns = {index: acted.pop(index) for index in steps}
            pieces = _take(policy, rows, turns, steps, method=method, sampling=sampling, advisor=advisor, stage=stage)
            over = [index for index in turns if rows[index].stop_reason is not None]
            environment.ended(over)
            session.drop(over)
            session.extend({index: piece for index, piece in pieces.items() if piece is not None})
            for index, piece in pieces.items():
                if piece is None:
                    session.replace(index, rows[index].sequence.token_ids)
                else:
                    rows[index].sequence.append(piece)
            _compare_lengths(session, rows, list(pieces))
            begin(list(pieces))
            tell(progress, rows)
    return [played_episode(row, method, sampling, weights_digest, stage) for row in rows]


def _answerable(trees: AnswerTrees, start: Start) -> Start:
    """The start of an episode whose actor can only give the environment's actions as its answers."""
    flaw = None if start.error is not None else trees.flaw(start.actions)
    return start if flaw is None else Start.failed(*flaw)


def _answered_next(trees: AnswerTrees, step: Step) -> Step:
    """A step behind which there is an answer to give, or the end of its episode."""
    flaw = None if step.done else trees.flaw(step.actions)
    return step if flaw is None else broke(*flaw)


def tell(progress: Progress | None, rows: Sequence[LiveEpisode]) -> None:
    """Say how far a wave is."""
    if progress is not None:
        done = sum(row.stop_reason is not None for row in rows)
        turns, won = sum(len(row.turns) for row in rows), sum(row.success for row in rows)
        progress({"done": done, "total": len(rows), "turns": turns, "won": won})


@dataclass(frozen=True, slots=True)
class _Acted:
    """A turn that is sampled and whose environment steps."""

    sampled: Sampled
    text: str
    action: str | None
    inquiry: Inquiry | None


def _act(
    policy: Policy, stepping: Stepping, rows: Sequence[LiveEpisode], sampled: Mapping[int, Sampled], method: Method
) -> dict[int, _Acted]:
    """Act on turns that have ended."""
    texts = {index: valid_text(policy.chat.decode(sampled[index].token_ids)) for index in sorted(sampled)}
    rollout, thinking = method.rollout, policy.chat.opens_thought
    errors = {index: rows[index].start.error or sampled[index].error for index in texts}
    held = {index: step for index in texts if (step := rows[index].held) is not None}
    whole = {index: text for index, text in texts.items() if errors[index] is None and index not in held}
    inquiries = questions_of(rows, whole, rollout, thinking=thinking)
    actions = {
        index: None if index in inquiries else _action(policy.chat, sampled[index], text, rows[index], rollout)
        for index, text in texts.items()
        if index not in held
    } | dict.fromkeys(held, SUMMARY)
    failed = {index: broke(error, rows[index].start.details) for index, error in errors.items() if error is not None}
    stepping.begin({index: actions[index] for index in whole}, held | failed)
    return {index: _Acted(sampled[index], text, actions[index], inquiries.get(index)) for index, text in texts.items()}


def _action(chat: Chat, sampled: Sampled, text: str, row: LiveEpisode, rollout: RolloutConfig) -> str | None:
    """What a turn gives to its environment. Calls of tools that the chat shows are in the model's own form."""
    if isinstance(row.actions, ToolCalls) and chat.takes_tools:
        return from_calls(chat.calls(sampled.token_ids, row.actions.tools), row.actions)
    written = Written(text, sampled.token_ids)
    return parse_action(written, row.actions, rollout.action_format, thinking=chat.opens_thought)


def _take(
    policy: Policy,
    rows: Sequence[LiveEpisode],
    turns: Mapping[int, _Acted],
    steps: Mapping[int, Step],
    *,
    method: Method,
    sampling: SamplingConfig,
    advisor: Advisor | None,
    stage: str,
) -> dict[int, list[int] | None]:
    """Record turns with what came of them; the reply ids of the rows that play on, None where a sequence began."""
    inquiries = {index: turn.inquiry for index, turn in turns.items() if turn.inquiry is not None}
    advice = advise(rows, inquiries, steps, method.rollout, advisor)
    pieces: dict[int, list[int] | None] = {}
    for index, turn in sorted(turns.items()):
        row, step, asked = rows[index], steps[index], index in inquiries
        row.last_observation = None if step.error is not None else step.observation
        if asked:
            step = record(row, step, inquiries[index], advice[index])
        call = _called(policy.chat, row, turn)
        _record_turn(row, policy.chat, turn, step, call)
        if step.done:
            finish(row, step)
            continue
        prompt = method.prompts_of(row.slot.task.family)["actor"]
        text = following_text(
            prompt,
            goal=row.slot.task.goal,
            observation=step.observation,
            actions=step.actions,
            feedback=step.feedback,
            takes_tools=isinstance(step.actions, ToolCalls) and policy.chat.takes_tools,
        )
        reply, room = _reply(policy.chat, turn, text, call), policy.context - sampling.max_new_tokens
        if is_summary_due(row, reply, sampling.max_new_tokens):
            request = fill(prompt.summarize or "", {"goal": row.slot.task.goal})
            piece = _reply(policy.chat, turn, request, call)
            if len(row.sequence.token_ids) + len(piece) <= room:
                row.held, row.observation, row.asked, row.asked_text = step, request, piece, request
                pieces[index] = piece
                continue
        prompted = following(row, reply, room)
        if prompted is None:
            row.stop_reason, row.reward = StopReason.context_limit, step.reward
            row.reward_parts = dict(step.reward_parts or {})
            continue
        row.first, ids = prompted
        row.held, row.asked, row.asked_text = None, reply, text
        row.observation, row.actions = step.observation, step.actions
        before = row.sequence.token_ids
        row.unshown += len(before) + len(reply) - len(ids)
        pieces[index] = reply
        if ids != [*before, *reply]:
            begin_sequence(row, row.first, ids, reply, text, stage)
            pieces[index] = None
    return pieces


def _record_turn(row: LiveEpisode, chat: Chat, turn: _Acted, step: Step, call: str | None) -> None:
    """Keep a turn with what came of it. That of a summary is of the turn before, which has it."""
    summary, refused = row.held is not None, step.error is None and not step.legal
    first, last = row.sequence.append_sampled(turn.sampled)
    remember(row, chat, turn.sampled.token_ids, turn.text, call)
    refused = refused and not summary
    row.invalid_actions += refused
    said = not summary and (step.feedback or refused or turn.inquiry is not None)
    row.turns.append(
        Turn(
            episode_id=row.slot.task.episode_id,
            turn=len(row.turns),
            observation=row.observation,
            output=turn.text,
            action=QUESTION if turn.inquiry is not None else turn.action,
            valid=step.error is None and not refused,
            feedback=step.feedback if said else None,
            generation_id=row.sequence.generation_id,
            first_token=first,
            last_token=last,
            stop_reason=turn.sampled.stop_reason.value,
            turn_reward=None if summary or step.error is not None else step.turn_reward,
            dropped_turns=row.first,
            dropped_tokens=row.unshown,
        )
    )


def _called(chat: Chat, row: LiveEpisode, turn: _Acted) -> str | None:
    """The tool that a turn called, as `_action` read it, the last of several: what came of it is the tool's turn."""
    if turn.action is None or row.held is not None or not (isinstance(row.actions, ToolCalls) and chat.takes_tools):
        return None
    calls = json.loads(turn.action)
    name: str = (calls[-1] if isinstance(calls, list) else calls)["name"]
    return name


def _reply(chat: Chat, turn: _Acted, text: str, call: str | None) -> list[int]:
    """The ids of a reply to a turn."""
    ended = turn.sampled.stop_reason is StopReason.end_of_turn
    return list(chat.reply(text, ended=ended, by=turn.sampled.token_ids[-1] if ended else None, call=call))


def finish(row: LiveEpisode, step: Step) -> None:
    """The end of an episode, as its last step says."""
    row.error, row.details = step.error, step.details
    if step.error is not None:
        row.stop_reason = StopReason.error
        return
    row.success, row.reward, row.reward_parts = step.success, step.reward, dict(step.reward_parts or {})
    failed = StopReason.failure if step.stop_reason in (None, StopReason.success) else step.stop_reason
    row.stop_reason = StopReason.success if step.success else failed


def _compare_lengths(session: Session, rows: Sequence[LiveEpisode], live: Sequence[int]) -> None:
    for index in live:
        found, expected = session.length(index), len(rows[index].sequence.token_ids)
        if found != expected:
            raise StageFailed(
                f"row {index} of the session holds {found} tokens",
                expected=f"the {expected} tokens of its record",
                where=f"episode {rows[index].slot.task.episode_id}",
                next_step="the policy's session appended or lost tokens; what is trained would not be what was sampled",
            )


def played_episode(
    row: LiveEpisode, method: Method, sampling: SamplingConfig, weights_digest: str, stage: str
) -> PlayedEpisode:
    """The rows of an episode that is over."""
    task, slot, family = row.slot.task, row.slot, method.family(row.slot.task.family)
    convention = None if family is None or row.stop_reason is StopReason.error else family.reward
    stop_reason = (row.stop_reason or StopReason.error).value
    guided = bool(slot.guides)
    # By spans, not by the mask: ids that left no choice are written too, though nothing was drawn.
    wrote = sum(turn.last_token - turn.first_token for turn in row.turns)
    episode = Episode(
        episode_id=task.episode_id,
        round=task.round,
        family=task.family,
        group=task.group,
        member=task.member,
        environment_seed=task.environment_seed,
        stream=FREE if task.stream == GUIDED and not guided else task.stream,
        guided=guided,
        entry_ids=[guide.entry_id for guide in slot.guides],
        content_digests=[guide.content_digest for guide in slot.guides],
        experiences=[guide.experience for guide in slot.guides],
        goal=task.goal,
        success=row.success,
        reward=row.reward if convention is None else convention.of(row.reward, success=row.success),
        turns=len(row.turns),
        invalid_actions=row.invalid_actions,
        tokens_read=sum(len(sequence.token_ids) for sequence in row.sequences) - wrote,
        tokens_sampled=wrote,
        stop_reason=stop_reason,
        last_observation=row.last_observation,
        error=row.error,
        generation_ids=[sequence.generation_id for sequence in row.sequences],
        reward_names=list(row.reward_parts),
        reward_values=list(map(float, row.reward_parts.values())),
        task_digest=task.task_digest,
    )
    sequences = [
        PlayedSequence(
            Generation(
                generation_id=sequence.generation_id,
                round=task.round,
                stage=stage,
                role="actor",
                kind="episode",
                weights_digest=weights_digest,
                temperature=sampling.temperature,
                token_ids=sequence.token_ids,
                loss_mask=sequence.loss_mask,
                logprobs=sequence.logprobs,
                choices=sequence.choices,
                logprobs_by=SERVER if sequence.renormalized else SAMPLER,
                prompt=sequence.prompt,
                output="\n".join(turn.output for turn in _turns_in(sequence.generation_id, row.turns)),
                stop_reason=stop_reason if sequence is row.sequence else CONTINUED,
            ),
            sequence.prompt_with,
        )
        for sequence in row.sequences
    ]
    return PlayedEpisode(
        episode, row.turns, sequences, row.start, row.questions, row.answers, row.reward, details=row.details
    )


def _turns_in(generation_id: str, turns: Sequence[Turn]) -> list[Turn]:
    """The turns of a sequence."""
    return [turn for turn in turns if turn.generation_id == generation_id]


def stripped_contexts(played: PlayedEpisode) -> list[StrippedContext]:
    """The sequences of a guided episode as its free version would have had them: the contexts of self-distillation.

    Left out are the experience and the offer to ask in the first prompt, every turn that asked a question (answered or
    refused), and what was replied to it. What stays is copied id for id from the token record; only the first prompt is
    tokenized (:attr:`PlayedSequence.prompt_with`). A reply that no own turn follows is left out as well: the
    context ends, as a free episode's record does, with what the actor wrote.
    """
    return [_stripped(played, sequence) for sequence in played.sequences]


def _stripped(played: PlayedEpisode, sequence: PlayedSequence) -> StrippedContext:
    record, token_ids = sequence.generation, sequence.prompt_with(None)
    turns = _turns_in(record.generation_id, played.turns)
    loss_mask = [0] * len(token_ids)
    choices: list[list[int]] = []
    replied: list[int] = []  # what the actor read after its last own turn
    for place, turn in enumerate(turns):
        if turn.action == QUESTION:
            continue
        written = record.token_ids[turn.first_token : turn.last_token]
        token_ids += [*replied, *written]
        mask = record.loss_mask[turn.first_token : turn.last_token]
        loss_mask += [0] * len(replied) + mask
        if record.choices:
            first = sum(record.loss_mask[: turn.first_token])
            choices += record.choices[first : first + sum(mask)]
        following = turns[place + 1 :]
        replied = record.token_ids[turn.last_token : following[0].first_token] if following else []
    return StrippedContext(
        episode_id=played.episode.episode_id,
        generation_id=record.generation_id,
        token_ids=token_ids,
        loss_mask=loss_mask,
        choices=choices,
        removed_tokens=len(record.token_ids) - len(token_ids),
    )


def teacher_contexts(played: PlayedEpisode, guides: Sequence[Guide]) -> list[TeacherContext]:
    """The sequences of a free episode as a teacher reads them that is shown `guides`; those that wrote something."""
    shown, found = shown_text([guide.experience for guide in guides]), []
    for sequence in played.sequences:
        turns = _turns_in(sequence.generation.generation_id, played.turns)
        if turns:
            found.append(
                TeacherContext(
                    episode_id=played.episode.episode_id,
                    generation_id=sequence.generation.generation_id,
                    entry_ids=[guide.entry_id for guide in guides],
                    content_digests=[guide.content_digest for guide in guides],
                    token_ids=sequence.prompt_with(shown),
                    replaced_tokens=turns[0].first_token,
                )
            )
    return found
