"""A small stand-in of the Hugging Face Hub's API on loopback: models with commits and branches, gates, what was asked,
and what was uploaded.

huggingface_hub reads its settings when it is imported: :func:`asked_here` sets them in this process. In another one
HF_ENDPOINT is the address.
"""

from __future__ import annotations

import base64
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
    uploads: Path | None = None
    """Where commits of uploads are kept; None: nobody may write."""
    private: set[str] = field(default_factory=set)
    """Of the models that were made by an upload, those that only their owner sees."""
    large: dict[str, bytes] = field(default_factory=dict)
    """Large files (LFS) by SHA-256, before a commit names them."""

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

    def take(self, path: str, login: str | None, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """What the hub answers to a POST or PUT: making a repository, asking how to upload, a large file, a commit."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if parts[0] == "large":  # its address is the right to write it
            assert hashlib.sha256(body).hexdigest() == parts[1]
            self.large[parts[1]] = body
            return 200, {}, b"{}"
        if path == "/api/validate-yaml":
            return 200, {}, b'{"errors": [], "warnings": []}'
        if self.uploads is None or login is None:
            return 401, {"X-Error-Message": "Invalid username or password."}, b"{}"
        if parts[:3] == ["api", "repos", "create"]:
            asked = json.loads(body)
            model = f"{asked['organization']}/{asked['name']}"
            if model in self.commits:
                return 409, {}, json.dumps({"url": f"{self.address}/{model}"}).encode()
            self.commits[model], self.branches[model] = {}, {}
            self.private |= {model} if asked.get("private") or asked.get("visibility") == "private" else set()
            return 200, {}, json.dumps({"url": f"{self.address}/{model}"}).encode()
        if parts[-3:] == ["lfs", "objects", "batch"]:
            asked = json.loads(body)["objects"]
            to = [{"upload": {"href": f"{self.address}/large/{each['oid']}"}} for each in asked]
            objects = [{**each, "actions": actions} for each, actions in zip(asked, to, strict=True)]
            return 200, {}, json.dumps({"transfer": "basic", "objects": objects}).encode()
        model, verb = f"{parts[2]}/{parts[3]}", parts[4]
        if verb == "preupload":
            modes = [
                {"path": each["path"], "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular"}
                for each in json.loads(body)["files"]
            ]
            return 200, {}, json.dumps({"files": [{**each, "shouldIgnore": False} for each in modes]}).encode()
        assert verb == "commit", path
        folder = self.uploads / f"{len(self.commits[model])}-{parts[3]}"
        for line in map(json.loads, body.splitlines()):
            if line["key"] in ("file", "lfsFile"):
                file, told = folder / line["value"]["path"], line["value"]
                file.parent.mkdir(parents=True, exist_ok=True)
                large = line["key"] == "lfsFile"
                file.write_bytes(self.large[told["oid"]] if large else base64.b64decode(told["content"]))
        commit = hashlib.sha1(body).hexdigest()
        self.commits[model][commit], self.branches[model]["main"] = folder, commit
        url = f"{self.address}/{model}/commit/{commit}"
        return 200, {}, json.dumps({"success": True, "commitOid": commit, "commitUrl": url}).encode()


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
        ("HF_HUB_DISABLE_XET", True),
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

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = hub.take(self.path, self.headers.get("Authorization"), body)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST

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
