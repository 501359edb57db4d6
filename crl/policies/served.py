"""Rows of one batch that a server samples (protocol `Session`); of a vLLM server: token ids in, token ids out.

A row is sent whole with every turn; the server's prefix cache, salted with the digest of the weights, keeps what it has
read. Each request has a seed of its own, from the row's seed and the number of draws before it, so what is drawn does
not depend on other rows. Log-probabilities are those of the temperature-scaled distribution over the tokens of the
vocabulary: without top-k and top-p (refused in the config), and with a bias against ids that are no tokens, vLLM's
processed log-probabilities are that. Where a server draws such an id in spite of the bias, the turn ends before it with
an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from crl.config import SamplingConfig
from crl.errors import EngineDied, PromptTooLong
from crl.policies.serving import Client
from crl.policies.turn import OwnPace, StopStrings, Turn
from crl.protocols import Answers, Sampled

GENERATE = "/inference/v1/generate"
NO_TOKEN = "no_token"
"""Reason code of a turn in which a server drew an id that is no token."""
_NEVER = -1e4
"""A bias that no logit makes up for, at any temperature; minus infinity is no JSON."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that a server holds: its name there, and the version of the weights below it."""

    name: str
    below: str


class SentWhole(OwnPace):
    """Rows that are kept here and sent whole with every turn. Rows are named by their index at opening.

    Turns end in the order in which the server answers: while the environment of one row steps, others are sampled.
    """

    def __init__(
        self,
        client: Client,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        failed: Callable[[EngineDied], EngineDied] = lambda error: error,
    ) -> None:
        """`failed`: told of an answer that did not come or cannot be; the error that is raised in its place."""
        self._client, self._failed = client, failed
        self._ids = {row: list(prompt) for row, prompt in enumerate(prompts)}
        self._streams = [np.random.SeedSequence(seed) for seed in seeds]
        self._draws = [0] * len(seeds)
        self._begun: dict[Future[Sampled], int] = {}

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Send a turn of each row given, all at once; of a row that has `answers` one of these.

        Raises PromptTooLong where a row has no room for an answer; nothing is sent then.
        """
        turns = {row: self._turn(row, sampling, (answers or {}).get(row)) for row in rows}
        self._begun |= {self._client.begin(turn): row for row, turn in turns.items()}

    def advance(self) -> dict[int, Sampled]:
        """Wait until a turn ends: the turns that have, by row. Empty where none is under way.

        Raises as :meth:`advance_beside`.
        """
        return self.advance_beside(())

    def advance_beside(self, others: Collection[Future[Any]]) -> dict[int, Sampled]:
        """As :meth:`advance`; also returns when one of `others` is done, then perhaps without a turn.

        Raises EngineDied where the server is gone, hangs, or gives no answer; BadInput where it refuses. Then no other
        turn is under way either.
        """
        found = {}
        try:
            ended, _ = wait([*self._begun, *others], return_when=FIRST_COMPLETED)
            for future in sorted(ended & self._begun.keys(), key=self._begun.__getitem__):
                found[self._begun.pop(future)] = future.result()
        except BaseException as error:
            self.close()
            if isinstance(error, EngineDied):
                raise self._failed(error) from None
            raise
        for row, sampled in found.items():
            self._ids[row] += sampled.token_ids
        return found

    def close(self) -> None:
        """Give up what is under way: returns when the server is asked nothing any more for these rows."""
        self._client.give_up(self._begun)
        self._begun.clear()

    def _turn(self, row: int, sampling: SamplingConfig, answers: Answers | None) -> Callable[[], Sampled]:
        """What samples one turn, in a thread of the client."""
        raise NotImplementedError("a session says how a turn is sampled")

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample to the rows given."""
        for row, piece in pieces.items():
            self._ids[row] += piece

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        """Give a row other ids. What both begin with is in the server's prefix cache."""
        self._ids[row] = list(token_ids)
        if seed is not None:
            self._streams[row], self._draws[row] = np.random.SeedSequence(seed), 0

    def _drawn(self, row: int) -> np.random.SeedSequence:
        """What the next draw of a row follows from."""
        # spawn_key as SeedSequence.spawn sets it, without the state that spawn keeps: a retry draws the same again.
        stream = np.random.SeedSequence(self._streams[row].entropy, spawn_key=(self._draws[row],))
        self._draws[row] += 1
        return stream

    def drop(self, rows: Sequence[int]) -> None:
        """Forget rows that are finished; they may not be used again."""
        for row in rows:
            del self._ids[row]

    def length(self, row: int) -> int:
        """Tokens of a row so far (behind an endpoint: characters)."""
        return len(self._ids[row])


class ServedSession(SentWhole):
    """One batch of rows. Rows are named by their index at opening."""

    def __init__(
        self,
        client: Client,
        weights: str,
        end_ids: frozenset[int],
        context: int,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        failed: Callable[[EngineDied], EngineDied] = lambda error: error,
        stops: Callable[[Sequence[str]], StopStrings] | None = None,
        absent: Sequence[int] = (),
        adapter: Adapter | None = None,
    ) -> None:
        """
        Args:
            client: the connection to the server.
            weights: digest of the weights that must answer.
            end_ids: ids that end a turn.
            context: longest row in tokens.
            prompts: ids of each row's prompt, at least one.
            seeds: seed of each row, from which those of its requests follow.
            failed: told of an answer that did not come or cannot be; the error that is raised in its place.
            stops: what finds stop strings (`ChatFormat.stops`).
            absent: ids that are no tokens and must not be drawn (:mod:`crl.config.vocabulary`).
            adapter: the one that must answer; None: the server's own weights.

        Raises:
            PromptTooLong: a prompt leaves no room for a token.
        """
        self._weights, self._end_ids, self._context, self._stops = weights, end_ids, context, stops
        self._version, self._named = weights, dict[str, str]()
        if adapter is not None:
            self._version, self._named = adapter.below, {"model": adapter.name}
        self._absent = frozenset(absent)
        self._bias = {"logit_bias": {str(index): _NEVER for index in absent}} if absent else {}
        super().__init__(client, prompts, seeds, failed)
        for row in self._ids:
            self._room(row, "the batch")

    def _turn(self, row: int, sampling: SamplingConfig, answers: Answers | None) -> Callable[[], Sampled]:
        room = min(sampling.max_new_tokens, self._room(row, "a running session"))
        if answers is None:
            stop = None if self._stops is None else self._stops(sampling.stop_strings)
            return functools.partial(self._free, row, Turn(room, None, stop, renormalized=sampling.cuts), sampling)
        return functools.partial(self._among, row, Turn(room, answers, renormalized=sampling.cuts), sampling)

    def _room(self, row: int, where: str) -> int:
        room = self._context - len(self._ids[row])
        if room < 1:
            raise PromptTooLong(
                f"Row {row} has {len(self._ids[row])} tokens and no room to answer.",
                expected=f"fewer than {self._context}, the context of the role",
                where=where,
                next_step="shorten the prompt, or raise method.roles.ROLE.context",
            )
        return room

    def _free(self, row: int, turn: Turn, sampling: SamplingConfig) -> Sampled:
        """One request. The server looks for no text: what it samples behind a stop string is left out."""
        ids, logprobs = self._request(row, self._ids[row], sampling, max_tokens=turn.room, **self._bias)
        for index, logprob in zip(ids, logprobs, strict=True):
            if index in self._absent:
                return turn.broken(NO_TOKEN)
            turn.draw(index, logprob, self._end_ids)
            if turn.stop_reason is not None:
                return turn.sampled()
        raise EngineDied(
            f"{self._client.name} ended a turn after {len(ids)} of {turn.room} tokens for no reason",
            where=self._client.address,
        )

    def _among(self, row: int, turn: Turn, sampling: SamplingConfig) -> Sampled:
        """One request per id that leaves a choice, restricted to its choices."""
        read = [*self._ids[row], *turn.follow()]
        while turn.stop_reason is None:
            allowed = {"allowed_token_ids": turn.options}
            [index], [logprob] = self._request(row, read, sampling, max_tokens=1, **allowed)
            if index not in turn.options:
                raise EngineDied(
                    f"{self._client.name} drew the id {index}, which it was not allowed",
                    expected=f"one of {turn.options}",
                    where=self._client.address,
                )
            read += turn.draw(index, logprob, self._end_ids)
        return turn.sampled()

    def _request(
        self, row: int, read: Sequence[int], sampling: SamplingConfig, **more: Any
    ) -> tuple[list[int], list[float]]:
        """Ids and their log-probabilities, from one request; with a cut, of what is left."""
        cut = {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        cut |= {name: value for name in ("top_k", "min_p") if (value := getattr(sampling, name)) > 0}
        found = self._client.post(
            GENERATE,
            {
                **self._named,
                "token_ids": list(read),
                "cache_salt": self._weights,
                "sampling_params": {
                    "temperature": sampling.temperature,
                    **cut,
                    "seed": int(self._drawn(row).generate_state(1, np.uint64)[0] >> 1),  # the server takes 63 bits
                    "logprobs": 0,
                    "stop_token_ids": sorted(self._end_ids),
                    # Ids that end a turn are those above, whatever the checkpoint's files name.
                    "ignore_eos": True,
                    "detokenize": False,
                    **more,
                },
            },
        )
        return self._answer(found)

    def _answer(self, found: Any) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities of an answer, if it is one and of these weights."""
        with self._client.reading("an answer that is none", "token ids, and a log-probability for each"):
            [choice] = found["choices"]
            ids = [int(index) for index in choice["token_ids"]]
            content = choice["logprobs"]["content"]
            logprobs = [float(each["logprob"]) for each in content]
            versions = {str(span["version"]) for span in choice["weight_versions"] or []}
            # What a server calls its own weights is its affair.
            named = {"model": found["model"]} if self._named else {}
        if not ids or ids != [each["token_id"] for each in content]:
            raise EngineDied(
                f"{self._client.name} answered with {len(ids)} ids and log-probabilities of others",
                where=self._client.address,
            )
        if (versions, named) != ({self._version}, self._named):
            raise EngineDied(
                f"{self._client.name} answered with the weights "
                f"{', '.join([*sorted(versions), *named.values()]) or 'of no version'}",
                expected=", ".join([self._version, *self._named.values()]),
                where=self._client.address,
            )
        return ids, logprobs
