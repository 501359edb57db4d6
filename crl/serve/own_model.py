"""A served model that is sampled in this process: one loop, in which calls share a batch and come and go as they will.

A row of the session is given to each call, the one that holds most of its prompt: what was read of a conversation is
not read again. Settings of sampling are those of each call. A call that nobody waits for ends.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from crl.config.roles import HistoryConfig, SamplingConfig, SummaryHistory, WindowHistory
from crl.errors import BadInput
from crl.gateway.conversations import Conversations, Prompt
from crl.gateway.messages import Answer, ApiError
from crl.gateway.server import Call
from crl.protocols import ConversationChat, ParsedTurn, Sampled, Session, StopReason
from crl.serve.answering import Answering, Conversation, failed, refusing
from crl.serve.source import TrainedAgent
from crl.text.prefixes import shared_prefix

SHOWN_SECONDS = 0.05
"""Between two pieces of a stream: reading an answer from its start for each token would take ever longer."""
MOST_ROWS = 16
"""Calls that are sampled at one time, unless the run sampled fewer episodes."""
_LONGEST_TAG = 16
"""Characters at the end of what is known that may begin a tag, which is not shown."""


class SteppedSession(Session, Protocol):
    """A session that samples one id at a time (`crl.policies.session.BatchSession`)."""

    def step(self) -> bool: ...

    def ended(self) -> dict[int, Sampled]: ...

    def written(self, row: int) -> list[int]: ...

    def give_up(self, row: int) -> None: ...


class SteppedPolicy(Protocol):
    """A policy of such sessions (`crl.policies.language_model.LanguagePolicy`)."""

    @property
    def chat(self) -> ConversationChat: ...

    @property
    def context(self) -> int: ...

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> SteppedSession: ...


_NOTHING = ParsedTurn("")


@dataclass(eq=False)
class _Work:
    """A call that is being answered."""

    call: Call
    conversation: Conversation
    prompt: Prompt
    sampling: SamplingConfig
    summary: bool = False
    """Whether the model sums up before it answers."""
    shown: ParsedTurn = _NOTHING
    next_at: float = 0.0
    """When more of it is shown."""


class OwnModel:
    """The loop. It runs in the thread that loaded the model (:meth:`run`); calls come from others (:meth:`submit`)."""

    def __init__(self, policy: SteppedPolicy, answering: Answering, *, history: HistoryConfig, rows: int) -> None:
        """`rows`: calls that are sampled at one time."""
        self._policy, self._answering, self._history, self._rows = policy, answering, history, rows
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._waiting: deque[Call] = deque()
        self._session: SteppedSession | None = None
        self._works: dict[int, _Work] = {}
        self._ids: dict[int, list[int]] = {}
        """What each row of the session holds."""

    def submit(self, call: Call) -> None:
        """Take a call."""
        self._calls.put(call)

    def stop(self) -> None:
        """Have :meth:`run` return."""
        self._calls.put(None)

    def run(self) -> None:
        """Answer calls until :meth:`stop`."""
        while self._taken():
            for row in [row for row, work in self._works.items() if work.call.gone]:
                self._opened.give_up(row)
                del self._works[row]
            while self._waiting and len(self._works) < self._rows:
                call = self._waiting.popleft()
                with refusing(call):
                    self._begin(call)
            if not self._works:
                continue
            try:
                self._opened.step()
                ended = self._opened.ended()
            except Exception:  # a batch that does not fit into memory, say: the next one may
                error = failed()
                for work in self._works.values():
                    work.call.refuse(error)
                self._works, self._session = {}, None
                continue
            for row, sampled in ended.items():
                work = self._works.pop(row)
                with refusing(work.call):
                    self._finish(row, work, sampled)
            self._show()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _taken(self) -> bool:
        """Take what has come; where there is nothing to do, wait for it. False: it is over."""
        idle = not (self._works or self._waiting)
        try:
            while True:
                call = self._calls.get(block=idle)
                if call is None:
                    return False
                self._waiting.append(call)
                idle = False
        except queue.Empty:
            return True

    @property
    def _opened(self) -> SteppedSession:
        assert self._session is not None
        return self._session

    def _begin(self, call: Call) -> None:
        """Give a free row to a call."""
        if call.gone:
            return
        work = self._work(call)
        ids, seed = work.prompt.token_ids, call.request.settings.seed
        if self._session is None:
            self._session = self._policy.open([ids] * self._rows, [0] * self._rows)
            self._ids = {row: [] for row in range(self._rows)}
        free = self._ids.keys() - self._works.keys()
        row = max(sorted(free), key=lambda each: shared_prefix(self._ids[each], ids))
        self._session.replace(row, ids, secrets.randbits(63) if seed is None else seed % (1 << 64))
        self._session.begin([row], work.sampling)
        self._works[row], self._ids[row] = work, ids

    def _work(self, call: Call) -> _Work:
        """Raises ApiError, or BadInput, where it cannot be answered."""
        request = call.request
        sampling = self._answering.sampling(request)
        conversation = self._answering.conversation(request)
        if conversation.ids is None:
            history, room = self._history, self._policy.context - sampling.max_new_tokens
            conversation.ids = Conversations(
                self._policy.chat, shown=conversation.shown, strip=history == "strip_thoughts",
                window=history.window if isinstance(history, WindowHistory) else 0, room=room,
            )  # fmt: skip
        prompt = conversation.ids.prompt(request)
        asking = self._asking(conversation, prompt, sampling.max_new_tokens)
        prompt, sums_up = asking or prompt, asking is not None
        if len(prompt.token_ids) >= self._policy.context:
            raise ApiError(
                f"This model's maximum context length is {self._policy.context} tokens. The messages have "
                f"{len(prompt.token_ids)} tokens, and the answer needs one at least.",
                code="context_length_exceeded", param="messages",
            )  # fmt: skip
        return _Work(call, conversation, prompt, sampling, sums_up)

    def _asking(self, conversation: Conversation, prompt: Prompt, new_tokens: int) -> Prompt | None:
        """The prompt for a summary, where one is due before the answer (`crl.rollout.history`)."""
        history, ids = self._history, conversation.ids
        due = isinstance(history, SummaryHistory) and len(prompt.token_ids) + new_tokens > history.summarize.at
        if not due or ids is None:
            return None
        asking = ids.asking(prompt, self._answering.summarize(conversation, prompt.request))
        return asking if asking is not None and len(asking.token_ids) + new_tokens <= self._policy.context else None

    def _finish(self, row: int, work: _Work, sampled: Sampled) -> None:
        self._ids[row], ids = [*work.prompt.token_ids, *sampled.token_ids], work.conversation.ids
        assert ids is not None
        if work.summary:
            ids.summarized(work.prompt, sampled)
            self._waiting.appendleft(work.call)
            return
        turn = self._parsed(work, sampled.token_ids)
        ids.answered(work.prompt, sampled, turn)
        answer = self._answer(work, turn, len(sampled.token_ids), sampled.stop_reason)
        self._answering.answered(work.conversation, work.call.request, turn, ids=sum(map(len, ids.sequences)))
        work.call.answer(answer)

    def _show(self) -> None:
        """Show what is known of answers that are streamed."""
        now = time.monotonic()
        for row, work in self._works.items():
            if work.summary or not work.call.request.stream or now < work.next_at:
                continue
            work.next_at = now + SHOWN_SECONDS
            with refusing(work.call):
                written = self._opened.written(row)
                turn = self._certain(work, self._parsed(work, written))
                if turn != work.shown:
                    work.shown = turn
                    work.call.show(self._answer(work, turn, len(written), None))

    def _parsed(self, work: _Work, token_ids: Sequence[int]) -> ParsedTurn:
        """A turn, without what follows a text at which the call wants it to end."""
        turn = self._policy.chat.parsed(token_ids, work.call.request.tools)
        ends = [at for text in work.call.request.stop if (at := turn.content.find(text)) >= 0]
        return replace(turn, content=turn.content[: min(ends)]) if ends else turn

    def _certain(self, work: _Work, turn: ParsedTurn) -> ParsedTurn:
        """What of a turn stays as it is whatever follows. Where it may call tools, its text is known at its end."""
        kept = max(map(len, work.call.request.stop), default=0)
        ends = turn.content.rfind("<", -_LONGEST_TAG) if turn.content else -1
        content = turn.content[: min(len(turn.content) - kept, ends if ends >= 0 else len(turn.content))]
        content = "" if work.call.request.tools else content.rstrip("\ufffd")
        thought = turn.thought if turn.content else turn.thought[:-_LONGEST_TAG]
        before = work.shown
        grows = content.startswith(before.content) and thought.startswith(before.thought)
        return ParsedTurn(content, thought) if grows else before

    def _answer(self, work: _Work, turn: ParsedTurn, count: int, stop_reason: StopReason | None) -> Answer:
        return work.conversation.answer(turn, stop_reason, len(work.prompt.token_ids), count)


def own_model(agent: TrainedAgent, answering: Answering, rows: int | None = None) -> OwnModel:
    """The model of an agent, loaded here. Raises BadInput where a server has it."""
    policy: Any = agent.policy()  # torch comes now, with the environment that it reads once
    from crl.policies.language_model import LanguagePolicy

    if not isinstance(policy, LanguagePolicy):
        raise BadInput(
            f"the {agent.role} of {agent.path} is sampled by a server (engine: {agent.config.engine.kind})",
            expected="a model that transformers samples in this process",
            where="method.roles.actor.engine",
            next_step="crl export it, start a server on the folder (vllm serve FOLDER), and name it with --vllm URL",
        )
    if agent.entries:  # the embedder is loaded before the first call
        agent.retrieve(agent.families[0], "ready")
    rows = rows or min(agent.method.rollout.batch or MOST_ROWS, MOST_ROWS)
    return OwnModel(policy, answering, history=agent.config.history, rows=rows)
