"""A model behind an OpenAI-compatible endpoint (protocol `LoadedPolicy`): `POST /chat/completions`, one per turn.

For roles that are not trained: log-probabilities are 0 throughout, and nothing divides by them. A row is kept as code
points: a text is the numbers of its characters, and numbers beyond Unicode stand for the beginning of a message and the
end of an answer, so that no text can be taken for one of them. A seed is sent along, unless the engine leaves it out;
whether the same one gives the same answer is the endpoint's affair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from crl.config import RoleConfig, SamplingConfig
from crl.config.engines import ServerConfig
from crl.config.roles import ENDPOINT
from crl.errors import BadInput, PromptTooLong
from crl.paths import quoted
from crl.policies.served import SentWhole
from crl.policies.serving import Client, key_of
from crl.protocols import Answers, Sampled, StopReason, Tool
from crl.text.answers import after_thoughts
from crl.text.unicode import valid_text

_TRIES = 5
_REQUESTS = 64
"""Requests before a busy endpoint counts as gone; the pauses between them are 15 seconds."""
_REACH = 10.0
"""Seconds in which somebody at an endpoint's address answers before work starts."""
_FIRST = 0x110000
"""One beyond the last code point."""
_ROLES = {"system": _FIRST, "user": _FIRST + 1, "assistant": _FIRST + 2}
_NAMES = {number: role for role, number in _ROLES.items()}
_END = _FIRST + 3
"""Ends an answer."""


def check_endpoint(role: str, server: ServerConfig) -> None:
    """Raise BadInput where the endpoint of a role has no address, no key that can be sent, or nobody behind it. The key
    is not sent, and what is answered does not matter."""
    where = f"runtime.servers.{role}"
    _check(f"role {role}", where, server)
    seconds = min(server.answer_seconds, _REACH)
    try:
        httpx.get(f"{str(server.address).rstrip('/')}/models", timeout=seconds)
    except httpx.TransportError as error:
        told = f"did not answer in {seconds:g} seconds" if isinstance(error, httpx.TimeoutException) else str(error)
        raise BadInput(
            f"the endpoint of role {role} cannot be reached: {told or type(error).__name__}",
            expected=f"an answer from {server.address}, whatever it is",
            where=f"{where}.address",
            next_step="start it, or correct the address",
        ) from None


def _check(who: str, where: str, server: ServerConfig) -> None:
    if server.address is None:
        raise BadInput(
            f"{who} has the engine openai and no address",
            expected="the endpoint's URL, such as https://host/v1",
            where=f"{where}.address",
            next_step=f"set it: --set {where}.address=URL",
        )
    if server.key_variable is not None and not key_of(server):
        raise BadInput(
            f"the variable {server.key_variable} is not set, or empty",
            expected="the endpoint's key",
            where=f"{where}.key_variable",
            next_step=f"export {quoted(server.key_variable)}=…",
        )


class EndpointPolicy:
    """The model of a role at its endpoint."""

    def __init__(self, role: RoleConfig, server: ServerConfig, limit: str, leave_out: Collection[str] = ()) -> None:
        # An engine is handed a role without its name, so the message names the model.
        _check(f"the role with the model {role.model}", "runtime.servers.<role>", server)
        assert server.address is not None
        self.chat, self.context = EndpointChat(), role.context
        self.model, self.limit, self.leave_out = role.model.removeprefix(ENDPOINT), limit, leave_out
        self.client = Client(f"the endpoint of {role.model}", server, server.address, tries=_TRIES, requests=_REQUESTS)

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> EndpointSession:
        """Start one row per prompt. Nothing is sent yet."""
        return EndpointSession(self, prompts, seeds)

    def take_weights(self, directory: Path) -> bool:
        """There are none to take."""
        return False

    def close(self) -> None:
        """Close its connections."""
        self.client.close()


class EndpointSession(SentWhole):
    """Rows of messages (protocol `Session`)."""

    def __init__(self, policy: EndpointPolicy, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
        self._policy = policy
        super().__init__(policy.client, prompts, seeds)

    def _turn(self, row: int, sampling: SamplingConfig, answers: Answers | None) -> Callable[[], Sampled]:
        assert answers is None, "refused in the config"
        if self.length(row) >= self._policy.context:
            raise PromptTooLong(
                f"row {row} has {self.length(row)} characters",
                expected=f"fewer than {self._policy.context}, the context of the role",
                where="a running session",
                next_step="raise method.roles.ROLE.context: behind an endpoint it counts characters",
            )
        return functools.partial(self._answer, row, sampling)

    def _answer(self, row: int, sampling: SamplingConfig) -> Sampled:
        request: dict[str, Any] = {
            "model": self._policy.model,
            "messages": [{**each, "content": valid_text(each["content"])} for each in messages_of(self._ids[row])],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": int(self._drawn(row).generate_state(1)[0] >> 1),  # 31 bits: some endpoints take no more
            self._policy.limit: sampling.max_new_tokens,
        }
        sent = {name: value for name, value in request.items() if name not in self._policy.leave_out}
        found = self._client.post("/chat/completions", sent)
        with self._client.reading("an answer that is none", "one choice with a message"):
            [choice] = found["choices"]
            text = str(choice["message"]["content"] or "")
            cut = choice["finish_reason"] == "length"
        ids = [ord(character) for character in text] if cut else EndpointChat().answer(text)
        return Sampled(ids, [0.0] * len(ids), StopReason.length if cut else StopReason.end_of_turn)


class EndpointChat:
    """Implements `crl.protocols.Chat`."""

    template = "the endpoint's"
    opens_thought = False
    takes_tools = False

    def opening(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Tool] = ()) -> list[int]:
        """The messages, and the beginning of the assistant's."""
        written = [index for each in messages for index in (_ROLES[each["role"]], *map(ord, each["content"]))]
        return [*written, _ROLES["assistant"]]

    def reply(self, text: str, *, ended: bool, by: int | None = None, call: str | None = None) -> list[int]:
        """The end of an answer (unless `ended`), the user's text, and the beginning of the next answer."""
        return [*([] if ended else [_END]), _ROLES["user"], *map(ord, text), _ROLES["assistant"]]

    def replied(
        self, token_ids: Sequence[int], *, ended: bool, by: int | None = None, call: str | None = None
    ) -> str | None:
        """The text of a reply."""
        text = self.decode(token_ids)
        return text if self.reply(text, ended=ended) == list(token_ids) else None

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """The text of an answer."""
        return self.decode(token_ids)

    def keeps_thoughts(self, call: str) -> bool:
        """No: tools are described in the prompt."""
        return False

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        """The prompt as it is, and what follows the thoughts."""
        answer = (after_thoughts(self.decode(wrote)) or "").lstrip("\n")
        return list(asked), [*map(ord, answer), *([_END] if _END in wrote else [])]

    def answer(self, text: str, *, call: bool = False) -> list[int]:
        """What an answer of this text is."""
        return [*map(ord, text), _END]

    def calls(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> list[str]:
        """None: tools are described in the prompt."""
        return []

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, without what stands between messages."""
        return "".join(chr(index) for index in token_ids if index < _FIRST)


def messages_of(token_ids: Sequence[int]) -> list[dict[str, str]]:
    """The messages of a row that waits for an answer: the inverse of what :class:`EndpointChat` writes."""
    messages: list[dict[str, str]] = []
    for index in token_ids:
        if index in _NAMES:
            messages.append({"role": _NAMES[index], "content": ""})
        elif index != _END:
            messages[-1]["content"] += chr(index)
    return messages[:-1]
