"""A bank over MCP, by the protocol's own client: the tools, that they only read, and what they say is data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from mcp.client.client import Client

from crl.errors import BadInput
from crl.policies.embedders import LexicalEmbedder, load_embedder
from crl.report.bank import entries_after
from crl.report.why import why
from crl.run.imports import EMBEDDING
from crl.serve import bank_tools
from crl.serve.bank_tools import DATA, BankTools, bank_server, embedder_of, run_http
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import Gathered, gather
from tests.processes import PATIENCE_SECONDS
from tests.unit.recipes.played import Played
from tests.unit.serve import agents
from tests.unit.serve.agents import ROUND


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return agents.played(tmp_path_factory.mktemp("played"), "diversified")


@pytest.fixture(scope="module")
def bank(played: Played) -> Gathered:
    return gather(played.run.path, ROUND)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))


def tools_of(bank: Gathered) -> BankTools:
    return BankTools(bank, lambda: load_embedder("lexical"))


def test_the_official_client_finds_reads_and_asks(bank: Gathered, played: Played) -> None:
    async def talk() -> None:
        async with Client(bank_server(tools_of(bank))) as client:
            assert DATA in (client.instructions or "")
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == ["search", "story", "outcomes"]
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
            found = await client.call_tool("search", {"query": "Reach the goal.", "family": "lake", "number": 3})
            content = found.structured_content
            assert not found.is_error and content is not None and content["about"] == DATA
            assert json.loads(found.content[0].text) == content  # type: ignore[union-attr]
            best = content["experiences"]
            assert 0 < len(best) <= 3 and {each["family"] for each in best} == {"lake"}
            similarities = [each["similarity"] for each in best]
            assert similarities == sorted(similarities, reverse=True)
            for shown in entries_after(played.run.path):
                told = (await client.call_tool("story", {"entry_id": shown.entry_id})).structured_content
                story = why(played.run.path, shown.entry_id)
                assert told is not None and told["experience"] == shown.text and told["about"] == DATA
                assert [event["kind"] for event in told["events"]] == [event.kind for event in story.events]
                result = (await client.call_tool("outcomes", {"entry_id": shown.entry_id})).structured_content
                assert result is not None and result["episodes"] == len(story.uses)
                assert result["won"] == sum(use.success for use in story.uses)

    run(talk())


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search", {"query": " "}, "the query is empty"), ("search", {"query": "x" * 20_001}, "too long"),
        ("search", {"query": "x", "family": "sea"}, "no task family 'sea'"),
        ("search", {"query": "x", "number": 0}, "number"), ("search", {"query": "x", "number": 10**9}, "number"),
        ("search", {}, "query"), ("search", {"query": ["x"]}, "query"),
        ("story", {"entry_id": "x-none"}, "no experience 'x-none'"), ("outcomes", {"entry_id": 3}, "entry_id"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_a_tool_s_error(
    bank: Gathered, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async def ask() -> Any:
        async with Client(bank_server(tools_of(bank))) as client:
            return await client.call_tool(tool, arguments)

    answer = run(ask())
    assert answer.is_error and said in answer.content[0].text and "Traceback" not in answer.content[0].text


def test_an_exported_bank_says_the_same_as_its_run(bank: Gathered, tmp_path: Path, unvalidated: None) -> None:
    write_folder(bank, tmp_path / "bank", "parquet")
    one, two = tools_of(bank), tools_of(read_folder(tmp_path / "bank"))
    assert one.about == two.about and DATA in one.about and "lake, pond" in one.about
    found = one.search("ice", number=50)
    assert found == two.search("ice", number=50) and len(found["experiences"]) > 2
    for each in found["experiences"]:
        assert one.story(each["entry_id"]) == two.story(each["entry_id"])
        assert one.outcomes(each["entry_id"]) == two.outcomes(each["entry_id"])


def test_what_is_said_is_bounded(bank: Gathered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_tools, "_LONGEST", 5)
    monkeypatch.setattr(bank_tools, "MOST_USES", 1)
    tools = tools_of(bank)
    for each in tools.search("ice")["experiences"]:
        assert len(each["experience"]) <= 6
        assert len(tools.outcomes(each["entry_id"])["newest"]) <= 1


def test_a_bank_of_another_embedder_or_without_vectors_is_not_searched(bank: Gathered, tmp_path: Path) -> None:
    assert isinstance(embedder_of(bank), LexicalEmbedder)
    other = Gathered(bank.tables, {**bank.provenance, "embedder": {**bank.provenance["embedder"], "digest": "0" * 64}})
    with pytest.raises(BadInput, match="is another one"):
        embedder_of(other)
    bare = Gathered({**bank.tables, "entries": bank.tables["entries"].drop_columns([EMBEDDING])}, bank.provenance)
    with pytest.raises(BadInput, match="no vectors"):
        tools_of(bare)
    empty = {name: table.slice(0, 0) for name, table in bare.tables.items()}
    assert tools_of(Gathered(empty, bank.provenance)).search("ice")["experiences"] == []


def test_without_the_package_the_command_says_what_to_install(bank: Gathered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(BadInput, match="the package mcp is not installed") as refused:
        bank_server(tools_of(bank))
    assert ".[mcp]" in str(refused.value)


def test_over_http_the_client_is_answered_and_pages_are_not(bank: Gathered, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[uvicorn.Server] = []
    start = uvicorn.Server.run

    def kept(self: uvicorn.Server, sockets: Any = None) -> None:
        servers.append(self)
        monkeypatch.setattr(self, "capture_signals", contextlib.nullcontext)  # not the main thread
        start(self, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", kept)
    address: list[str] = []
    ready = threading.Event()

    def tell(where: str) -> None:
        address.append(where)
        ready.set()

    thread = threading.Thread(target=run_http, args=(bank_server(tools_of(bank)), 0, tell))
    thread.start()
    try:
        assert ready.wait(PATIENCE_SECONDS)

        async def talk() -> None:
            async with Client(address[0]) as client:
                assert not (await client.call_tool("search", {"query": "ice"})).is_error

        run(talk())
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accept = {"accept": "application/json, text/event-stream"}
        for wrong in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "http://localhost"}):
            assert httpx.post(address[0], json=body, headers=accept | wrong).status_code in (403, 421), wrong
        large = httpx.post(address[0], content=b" " * (1 << 21), headers={**accept, "content-type": "application/json"})
        assert large.status_code == 413
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(PATIENCE_SECONDS)
