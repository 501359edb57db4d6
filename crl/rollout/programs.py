"""Playing a wave of programs: the second player. It returns what `play_wave` does, for episodes that nobody steps.

The program of each episode is a process. It calls the actor at a path of its own, as any OpenAI-style service (see
`crl/gateway`). Each call is a turn; a conversation that goes on is one sequence.

Time decides nothing. What a call is answered follows from the seed of its episode, the ids of its prompt, and how often
that same prompt came before. The last bits of a log-probability also depend on the rows that are computed beside it, so
the wave goes in step: it samples when every program that still runs waits for an answer. Calls that a program has open
at one time are answered one after the other, in the order of their digests. Only where turns end in the order of time
anyway, behind a server, calls go as they come.

Of each program that has ended a file keeps what it asked, what it was answered, and how it ended. When a killed wave is
played again, its calls are sampled again, beside the same rows (behind a server they are read, too), and it is not
started: its end is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError

from crl.config import Method, SamplingConfig
from crl.errors import BadInput, StageFailed
from crl.faults import Fault, attempt, broke
from crl.gateway.conversations import Conversations, Prompt
from crl.gateway.messages import Answer, ApiError, ChatRequest, as_messages
from crl.gateway.server import Call, Client, Gateway
from crl.protocols import (
    ConversationChat,
    Environment,
    Message,
    Policy,
    RunsPrograms,
    Sampled,
    Served,
    Session,
    Step,
    StopReason,
)
from crl.records import Turn
from crl.rollout.environments import Readable, is_finite
from crl.rollout.live import EpisodeSlot, LiveEpisode, LiveSequence, as_planned, sequence_id
from crl.rollout.play import PlayedEpisode, Progress, finish, played_episode, tell
from crl.rollout.processes import ProgramProcess, remove
from crl.run.journal import JsonLines
from crl.run.seeds import number_of
from crl.text.outputs import fill, prompt_text
from crl.text.prefixes import shared_prefix
from crl.text.unicode import valid_text

_LOOK_SECONDS = 1.0
"""Longest wait before limits are looked at again."""
_FLOOD = 4
"""A program that sends more than so many times the calls it may is ended."""
_CALLS: TypeAdapter[list[tuple[int, ChatRequest, Sampled]]] = TypeAdapter(list[tuple[int, ChatRequest, Sampled]])
_STEP: TypeAdapter[Step] = TypeAdapter(Step)


@dataclass(frozen=True)
class _Next:
    """What a program is answered next."""

    prompt: Prompt
    call: Call | None
    """None: it is a call of an earlier attempt."""
    digest: str
    seed: int


@dataclass(eq=False)
class _Run:
    """An episode while its program runs, or while what it asked in an earlier attempt is sampled again."""

    number: int
    row: LiveEpisode
    conversations: Conversations
    kept: deque[tuple[ChatRequest, Sampled]] | None = None
    """Calls of an earlier attempt with their answers."""
    kept_end: Step | None = None
    process: ProgramProcess | None = None
    client: Client | None = None
    folder: Path | None = None
    waiting: list[Call] = field(default_factory=list)
    following: _Next | None = None
    sampling: bool = False
    asked: list[tuple[ChatRequest, Sampled]] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    known: dict[int, Sampled] = field(default_factory=dict)
    """Answers by their seed that are given again: behind a server, and where an attempt to repeat it went another
    way."""
    messages: tuple[Message, ...] = ()
    """Of its last conversation that is trained."""
    requests: int = 0
    since: float = 0.0
    """When it last had no call open."""
    own_seconds: float = 0.0
    seconds: float = math.inf
    """What it may have of them."""
    limit: StopReason | None = None
    """Why a call was refused that asked for more than there is."""
    over: bool = False

    @property
    def next(self) -> _Next:
        """What it is answered next, where it waits."""
        assert self.following is not None
        return self.following


def play_programs(
    policy: Policy,
    environment: Environment,
    slots: Sequence[EpisodeSlot],
    *,
    method: Method,
    seed_of: Callable[[str], np.random.SeedSequence],
    sampling: SamplingConfig,
    weights_digest: str,
    stage: str,
    folder: Path,
    file: JsonLines | None = None,
    progress: Progress | None = None,
    at_once: Callable[[str], None] = lambda episode_id: None,
) -> list[PlayedEpisode]:
    """Play every slot of a wave to the end of its program; as :func:`crl.rollout.play.play_wave`.

    `environment` is a :class:`RunsPrograms`. `folder`: programs run in folders in it, which are removed; `file` keeps
    what has ended. `at_once` is given the id of an episode that had several calls open at a time: what it is answered
    may differ from play to play. Raises BadInput where the policy's chat takes no conversations.
    """
    if not hasattr(policy.chat, "conversation"):
        raise BadInput(
            "the actor's model is behind an endpoint, which renders chats itself",
            expected="a model that is sampled here, or by vLLM",
            where="method.roles.actor.engine",
            next_step="point the program at the endpoint: nothing of it would be trained here",
        )
    starts = Readable(environment).reset_many([slot.task.environment_seed for slot in slots])
    wave = _Wave(policy, cast(Any, environment), method, sampling, stage, folder, file, at_once)
    rows = []
    for number, (slot, start) in enumerate(zip(slots, starts, strict=True)):
        start = as_planned(slot.task, start)
        seed = number_of(seed_of(slot.task.episode_id))
        rows.append(LiveEpisode(slot, start, start.actions, start.observation, seed, []))
        wave.add(number, rows[-1])
    tell(progress, rows)
    wave.play(lambda: tell(progress, rows))
    return [played_episode(row, method, sampling, weights_digest, stage) for row in rows]


class _Wave:
    """The programs of a wave."""

    def __init__(
        self, policy: Policy, environment: RunsPrograms, method: Method, sampling: SamplingConfig, stage: str,
        folder: Path, file: JsonLines | None, at_once: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._policy, self._environment, self._method = policy, environment, method
        self._sampling, self._stage, self._folder, self._at_once = sampling, stage, folder, at_once
        self._chat = cast(ConversationChat, policy.chat)
        self._file, self._limits = file, environment.limits
        self._kept = {} if file is None else {line.get("episode"): line for line in file.read()}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._runs: list[_Run] = []
        self._by_time = isinstance(policy, Served)
        self._session: Session | None = None
        self._rows: dict[int, _Run] = {}
        """The programs whose conversations the rows of the session hold."""

    def add(self, number: int, row: LiveEpisode) -> None:
        """An episode to play."""
        run = _Run(number, row, self._conversations(row))
        self._runs.append(run)
        line = self._kept.get(row.slot.task.episode_id)
        if line is not None:
            try:
                run.kept = _unfolded(line["calls"])
                run.kept_end = _STEP.validate_python(line["end"])
            except (ValidationError, KeyError, TypeError, ValueError):  # a line of another version
                run.kept = None
        if row.start.error is not None:
            self._finish(run, broke(row.start.error, row.start.details))

    def play(self, tell: Callable[[], None]) -> None:
        """Play all episodes to their end."""
        home = self._environment.home
        socket = None if home is None else home / "gateway.sock"
        self._folder = self._folder if home is None else home / "programs"
        remove(self._folder)
        with Gateway(socket) as gateway, ExitStack() as stack:
            self._gateway = gateway
            stack.callback(remove, self._folder)
            stack.callback(self._close)
            self._threads = stack.enter_context(ThreadPoolExecutor(len(self._runs)))
            for run in self._runs:
                if run.kept is None and not run.over:
                    self._start(run)
            while live := [run for run in self._runs if not run.over]:
                ready = [run for run in live if self._following(run) is not None]
                busy = [run for run in live if not run.over and run.following is None]
                if self._by_time:
                    for run in ready:
                        if not run.sampling:
                            self._sample_beside(run)
                    self._wait(busy)
                elif busy:
                    self._wait(busy)
                elif ready:
                    self._sample(ready)
                tell()

    # -- programs --------------------------------------------------------------------------------------------------

    def _conversations(self, row: LiveEpisode) -> Conversations:
        prompt, shown = self._method.prompts_of(row.slot.task.family)["actor"], row.slot.shown
        text = "" if shown is None else fill(prompt.experience, {"experience": shown})
        strip = self._method.role("actor").history == "strip_thoughts"
        return Conversations(self._chat, shown=text, side=frozenset(self._environment.side), strip=strip)

    def _start(self, run: _Run) -> None:
        run.kept, run.since = None, time.monotonic()
        run.client = self._gateway.open(lambda call: self._asked(run, call))
        run.folder = folder = self._folder / run.row.slot.task.episode_id.replace("/", "_")
        remove(folder)
        folder.mkdir(parents=True)
        made = attempt(lambda: self._environment.program(run.number, folder))
        if isinstance(made, Fault):
            self._finish(run, broke(made.code, made.details))
            return
        run.seconds = min(self._limits.seconds, made.seconds or self._limits.seconds)
        url = self._gateway.url(run.client, made.port)
        here = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": run.client.key}
        try:
            run.process = ProgramProcess(made, folder, here, lambda: self._events.put(lambda: self._ended(run)))
        except (OSError, ValueError) as error:
            self._finish(run, broke("program_start", f"{made.command[0]} cannot be started: {error}"))

    def _asked(self, run: _Run, call: Call) -> None:
        """A call arrives; in the server's thread."""
        run.requests += 1
        arrived = time.monotonic()
        self._events.put(lambda: self._take_call(run, call, arrived))

    def _take_call(self, run: _Run, call: Call, arrived: float) -> None:
        if run.over:
            call.refuse(ApiError("This episode is over.", code="over"))
            return
        if run.requests > _FLOOD * self._limits.calls + 100:
            self._lose(run, "program_flood", f"it sent {run.requests} calls; {self._limits.calls} are answered")
            return
        open_calls = [other for other in run.waiting if not other.gone]
        if not open_calls and not run.sampling:
            run.own_seconds += arrived - run.since
        elif not call.gone:
            self._at_once(run.row.slot.task.episode_id)
        run.waiting, run.following = [*open_calls, call], run.following if run.sampling else None

    def _ended(self, run: _Run) -> None:
        """A program has ended by itself."""
        if run.over or run.process is None:
            return
        run.process.end()
        if run.process.broke:
            self._lose(run, "program_limits", f"was ended: {run.process.broke}")
            return
        code = run.process.exit_code or 0
        if code and run.limit is None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with the exit code {code}"
            self._finish(run, broke("program_signal" if code < 0 else "program_exit", self._about(run, how)))
            return
        folder, messages = cast(Path, run.folder), as_messages(run.messages)
        step = attempt(lambda: self._environment.outcome(run.number, messages, folder, code))
        if isinstance(step, Fault):
            step = broke(step.code, step.details)
        elif not is_finite(step):
            step = broke("environment_reward", f"the reward is {step.reward}; expected a finite number")
        elif code:  # it went on to its limit, and could not do without
            step = dataclasses.replace(step, success=False, stop_reason=run.limit)
        self._finish(run, step)

    def _lose(self, run: _Run, code: str, how: str) -> None:
        """End a program, and its episode with an error."""
        if run.process is not None:
            run.process.end()
        self._finish(run, broke(code, self._about(run, how)))

    def _about(self, run: _Run, how: str) -> str:
        written = "" if run.process is None else run.process.output
        return f"the program {how}" + (f"; the last it wrote:\n{written}" if written else "; it wrote nothing")

    def _finish(self, run: _Run, step: Step) -> None:
        """The end of an episode, and its line in the file."""
        run.over, run.following = True, None
        if run.client is not None:
            self._gateway.close(run.client.path)
        for call in run.waiting:
            call.refuse(ApiError("This episode is over.", code="over"))
        row = run.row
        if not row.sequences:  # an episode has one
            opening = (Message("user", row.slot.task.goal or "."),)
            ids = self._chat.conversation(opening)
            row.sequences.append(LiveSequence(self._name(run, 0), _text(opening), lambda _: list(ids), list(ids)))
        row.last_observation = None if step.error is not None else step.observation
        if step.error is not None and row.turns:  # as where an environment breaks
            row.turns[-1] = dataclasses.replace(row.turns[-1], valid=False)
        finish(row, step)
        if run.folder is not None:
            remove(run.folder)
        if self._file is not None and run.kept is None:
            end = _STEP.dump_python(step, mode="json", warnings=False)
            self._file.append({"episode": row.slot.task.episode_id, "calls": _folded(run.asked), "end": end})

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
        for run in self._runs:
            if run.process is not None and not run.over:
                run.process.end()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, busy: Iterable[_Run]) -> None:
        """Wait until something happens; programs that are `busy` past their time lose their episodes."""
        deadlines = {run: self._deadline(run) for run in busy if run.process is not None}
        patience = min([_LOOK_SECONDS, *(deadline - time.monotonic() for deadline in deadlines.values())])
        try:
            self._events.get(timeout=max(patience, 0.0))()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            pass
        for run in deadlines:
            if run.over or run.waiting or run.sampling or time.monotonic() < self._deadline(run):
                continue
            if run.process is not None and run.process.exit_code is not None:
                continue
            used = run.own_seconds + time.monotonic() - run.since
            if used >= run.seconds:
                self._lose(run, "program_seconds", f"ran for {used:.0f} s of its own; it has {run.seconds:g}")
            else:
                limit = self._limits.call_seconds
                self._lose(run, "program_call_seconds", f"made no call for {limit:g} s, and kept the wave waiting")

    def _deadline(self, run: _Run) -> float:
        return run.since + min(self._limits.call_seconds, run.seconds - run.own_seconds)

    def _following(self, run: _Run) -> _Next | None:
        """What a program is answered next; None where it has no call open that can be answered, or is over."""
        while run.following is None and not run.over:
            candidates: list[_Next] = []
            if run.kept is not None:
                if not run.kept:
                    self._finish(run, cast(Step, run.kept_end))
                    break
                request, sampled = run.kept[0]
                try:
                    candidates.append(self._next(run, request, None))
                except (BadInput, ApiError):
                    self._play_on(run)
                    break
                if self._by_time:  # what is computed beside it says nothing about it
                    run.known[candidates[0].seed] = sampled
            for call in run.waiting:
                if call.gone:
                    continue
                try:
                    candidates.append(self._next(run, call.request, call))
                except ApiError as error:
                    call.refuse(error)
                except Exception as error:  # whatever a template makes of what a program wrote
                    found = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
                    call.refuse(ApiError(found, code="invalid_request", param="messages"))
            if run.kept is None and len(candidates) < len(run.waiting):
                run.waiting = [each.call for each in candidates if each.call is not None]
                run.since = time.monotonic()
            if not candidates:
                break
            chosen = min(candidates, key=lambda each: each.digest)
            if chosen.seed in run.known:
                self._take(run, chosen, run.known[chosen.seed])
            else:
                run.following = chosen
        return run.following

    def _next(self, run: _Run, request: ChatRequest, call: Call | None) -> _Next:
        """Raises ApiError, or BadInput, where it cannot be answered."""
        if wrong := set(request.stop) - set(self._sampling.stop_strings):
            raise ApiError(
                f"stop is {sorted(wrong)}: name them in roles.actor.sampling.stop_strings, for what is trained is what "
                "the experiment says.",
                code="invalid_request", param="stop",
            )  # fmt: skip
        sampled = sum(turn.last_token - turn.first_token for turn in run.row.turns)
        if len(run.row.turns) >= self._limits.calls or sampled >= self._limits.tokens:
            run.limit = StopReason.turn_limit
            raise ApiError(
                f"An episode has at most {self._limits.calls} calls and {self._limits.tokens} sampled tokens.",
                code="limit_reached",
            )
        prompt = run.conversations.prompt(request)
        room = self._policy.context - self._sampling.max_new_tokens
        if len(prompt.token_ids) > room:
            run.limit = StopReason.context_limit
            raise ApiError(
                f"This model's maximum context length is {self._policy.context} tokens: {room} for messages, and the "
                f"rest for the answer. The messages have {len(prompt.token_ids)} tokens.",
                code="context_length_exceeded", param="messages",
            )  # fmt: skip
        digest = hashlib.sha256(np.asarray(prompt.token_ids, np.int64).tobytes()).hexdigest()
        named = f"{run.row.seed}/{digest}/{run.repeats[digest]}"
        return _Next(prompt, call, digest, int.from_bytes(hashlib.sha256(named.encode()).digest()[:16]))

    def _play_on(self, run: _Run) -> None:
        """What a program was answered before is not what it is answered now: it is played for real after all, with the
        answers that it had so far."""
        run.conversations, run.repeats, run.asked, run.messages = self._conversations(run.row), Counter(), [], ()
        run.row.sequences, run.row.turns = [], []
        self._start(run)

    # -- sampling --------------------------------------------------------------------------------------------------

    def _sample(self, runs: Sequence[_Run]) -> None:
        """Answer one call of each, all side by side."""
        waiting = list(runs)
        if self._session is None:
            opened = waiting[: self._method.rollout.batch]
            prompts, seeds = zip(*((run.next.prompt.token_ids, run.next.seed) for run in opened), strict=True)
            self._session, self._rows = self._policy.open(prompts, seeds), dict(enumerate(opened))
        session, rows = self._session, self._rows
        under_way: dict[int, _Run] = {}
        while waiting or under_way:
            begun = []
            for row in sorted(rows.keys() - under_way.keys()):
                # What was read of its conversations is kept where a program keeps its row.
                run = rows[row] if rows[row] in waiting else next((r for r in waiting if r not in rows.values()), None)
                if run is not None:
                    waiting.remove(run)
                    session.replace(row, run.next.prompt.token_ids, run.next.seed)
                    rows[row] = under_way[row] = run
                    begun.append(row)
            if begun:
                session.begin(sorted(begun), self._sampling)
            ended = session.advance()
            if not ended:
                raise StageFailed(
                    "the policy's session ended no turn", expected="a turn of each row", where=f"stage {self._stage}"
                )
            for row, sampled in sorted(ended.items()):
                run = under_way.pop(row)
                self._take(run, run.next, sampled)

    def _sample_beside(self, run: _Run) -> None:
        """The same of one program, in a thread: behind a server rows do not depend on each other."""
        run.sampling, following = True, run.next

        def sample() -> Sampled:
            with closing(self._policy.open([following.prompt.token_ids], [following.seed])) as session:
                session.begin([0], self._sampling)
                return session.advance()[0]

        def taken(future: Future[Sampled]) -> None:
            run.sampling = False
            sampled = future.result()  # what it raises is raised where the wave is played
            if not run.over:
                self._take(run, following, sampled)

        self._threads.submit(sample).add_done_callback(lambda future: self._events.put(lambda: taken(future)))

    def _take(self, run: _Run, following: _Next, sampled: Sampled) -> None:
        """Record an answer, and give it."""
        prompt, row = following.prompt, run.row
        run.following = None
        run.known[following.seed] = sampled
        if run.kept is not None and run.kept.popleft()[1].token_ids != sampled.token_ids:
            self._play_on(run)
            return
        if sampled.error is not None:
            self._lose(run, sampled.error, "was to be answered, and sampling broke")
            return
        run.repeats[following.digest] += 1
        run.asked.append((prompt.request, sampled))
        turn = self._chat.parsed(sampled.token_ids, prompt.request.tools)
        index = run.conversations.answered(prompt, sampled, turn)
        if prompt.continues is None:
            text = _text(prompt.shown)
            ids = list(prompt.token_ids)
            # Where programs write the prompts, nothing asks for one with another experience (`context_distillation`).
            row.sequences.append(LiveSequence(self._name(run, index), text, lambda _: prompt.free_prompt(), ids))
        live = row.sequences[index]
        live.append(prompt.token_ids[len(live.token_ids) :])
        recorded = sampled
        if prompt.side:
            nothing = len(sampled.token_ids)
            recorded = dataclasses.replace(sampled, drawn=[0] * nothing, logprobs=[0.0] * nothing, choices=[])
        else:
            run.messages = (*prompt.request.messages, Message("assistant", turn.content, turn.calls))
        first, last = live.append_sampled(recorded)
        number = len(row.turns)
        row.turns.append(
            Turn(
                episode_id=row.slot.task.episode_id,
                turn=number,
                observation=_text(prompt.new),
                output=valid_text(self._chat.decode(sampled.token_ids)),
                action=f"[{', '.join(turn.calls)}]" if turn.calls else turn.content,
                valid=True,
                feedback=None,
                generation_id=live.generation_id,
                first_token=first,
                last_token=last,
                stop_reason=sampled.stop_reason.value,
            )
        )
        if following.call is not None:
            run.waiting = [call for call in run.waiting if call is not following.call]
            run.since = time.monotonic()
            read, wrote = len(prompt.token_ids), len(sampled.token_ids)
            following.call.answer(Answer(number, turn, sampled.stop_reason, read, wrote))

    def _name(self, run: _Run, index: int) -> str:
        return sequence_id(run.row.slot.task.episode_id, self._stage, index)


def _text(messages: Sequence[Message]) -> str:
    """Messages as one readable text."""
    return prompt_text(
        [
            {
                "role": f"tool {message.name}" if message.role == "tool" else message.role,
                "content": "\n".join([*([message.content] if message.content else []), *message.calls]),
            }
            for message in messages
        ]
    )


def _folded(calls: Sequence[tuple[ChatRequest, Sampled]]) -> Any:
    """Calls as plain data: of each the messages that it does not share with the one before, and their number."""
    found, before = [], tuple[Message, ...]()
    for request, sampled in calls:
        same = shared_prefix(before, request.messages)
        found.append((same, dataclasses.replace(request, messages=request.messages[same:]), sampled))
        before = request.messages
    return _CALLS.dump_python(found, mode="json")


def _unfolded(data: Any) -> deque[tuple[ChatRequest, Sampled]]:
    """What :func:`_folded` was given. Raises ValidationError."""
    found, messages = deque[tuple[ChatRequest, Sampled]](), tuple[Message, ...]()
    for same, request, sampled in _CALLS.validate_python(data):
        messages = (*messages[:same], *request.messages)
        found.append((dataclasses.replace(request, messages=messages), sampled))
    return found
