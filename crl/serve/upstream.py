"""A served model behind a vLLM server: experiences are put into the messages here, and all else is the server's.

Calls are passed on at once, each in a thread, and streams piece by piece. The server renders the chats, with the
template that the export brought.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from typing import Any

import httpx

from crl.errors import BadInput
from crl.gateway.conversations import with_text
from crl.gateway.messages import Answer, ApiError, as_messages
from crl.gateway.server import Call
from crl.policies.tool_turns import schema_of
from crl.protocols import ParsedTurn, StopReason
from crl.serve.answering import Answering, Conversation, refusing
from crl.text.calls import call_of

KEY = "VLLM_API_KEY"
"""The variable with the server's key, if it has one."""
_SECONDS = httpx.Timeout(600.0, connect=10.0)
_SHOWN = 500
_AT_ONCE = 256
"""Calls that are passed on at one time."""


class Upstream:
    """The server, and the calls that it answers."""

    def __init__(self, address: str, answering: Answering) -> None:
        """Raises BadInput where no such server answers."""
        self._address, self._answering, self._lock = address.rstrip("/"), answering, Lock()
        self._over = Event()
        if not self._address.endswith("/v1"):
            self._address += "/v1"
        key = os.environ.get(KEY, "").strip()
        limits = httpx.Limits(max_connections=_AT_ONCE, keepalive_expiry=1.0)  # vLLM closes idle ones after five
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(limits=limits, headers=headers, timeout=_SECONDS)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vllm")
        try:
            found = self._http.get(f"{self._address}/models").raise_for_status().json()
            self.model = str(found["data"][0]["id"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise BadInput(
                f"no model is served at {self._address}: {type(error).__name__}: {error}",
                expected="a vLLM server, such as http://127.0.0.1:8001",
                where="--vllm",
                next_step=f"start it (vllm serve FOLDER), or correct the address; its key is read from ${KEY}",
            ) from None

    def submit(self, call: Call) -> None:
        """Take a call."""
        self._threads.submit(self._answer, call)

    def run(self) -> None:
        """Return after :meth:`stop`; until then calls are answered."""
        self._over.wait()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def stop(self) -> None:
        """Have :meth:`run` return."""
        self._over.set()

    def _answer(self, call: Call) -> None:
        with refusing(call):
            if call.gone:
                return
            request = call.request
            with self._lock:
                sampling, conversation = self._answering.sampling(request), self._answering.conversation(request)
            body = {
                "model": self.model,
                "messages": as_messages(with_text(request.messages, conversation.shown)),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                **{name: cut for name in ("top_k", "min_p") if (cut := getattr(sampling, name))},
                "max_tokens": sampling.max_new_tokens,
                **({"stop": sampling.stop_strings} if sampling.stop_strings else {}),
                **({"seed": request.settings.seed} if request.settings.seed is not None else {}),
                **({"tools": [schema_of(tool) for tool in request.tools]} if request.tools else {}),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            answer = self._read(call, conversation, body)
            if answer is None:
                return
            with self._lock:
                self._answering.answered(conversation, request, answer.parsed)
            call.answer(answer)

    def _read(self, call: Call, conversation: Conversation, body: Mapping[str, Any]) -> Answer | None:
        """The whole answer; None: its client is gone. Raises ApiError where the server refuses, or is not there."""
        so_far = _SoFar()
        try:
            with self._http.stream("POST", f"{self._address}/chat/completions", json=body) as response:
                if not response.is_success:
                    raise _refusal(response)
                for line in response.iter_lines():
                    if call.gone:
                        return None
                    if not line.startswith("data: {"):
                        continue
                    so_far.take(json.loads(line.removeprefix("data: ")))
                    if call.request.stream:
                        call.show(so_far.answer(conversation, None))
            return so_far.answer(conversation, so_far.stop_reason())
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            told = f"The vLLM server gave no answer: {type(error).__name__}: {error}"
            raise ApiError(told[:_SHOWN], code="upstream", status=502) from None


class _SoFar:
    """What is known of an answer."""

    def __init__(self) -> None:
        self._content, self._thought, self._calls = "", "", dict[int, dict[str, str]]()
        self._reason: str | None = None
        self._read = self._wrote = 0

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk of its stream. Raises what an unknown form raises."""
        if "error" in chunk:
            raise ValueError(str(chunk["error"]))
        if usage := chunk.get("usage"):
            self._read, self._wrote = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self._content += delta.get("content") or ""
            self._thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for piece in delta.get("tool_calls") or ():
                called = self._calls.setdefault(int(piece["index"]), {"name": "", "arguments": ""})
                for name in called:
                    called[name] += piece["function"].get(name) or ""
            self._reason = choice.get("finish_reason") or self._reason

    def stop_reason(self) -> StopReason:
        """Why it ended. Raises ValueError where the stream was cut off."""
        if self._reason is None:
            raise ValueError("its stream was cut off")
        return StopReason.length if self._reason == "length" else StopReason.end_of_turn

    def answer(self, conversation: Conversation, stop_reason: StopReason | None) -> Answer:
        """The answer, with its calls where it has ended. Raises ValueError for a call whose arguments are no JSON."""
        calls = [call for each in self._calls.values() if stop_reason and (call := call_of(each)) is not None]
        turn = ParsedTurn(self._content, self._thought, tuple(calls))
        return conversation.answer(turn, stop_reason, self._read, self._wrote)


def _refusal(response: httpx.Response) -> ApiError:
    """A refusal as the server worded it."""
    text = response.read().decode(errors="replace")
    with suppress(ValueError, LookupError, TypeError):
        text = json.loads(text)["error"]["message"]
    status = response.status_code if 400 <= response.status_code < 500 and response.status_code != 401 else 502
    return ApiError(f"The vLLM server refused: {text}"[:_SHOWN], code="upstream", status=status)
