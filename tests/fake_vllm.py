"""A server that speaks vLLM's protocol as far as it is used here, and an OpenAI endpoint: in a thread, over a socket.

What it draws follows from the request alone. Faults are planted by replacing what it answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Answer = tuple[int, Any]


class FakeVllm:
    """Its state, and every request that it was sent, as (path, body, headers)."""

    def __init__(self) -> None:
        self.version = "default"
        self.weights: str | None = None
        """The directory that it was told to load."""
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.longest = 4096
        self.paused = False
        """Whether it samples nothing; a true one lets requests wait."""
        self.logprobs_mode = "processed_logprobs"
        self.scores: Callable[[list[int]], list[float]] = lambda ids: [-1.0] * len(ids)
        """Log-probabilities that it gives a prompt."""
        self.faults: dict[str, Callable[[Any], Answer | None]] = {}
        """By path, what is answered in place of the truth; None: the truth."""
        self.address = ""

    def asked(self, path: str) -> list[Any]:
        """Bodies of the requests of a path."""
        return [body for found, body, _ in self.requests if found == path]

    def answer(self, path: str, body: Any) -> Answer:
        fault = self.faults.get(path)
        planted = None if fault is None else fault(body)
        if planted is not None:
            return planted
        plain = path.partition("?")[0]
        if plain == "/inference/v1/generate":
            if self.paused:
                return 504, {"error": "waited too long"}
            return 200, self._generated(body["token_ids"], body["sampling_params"])
        if plain == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.weights = body["kwargs"]["weights_path"]
        elif plain == "/update_weight_version":
            self.version = body["new_version"]
        elif plain == "/v1/models":
            return 200, {"data": [{"id": "model", "max_model_len": self.longest}]}
        elif plain == "/v1/chat/completions":
            said = f"{body['model']} heard: {body['messages'][-1]['content']}"
            return 200, {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
        elif plain in ("/pause", "/resume"):
            self.paused = plain == "/pause"
        elif plain == "/is_paused":
            return 200, {"is_paused": self.paused}
        elif plain not in ("/health", "/reset_prefix_cache", "/weight_info"):
            return 404, {"detail": "Not Found"}
        return 200, {}

    def _generated(self, ids: list[int], sampling: dict[str, Any]) -> Any:
        random = np.random.default_rng([sampling.get("seed", 0), *ids])
        drawn: list[int] = []
        while len(drawn) < sampling["max_tokens"] and not set(drawn) & set(sampling.get("stop_token_ids", [])):
            drawn.append(int(random.choice(sampling.get("allowed_token_ids", np.arange(2, 40)))))
        # Nothing else could be drawn: only where the restriction is part of what is reported is that certain.
        certain = self.logprobs_mode == "processed_logprobs" and len(sampling.get("allowed_token_ids", ())) == 1
        content = [{"token_id": index, "logprob": 0.0 if certain else -index / 10} for index in drawn]
        scores = self.scores(ids) if "prompt_logprobs" in sampling else []
        return {
            "choices": [
                {
                    "token_ids": drawn,
                    "logprobs": {"content": content},
                    "weight_versions": [{"version": self.version, "start": 0, "end": len(drawn)}],
                }
            ],
            "prompt_logprobs": [
                None if place == 0 else {str(index): {"logprob": score}}
                for place, (index, score) in enumerate(zip(ids, scores, strict=False))
            ],
        }


@contextmanager
def serving(fake: FakeVllm | None = None) -> Iterator[FakeVllm]:
    """Serve on a port of this machine; its `address` says which."""
    state = fake or FakeVllm()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.reply(json.loads(content or b"null"))

        def reply(self, body: Any) -> None:
            state.requests.append((self.path, body, dict(self.headers)))
            code, found = state.answer(self.path, body)
            content = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
