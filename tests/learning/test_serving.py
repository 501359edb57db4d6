"""`crl serve` and `crl bank serve` as processes, with the clients that people have: what docs/serve.md says, many calls
at once, a kill in the middle, and who is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters
from openai import APIStatusError, OpenAI

from crl.gateway.messages import Answer
from crl.gateway.server import Call, Client, Gateway
from crl.protocols import ParsedTurn, StopReason
from crl.serve.recording import FILE
from tests.docs.test_commands import BLOCK
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal
from tests.tiny_run import NAME, ROOT, command, crl_here, environment

pytestmark = pytest.mark.slow
ASKED: list[Any] = [{"role": "user", "content": "Walk from @ to G.\n{experience}@FG"}]


class Server:
    """`crl serve` on a free port."""

    def __init__(self, run: Path, *more: str | Path, **variables: str) -> None:
        with as_in_a_terminal():
            self.process = subprocess.Popen(
                command("serve", run, "--port", "0", *more), cwd=ROOT, env=environment(run.parent, variables),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"^base_url: (\S+)", line):
                self.url = found[1].replace("0.0.0.0", "127.0.0.1")
                return
        raise AssertionError(f"it did not start: {self.said}{self.process.communicate()[1]}")

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE_SECONDS)

    def ended(self, sent: signal.Signals) -> tuple[int, str, str]:
        """Send a signal: exit code, and what was said."""
        self.process.send_signal(sent)
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(run: Path, *more: str | Path, **variables: str) -> Iterator[Server]:
    made = Server(run, *more, **variables)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_the_page_is_what_happens(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    page = (ROOT / "docs/serve.md").read_text(encoding="utf-8")
    ask, report, compare = (block["body"] for block in BLOCK.finditer(page) if block["kind"] == "python")
    monkeypatch.chdir(tmp_path)
    with serving(finished, "--record", tmp_path / "served", "--free-share", "0.5") as server:
        names: dict[str, Any] = {}
        for _ in range(8):  # of eight conversations some are free, and some are not
            exec((ask + report).replace("http://127.0.0.1:8000/v1", server.url), names)
        exec(compare, names)
        said = capsys.readouterr().out
        assert re.search(r"guided\n.*(True|False) +1\.0", said, re.DOTALL)
        assert len([line for line in lines(tmp_path / "served") if "success" in line]) == 8
        chunks = server.client().chat.completions.create(model="actor/lake", messages=ASKED, stream=True, seed=1)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        again = server.client().chat.completions.create(model="actor/lake", messages=ASKED, seed=1)
        assert text == again.choices[0].message.content, "the same seed gives the same answer"
        code, out, err = server.ended(signal.SIGINT)
    assert (code, out.splitlines()[-1]) == (0, "ended") and "Traceback" not in err
    assert f"{NAME}, round 2: actor, actor/lake" in server.said


NONSENSE = [
    b"", b"{", b"[]", b'{"model": "actor"}', b'{"model": 3, "messages": []}',
    *(json.dumps({"model": "actor", "messages": ASKED, **wrong}).encode() for wrong in (
        {"temperature": "hot"}, {"n": 2}, {"stop": [3]}, {"model": "gpt"}, {"messages": ASKED * 5000},
        {"messages": [{"role": "user", "content": "x" * 100_000}]},
        {"messages": [{"role": "user", "content": "{experience}" * 2}]},
        {"seed": 0.5}, {"logprobs": True}, {"tools": 3},
    )),
]  # fmt: skip


def test_a_hundred_at_once_and_nonsense_get_answers_in_the_api_s_form(finished: Path, tmp_path: Path) -> None:
    with serving(finished) as server:
        process, client = psutil.Process(server.process.pid), server.client()
        client.chat.completions.create(model="actor", messages=ASKED)
        before = process.memory_info().rss

        def call(number: int) -> Any:
            if number % 4 == 3:  # leaves in the middle
                with client.chat.completions.create(
                    model="actor", messages=ASKED, stream=True, max_tokens=200, temperature=3
                ) as stream:
                    return next(iter(stream)).object
            return client.chat.completions.create(model="actor", messages=ASKED, seed=number % 4).choices[0].message

        with ThreadPoolExecutor(100) as threads:
            found = list(threads.map(call, range(100)))
        assert [each for each in found[3::4] if each != "chat.completion.chunk"] == []
        assert all(found[first] == other for first in range(3) for other in found[first::4]), "a seed has one answer"
        for body in NONSENSE:
            answer = httpx.post(f"{server.url}/chat/completions", content=body, timeout=PATIENCE_SECONDS)
            assert answer.status_code in (400, 404) and set(answer.json()["error"]) == {
                "message",
                "type",
                "param",
                "code",
            }
        for _ in range(40):  # none is kept
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.post(
                    f"{server.url}/chat/completions", content=b" " * (17 << 20), timeout=PATIENCE_SECONDS
                )
                assert answer.status_code == 413
        assert process.memory_info().rss - before < 300 << 20
        assert client.chat.completions.create(model="actor", messages=ASKED).choices
        with socket.create_connection(
            ("127.0.0.1", httpx.URL(server.url).port)
        ):  # one that asks nothing holds nobody up
            code, _, err = server.ended(signal.SIGTERM)
    assert (code, "Traceback" in err) == (0, False), err


def test_an_answer_that_came_is_in_the_record_whatever_became_of_the_server(finished: Path, tmp_path: Path) -> None:
    came: list[str] = []
    enough = threading.Event()
    with serving(finished, "--record", tmp_path) as server:

        def talk(number: int) -> None:
            messages, client = [{"role": "user", "content": f"Task {number}"}], server.client()
            with contextlib.suppress(Exception):
                while True:
                    answer = client.chat.completions.create(model="actor", messages=messages)  # type: ignore[arg-type]
                    came.append(answer.id)
                    content = answer.choices[0].message.content or ""
                    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "More."}]
                    if len(messages) > 7:
                        messages = messages[:1]
                    if len(came) > 60:
                        enough.set()

        threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        assert enough.wait(PATIENCE_SECONDS)
        server.process.kill()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    recorded: dict[str, int] = {}
    for line in (tmp_path / FILE).read_text().splitlines():
        with contextlib.suppress(ValueError):  # the last one may be torn
            name = json.loads(line)["conversation_id"]
            recorded[name] = recorded.get(name, 0) + 1
    for each in came:
        name, number = each.removeprefix("chatcmpl-").split("-")
        assert recorded[name] > int(number), each
    with serving(finished, "--record", tmp_path) as again:
        answer = httpx.post(f"{again.url}/feedback", json={"id": came[-1], "success": True}, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200
    assert json.loads((tmp_path / FILE).read_text().splitlines()[-1])["success"] is True


def test_beyond_loopback_a_key_is_made_or_the_given_one_is_asked_for(finished: Path) -> None:
    with serving(finished, "--host", "0.0.0.0") as server:
        (made,) = re.findall(r"^key: (crl-\S{20,})$", server.said, re.MULTILINE)
        assert server.client(made).models.list().data[0].id == "actor"
        with pytest.raises(APIStatusError, match="This key is not"):
            server.client("none").models.list()
    with serving(finished, CRL_KEY="secret") as server:
        assert "secret" not in server.said and "key:" not in server.said
        assert server.client("secret").models.list().data
        with pytest.raises(APIStatusError, match="This key is not"):
            server.client("none").models.list()


def test_in_front_of_a_vllm_server_no_model_is_loaded_here(finished: Path) -> None:
    asked: list[Call] = []

    def submit(call: Call) -> None:
        asked.append(call)
        call.answer(Answer(0, ParsedTurn("down"), StopReason.end_of_turn, 1, 1))

    with Gateway() as gateway:
        there = gateway.serve(Client("", "", submit, ("exported",), served=True))
        with serving(finished, "--vllm", gateway.url(there)) as server:
            answer = server.client().chat.completions.create(model="actor", messages=ASKED)
            maps = Path(f"/proc/{server.process.pid}/maps")
            assert not maps.exists() or "libtorch" not in maps.read_text()
            code, _, err = server.ended(signal.SIGTERM)
    assert answer.choices[0].message.content == "down" and (code, err) == (0, "")
    assert asked[0].request.messages[-1].content.startswith("Walk from @ to G.\nAdvice: ")


def test_an_agent_starts_the_server_of_a_bank_itself(finished: Path) -> None:
    page = (ROOT / "docs/bank_mcp.md").read_text(encoding="utf-8")
    (told,) = (json.loads(block["body"]) for block in BLOCK.finditer(page) if block["kind"] == "json")
    server = told["mcpServers"]["experience-bank"]
    assert server["command"] == "crl" and server["args"][:2] == ["bank", "serve"]
    arguments = ["-m", "crl", *server["args"][:2], str(finished)]
    started = StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ, "PYTHONPATH": str(ROOT)})

    async def talk() -> None:
        async with McpClient(started, read_timeout_seconds=PATIENCE_SECONDS) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"search", "story", "outcomes"}
            found = await client.call_tool("search", {"query": "Walk to the goal."})
            assert found.structured_content is not None and found.structured_content["experiences"]

    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    asyncio.run(talk())
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before, "it only reads"


def test_a_bank_over_http_ends_with_a_signal(finished: Path) -> None:
    with as_in_a_terminal():
        process = subprocess.Popen(
            command("bank", "serve", finished, "--port", "0"), cwd=ROOT, env=environment(finished.parent),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        (address,) = re.findall(r"MCP at (\S+)", process.stdout.readline())

        async def talk() -> None:
            async with McpClient(address) as client:
                assert len((await client.list_tools()).tools) == 3

        asyncio.run(talk())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_is_said_before_a_model_is_loaded(finished: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, said in (
            (("--port", port), f"nothing can listen on '127.0.0.1', port {port}"),
            (("--host", "no-such-host.invalid"), "nothing can listen on 'no-such-host.invalid'"),
            (("--free-share", "0.5"), "has no effect here"), (("--key", "two words\n"), "the key cannot be sent"),
            (("--round", "9"), "round 9"), (("--round", "1", "--best"), "both asked for"),
            (("--vllm", "http://127.0.0.1:1"), "no model is served at"), (("--record", __file__), "that is a file"),
        ):  # fmt: skip
            done = crl_here(finished.parent, "serve", finished, *words, code=2)
            assert said in done.stderr, words
