"""In verifiers' interpreter: what the package itself says of episodes, beside what `play.py` says.

`python own.py SPEC`: JSON with `folder` (of kinds.py), `play` (the path of play.py), `out`, and `episodes`, a list of
[kind, split, row, answers]. A server gives the answers of an episode in their order, as messages of an assistant. Each
episode is played by `play.played` and by the environment's own `generate_sync`; what either asked and found is written
to `out`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ASKED: list[Any] = []
ANSWERS: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        ASKED.append({"messages": body["messages"], "tools": body.get("tools"), "path": self.path})
        message = ANSWERS[len(ASKED) - 1]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        }
        said = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        data = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    request_queue_size = 1024  # connections wait for a busy CPU in place of being reset


def main(spec: dict[str, Any]) -> None:
    module = importlib.util.spec_from_file_location("play", spec["play"])
    assert module is not None and module.loader is not None
    play = importlib.util.module_from_spec(module)
    module.loader.exec_module(play)
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    os.environ["OWN_KEY"] = "x"
    from verifiers.types import ClientConfig  # type: ignore[import-not-found]

    client = ClientConfig(api_key_var="OWN_KEY", api_base_url=url, max_retries=0)
    environments: dict[str, Any] = {}
    found = []
    for kind, split, index, answers in spec["episodes"]:
        if kind not in environments:
            environments[kind] = play.loaded({"id": "kinds", "args": {"kind": kind}, "folder": spec["folder"]})
        environment = environments[kind]
        row = play.rows_of(environment, split)[index]
        if kind == "gym":
            right = environment.rg_dataset[int(row["answer"])]["answer"]
            answers = [{**each, "content": each["content"].replace("RIGHT", right)} for each in answers]
        one: dict[str, Any] = {}
        for name in ("ours", "own"):
            ANSWERS[:], ASKED[:] = answers, []
            if name == "ours":
                outcome, error = play.played(environment, row, url, "x")
                one[name] = {**outcome, "error": error}
            else:
                (output,) = environment.generate_sync(
                    [row], client=client, model="actor", on_start=lambda *_: None, on_progress=lambda *_: None
                )["outputs"]
                one[name] = {"reward": output["reward"], "parts": output["metrics"], "stop": output["stop_condition"]}
            one[f"{name}_asked"] = list(ASKED)
        found.append(one)
    Path(spec["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
