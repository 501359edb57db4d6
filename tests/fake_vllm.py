"""A server that speaks vLLM's protocol as far as it is used here, and an OpenAI endpoint: in a thread, over a socket.

What it draws follows from the request alone. Faults are planted by replacing what it answers. Run as a program, it
stands in for vLLM's own (`python -m vllm.entrypoints.openai.api_server`), on a Unix socket.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from crl.run.guardian import SHARED_MEMORY

Answer = tuple[int, Any]


def _alike(ids: list[int]) -> dict[int, float | None]:
    return {1: -1.0}


class FakeVllm:
    """Its state, and every request that it was sent, as (path, body, headers)."""

    def __init__(self) -> None:
        self.version = "default"
        self.weights: str | None = None
        """The directory that it was started on, or told to load."""
        self.adapters: dict[str, str] = {}
        """Their directories, by the names that they were loaded under."""
        self.files: list[str] = []
        """Those that weights came in."""
        self.mistaken = ""
        """The directory that it reads in place of every adapter's."""
        self.asleep = False
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.longest = 4096
        self.paused = False
        """Whether it samples nothing; a true one lets requests wait."""
        self.logprobs_mode = "processed_logprobs"
        self.scores: Callable[[list[int]], dict[int, float | None]] = _alike
        """Log-probabilities that it tells of the likeliest ids after a prompt."""
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
            if body.get("model", "model") not in ("model", *self.adapters):
                return 404, {"error": f"The model {body['model']} does not exist."}
            adapter = None if body.get("model") == "model" else body.get("model")
            return 200, self._generated(body["token_ids"], body["sampling_params"], adapter)
        if plain == "/collective_rpc":
            assert self.paused, "a request would break the engine while its weights change"
            self.rpc(body["method"], **body["kwargs"])
        elif plain == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters or not Path(body["lora_path"]).is_dir():
                return 400, {"error": f"{body} cannot be loaded"}
            self.adapters[body["lora_name"]] = self.mistaken or body["lora_path"]
        elif plain == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        elif plain in ("/sleep", "/wake_up"):
            self.asleep = plain == "/sleep"
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

    def rpc(self, method: str, directory: str = "", weights_path: str = "", file: str = "") -> None:
        """What its worker is asked for."""
        if method in ("read_weights", "reload_weights"):
            self.weights = directory or weights_path
        elif method == "begin_files":
            self.files = []
        elif method == "take_file":
            assert Path(file).is_file()
            self.files.append(file)
        else:
            assert method == "end_files"

    def score(self, ids: list[int], adapter: str | None) -> dict[int, float | None]:
        """Log-probabilities that it tells of the likeliest ids after a prompt."""
        return self.scores(ids)

    def _generated(self, ids: list[int], sampling: dict[str, Any], adapter: str | None = None) -> Any:
        random = np.random.default_rng([sampling.get("seed", 0), *ids])
        drawn: list[int] = []
        while len(drawn) < sampling["max_tokens"] and not set(drawn) & set(sampling.get("stop_token_ids", [])):
            drawn.append(int(random.choice(sampling.get("allowed_token_ids", np.arange(2, 40)))))
        # Nothing else could be drawn: only where the restriction is part of what is reported is that certain.
        certain = self.logprobs_mode == "processed_logprobs" and len(sampling.get("allowed_token_ids", ())) == 1
        content = [{"token_id": index, "logprob": 0.0 if certain else -index / 10} for index in drawn]
        if sampling.get("logprobs"):
            scores = self.score(ids, adapter)
            content[0]["top_logprobs"] = [{"token_id": index, "logprob": value} for index, value in scores.items()]
        return {
            "model": adapter or "model",
            "choices": [
                {
                    "token_ids": drawn,
                    "logprobs": {"content": content},
                    "weight_versions": [{"version": self.version, "start": 0, "end": len(drawn)}],
                }
            ],
        }


class Honest(FakeVllm):
    """Scores with the weights that it was given, by transformers, from the files as they were then.

    `keeps` are tensors that stay as they are whatever it is given: an old head, a layer that was not read.
    """

    def __init__(self, base: Path | None = None) -> None:
        super().__init__()
        self.keeps: set[str] = set()
        self._base, self._model = base, None
        self._adapted: dict[str, Any] = {}
        self._working = threading.Lock()
        if base is not None:
            self.weights = str(base)
            self.rpc("read_weights", directory=str(base))

    def rpc(self, method: str, directory: str = "", weights_path: str = "", file: str = "") -> None:
        super().rpc(method, directory, weights_path, file)
        from safetensors.torch import load_file

        if method in ("read_weights", "reload_weights"):
            self._model = self._model or _untied(Path(directory or weights_path))
            for found in Path(directory or weights_path).glob("*.safetensors"):
                self._take(load_file(found))
        elif method == "take_file":
            self._take(load_file(file))

    def _take(self, tensors: dict[str, Any]) -> None:
        own = dict(self._model.named_parameters())
        if "lm_head.weight" not in tensors and (embeddings := tensors.get("model.embed_tokens.weight")) is not None:
            tensors = {**tensors, "lm_head.weight": embeddings}
        for name in tensors.keys() - self.keeps:
            own[name].data.copy_(tensors[name])

    def score(self, ids: list[int], adapter: str | None) -> dict[int, float | None]:
        import torch

        if self.scores is not _alike:
            return self.scores(ids)
        with self._working, torch.inference_mode():
            model = self._model if adapter is None else self._with(self.adapters[adapter])
            found = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], -1).topk(20)
        return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))

    def _with(self, directory: str) -> Any:
        from crl.policies.language_model import load_model

        if directory not in self._adapted:
            assert self._base is not None
            adapted = load_model(self._base, Path(directory), dtype=self._model.dtype)
            own = dict(self._model.named_parameters())
            for name, parameter in adapted.named_parameters():
                if name in self.keeps:
                    parameter.data.copy_(own[name])
            self._adapted[directory] = adapted.eval()
        return self._adapted[directory]


def _untied(directory: Path) -> Any:
    import torch

    from crl.policies.language_model import load_model, untie

    model = load_model(directory, None, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # the file may change
    untie(model)
    return model


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # a queue of 5 resets some of 64 connections, where this process waits for the CPU


@contextmanager
def serving(fake: FakeVllm | None = None) -> Iterator[FakeVllm]:
    """Serve on a port of this machine; its `address` says which."""
    state = fake or FakeVllm()
    server = _Server(("127.0.0.1", 0), _handler(state))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def _handler(state: FakeVllm) -> type[BaseHTTPRequestHandler]:
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

        def address_string(self) -> str:
            return ""  # of a Unix socket there is none

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


def left_in_shared_memory() -> list[str]:
    """Folders there of this project's processes that have ended."""
    folders = [each.name for each in SHARED_MEMORY.glob("crl-engine-*")]
    return [name for name in folders if not psutil.pid_exists(int(name.split("-")[3]))]


def interpreter(folder: Path, log: Path) -> Path:
    """An interpreter that has this server in place of vLLM, for `runtime.servers` and CRL_VLLM_PYTHON; every start and
    every way of taking weights is a line of the log."""
    path = folder / "python"
    words = shlex.join([sys.executable, "-P", __file__, str(log)])
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(Path(__file__).parents[1]))} exec {words} "$@"\n')
    path.chmod(0o755)
    return path


class _Logged(Honest):
    def __init__(self, base: Path, log: Path) -> None:
        self._log = log
        super().__init__(base)

    def answer(self, path: str, body: Any) -> Answer:
        plain = path.partition("?")[0]
        what = body["method"] if plain == "/collective_rpc" else plain.rpartition("/")[2]
        if plain not in ("/inference/v1/generate", "/health"):
            step(self._log, what)
        return super().answer(path, body)


def step(log: Path, what: str) -> None:
    """Add a line to a log, and end whom the first line of the file `kills` beside it names for this step."""
    with log.open("a") as stream:
        stream.write(f"{os.getpid()} {what}\n")
    kills = log.with_name("kills")
    first, _, rest = kills.read_text().partition("\n") if kills.exists() else ("", "", "")
    if first.split()[:1] == what.split()[:1]:
        kills.write_text(rest)
        os.kill(os.getpid() if first.endswith("server") else os.getppid(), signal.SIGKILL)


def main(log: Path, *words: str) -> None:
    """As vLLM's API server, with the options of its command line."""
    if words[0] == "-c":
        return
    options = dict(itertools.pairwise(words))
    step(log, f"start {options['--model']}")

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        request_queue_size = 1024

    Server(options["--uds"], _handler(_Logged(Path(options["--model"]), log))).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
