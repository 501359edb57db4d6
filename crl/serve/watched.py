"""Games of a trained agent that somebody watches: its answers as they are sampled, its environment as it replies.

They are played by :func:`crl.rollout.play.play_wave`, as the held-out evaluation plays them, from the same random
stream: on one kind of CPU a held-out game is the recorded one. Nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from crl.bank.segments import text_digest
from crl.config import SamplingConfig
from crl.errors import BadInput
from crl.protocols import Answers, Chat, Environment, FreeText, Policy, Sampled, Session, Start, Step, StopReason
from crl.records import FREE, GUIDED, Task
from crl.rollout.environments import Readable
from crl.rollout.live import EpisodeSlot, Guide
from crl.rollout.play import PlayedEpisode, play_wave
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK, seed_of_task
from crl.rounds.tasks import query_of
from crl.serve.source import Guidance, TrainedAgent


class Watcher(Protocol):
    """Who watches a game."""

    def starts(self, start: Start, guidance: Guidance | None) -> None:
        """A game begins; what guides it."""

    def writes(self, text: str) -> None:
        """A piece of an answer, as it is sampled; pieces are never cut inside a character."""

    def answered(self) -> None:
        """An answer has ended."""

    def steps(self, step: Step) -> None:
        """What came of it."""


def watch(
    agent: TrainedAgent, policy: Policy, environment: Environment, family: str, seed: int, watcher: Watcher, *,
    bank: bool = True,
) -> PlayedEpisode:  # fmt: skip
    """Play one game: with what the bank has for it, or without the bank. Raises BadInput where it cannot start."""
    readable = Readable(environment, agent.method.rollout.max_observation_characters)
    [start] = readable.reset_many([seed])
    if start.error is not None:
        reason = "\n".join(filter(None, [start.error, start.details]))
        raise BadInput(f"the game of seed {seed} does not start: {reason}", where=f"family {family}")
    guidance = agent.retrieve(family, query_of(start)) if bank else None
    condition = WITH_BANK if bank else WITHOUT_BANK
    task = Task(
        episode_id=f"e{agent.round:04d}/{condition}/{family}-s{seed}", round=agent.round, family=family, group=0,
        member=0, environment_seed=seed, stream=GUIDED if guidance else FREE, goal=start.goal,
        first_observation=start.observation, query=query_of(start),
    )  # fmt: skip
    guides = [] if guidance is None else guidance.entries
    slot = EpisodeSlot(task, tuple(Guide(each.entry_id, text_digest(each.text), each.text) for each in guides))
    watcher.starts(start, guidance)
    sampling = agent.sampling(family)
    if isinstance(start.actions, FreeText):  # it has no list of answers
        sampling = sampling.model_copy(update={"constrain": "none"})
    rollout = agent.method.rollout.model_copy(update={"environment_lag": 0})
    [played] = play_wave(
        _Watched(policy, watcher), _Replies(environment, watcher), [slot],
        method=agent.method.model_copy(update={"rollout": rollout}), sampling=sampling,
        weights_digest=agent.weights.weights_digest, stage="evaluate",
        seed_of=lambda episode_id: seed_of_task(agent.method, episode_id),
    )  # fmt: skip
    return played


@dataclass
class Typed:
    """An environment that is a person: each observation is a text of theirs. It ends where `ask` gives None."""

    ask: Callable[[], str | None]
    first: str
    form = FreeText("an answer", whole=True)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """One conversation, which begins with the first text."""
        return [Start("", self.first, self.form)]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """The next text."""
        text = self.ask()
        over = text is None
        reason = StopReason.failure if over else None
        return dict.fromkeys(actions, Step(text or "", self.form, True, "", over, False, 0.0, reason))

    def oracle(self, slot: int) -> str | None:
        """Nobody knows one."""
        return None

    def close(self) -> None:
        """Nothing is held."""


class _Replies:
    """An environment whose replies are watched."""

    def __init__(self, environment: Environment, watcher: Watcher) -> None:
        self._environment, self._watcher = environment, watcher

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return self._environment.reset_many(seeds)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = self._environment.step_many(actions)
        for step in steps.values():
            self._watcher.steps(step)
        return steps

    def oracle(self, slot: int) -> str | None:
        return None

    def close(self) -> None:
        self._environment.close()


class _Watched:
    """A policy whose answers are watched."""

    def __init__(self, policy: Policy, watcher: Watcher) -> None:
        self.chat, self.context = policy.chat, policy.context
        self._policy, self._watcher = policy, watcher

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Any:
        return _Streamed(self._policy.open(prompts, seeds, limit), self.chat, self._watcher)


class _Streamed:
    """A session whose one row is shown while it is sampled, where the session samples id by id; else at its end."""

    def __init__(self, session: Session, chat: Chat, watcher: Watcher) -> None:
        self._session: Any = session
        self._chat, self._watcher, self._row = chat, watcher, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        self._row = next(iter(rows), 0)
        self._session.begin(rows, sampling, answers)

    def advance(self) -> dict[int, Sampled]:
        stream = Stream(self._watcher.writes)
        if not hasattr(self._session, "step"):
            ended: dict[int, Sampled] = self._session.advance()
        else:
            while not (ended := self._session.ended()) and self._session.step():
                # The last id may be the beginning of a character.
                stream.show(self._chat.decode(self._session.written(self._row)).rstrip("\ufffd"))
        for sampled in ended.values():
            stream.show(self._chat.decode(sampled.token_ids), last=True)
            self._watcher.answered()
        return ended


class Stream:
    """A text that grows, as pieces."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._shown = write, ""

    def show(self, text: str, *, last: bool = False) -> None:
        """Write what the text has more than before. Where ids to come change what is known of it (an answer of several
        messages), it waits; the `last` one is written in any case."""
        if text.startswith(self._shown):
            self._write(text[len(self._shown) :])
        elif last:
            self._write(f"\n{text}")
        else:
            return
        self._shown = text
