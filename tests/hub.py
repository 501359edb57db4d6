"""A small stand-in of the Hugging Face Hub's API on loopback: models with commits and branches, gates, what was asked.

huggingface_hub reads its settings when it is imported: :func:`asked_here` sets them in this process. In another one
HF_ENDPOINT is the address.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Models by id; each has commits (directories), branches, and perhaps a gate."""

    commits: dict[str, dict[str, Path]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    """Files that were downloaded, in order."""
    address: str = ""

    @property
    def asked_weights(self) -> list[str]:
        """Files of weights that were downloaded."""
        return [name for name in self.asked if name.endswith(".safetensors")]

    def push(self, model: str, directory: Path, branch: str = "main") -> str:
        """Let a directory be the newest commit of a branch; returns the commit."""
        content = b"".join(each.name.encode() + each.read_bytes() for each in sorted(directory.iterdir()))
        commit = hashlib.sha1(content).hexdigest()
        self.commits.setdefault(model, {})[commit] = directory
        self.branches.setdefault(model, {})[branch] = commit
        return commit

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, verb, revision, *rest = [*(parts[2:] if api else parts), "", "", "", ""]
        model, commits = f"{owner}/{name}", self.commits.get(f"{owner}/{name}")
        if commits is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        commit = self.branches[model].get(revision or "main", revision)
        if commit not in commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = {each.name: each.read_bytes() for each in sorted(commits[commit].iterdir()) if each.is_file()}
        if api and verb == "tree":
            listed = [
                {"type": "file", "path": each, "size": len(files[each]), "oid": _etag(files[each])} for each in files
            ]
            return 200, {}, json.dumps(listed).encode()
        if api:
            siblings = [{"rfilename": each} for each in files]
            return 200, {}, json.dumps({"id": model, "sha": commit, "siblings": siblings}).encode()
        if model in self.gated and login is None:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        content = files.get("/".join(rest).strip("/"))
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        return 200, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": commit}, content


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def asked_here(hub: Hub, home: Path, patched: Any) -> None:
    """Let this process ask this hub, and keep what it downloads in a folder; `patched` is pytest's monkeypatch."""
    from huggingface_hub import constants

    files = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for name, value in (
        ("ENDPOINT", hub.address),
        ("HUGGINGFACE_CO_URL_TEMPLATE", files),
        ("HF_HUB_OFFLINE", False),
        ("HF_HUB_CACHE", str(home)),
    ):
        patched.setattr(constants, name, value)
    patched.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    patched.delenv("HF_TOKEN", raising=False)


@contextmanager
def served() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _say(self, *, body: bool) -> None:
            status, headers, content = hub.answer(self.path, self.headers.get("Authorization"))
            if body and status == 200 and "/resolve/" in self.path:
                hub.asked.append(self.path.rsplit("/", 1)[-1])
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_GET(self) -> None:
            self._say(body=True)

        def do_HEAD(self) -> None:
            self._say(body=False)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
