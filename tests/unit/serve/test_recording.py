"""Conversations that were served, in a file: what is new with each answer, and outcomes, also after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crl.errors import BadInput, DiskFull
from crl.gateway.messages import ApiError
from crl.protocols import ParsedTurn
from crl.run.journal import JsonLines
from crl.serve import recording as module
from crl.serve.answering import Answering
from crl.serve.recording import FILE, Recording
from tests.unit.serve.calls import MARKED, FakeAgent, assistant, request

CALL = '{"arguments": {"a": 1}, "name": "go"}'
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function", "function": {
    "name": "go", "arguments": '{"a": 1}'}}]}  # fmt: skip


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def serve(recording: Recording, *turns: tuple[Any, ...], **more: Any) -> str:
    """A conversation of (what is new, its answer); its name."""
    made, messages, name = Answering(FakeAgent(), recording=recording, **more), list[Any](), ""
    for *new, said in turns:
        messages += new
        asked = request(*messages)
        held = made.conversation(asked)
        turn = said if isinstance(said, ParsedTurn) else ParsedTurn(said, "a thought")
        made.answered(held, asked, turn)
        messages.append(CALLED if turn.calls else assistant(turn.content))
        name = held.name
    return name


def test_a_line_has_what_is_new(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "call00000", "content": "3"}
    name = serve(Recording(tmp_path), (*MARKED, ParsedTurn("", "", (CALL,))), (result, "Done."))
    first, second = lines(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600, "nobody else reads what people wrote"
    assert first["conversation_id"] == second["conversation_id"] == name
    assert (first["family"], first["guided"], first["entry_ids"], first["experience"]) == ("lake", True, ["x-1"], "E1")
    assert first["from"] == 0 and [each["role"] for each in first["messages"]] == ["system", "user", "assistant"]
    assert first["messages"][1]["content"] == "Goal\nLook." and "E1" not in json.dumps(first["messages"])
    assert second["from"] == 3 and [each["content"] for each in second["messages"]] == ["3", "Done."]
    assert second["messages"][0]["tool_call_id"] == first["messages"][2]["tool_calls"][0]["id"]


def test_a_conversation_that_took_another_way_is_written_whole(tmp_path: Path) -> None:
    made = Answering(FakeAgent(), recording=Recording(tmp_path))
    for asked, said in (
        (request("A"), "1"), (request("A", assistant("1"), "B"), "2"), (request("A", assistant("1"), "C"), "3"),
        (request("A", assistant("1"), "B", assistant("2"), "D"), "4"),
    ):  # fmt: skip
        made.answered(made.conversation(asked), asked, ParsedTurn(said))
    assert [line["from"] for line in lines(tmp_path)] == [0, 2, 0, 0]
    assert len({line["conversation_id"] for line in lines(tmp_path)}) == 1


def test_outcomes_are_kept_also_of_conversations_before_a_restart(tmp_path: Path) -> None:
    name = serve(Recording(tmp_path), ("A", "1"), free_share=1.0)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"conversation_id": "torn", "fam')
    again = Recording(tmp_path)
    assert again.feedback({"id": f"chatcmpl-{name}-0", "success": True})["conversation_id"] == name
    assert again.feedback({"id": name, "reward": 0.25, "comment": "ignored"})["reward"] == 0.25
    raw = (tmp_path / FILE).read_text().splitlines()
    assert len(raw) == 4 and raw[1].startswith('{"conversation_id": "torn"')
    success, reward = map(json.loads, raw[2:])
    assert (success["success"], success["guided"], success["family"]) == (True, False, "lake")
    assert reward["reward"] == 0.25 and "success" not in reward
    assert Recording(tmp_path).feedback({"id": name, "success": False})["success"] is False


@pytest.mark.parametrize(
    ("value", "status", "param"),
    [
        ({}, 400, "id"), ({"id": 3}, 400, "id"), ({"id": "x" * 101, "success": True}, 400, "id"),
        ({"id": "NAME"}, 400, "success"), ({"id": "NAME", "success": 1}, 400, "success"),
        ({"id": "NAME", "success": "yes"}, 400, "success"), ({"id": "NAME", "reward": float("nan")}, 400, "reward"),
        ({"id": "NAME", "reward": float("inf")}, 400, "reward"), ({"id": "NAME", "reward": True}, 400, "reward"),
        ({"id": "NAME", "reward": 10**400}, 400, "reward"),
        ({"id": "other", "success": True}, 404, "id"), ({"id": "chatcmpl-", "success": True}, 404, "id"),
    ],
)  # fmt: skip
def test_what_is_no_outcome_is_refused(tmp_path: Path, value: dict[str, Any], status: int, param: str) -> None:
    recording = Recording(tmp_path)
    name = serve(recording, ("A", "1"))
    with pytest.raises(ApiError) as refused:
        recording.feedback({key: name if each == "NAME" else each for key, each in value.items()})
    assert (refused.value.status, refused.value.param) == (status, param)
    assert len(lines(tmp_path)) == 1


def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 2)
    recording = Recording(tmp_path)
    first, *others = [serve(recording, (f"{number}", "1")) for number in range(3)]
    assert all(recording.feedback({"id": name, "success": True}) for name in others)
    with pytest.raises(ApiError, match="No conversation"):
        recording.feedback({"id": first, "success": True})


def test_a_full_disk_costs_a_line_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording(tmp_path)
    name = serve(recording, ("A", "1"))

    def full(*line: Any) -> None:
        raise DiskFull("no space was left")

    monkeypatch.setattr(JsonLines, "append", full)
    serve(recording, ("B", "1"))
    assert "is not recorded: no space was left" in capsys.readouterr().err
    with pytest.raises(ApiError) as refused:
        recording.feedback({"id": name, "success": True})
    assert refused.value.status == 507


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="that is a file"):
        Recording(tmp_path / "file")
