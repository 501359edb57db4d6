"""Chats in the forms that people have them in, and records in which something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.checks.outside import require_sound
from crl.errors import BadInput
from crl.recipes.bank_from_chats.chats import OK, Chat, ChatsConfig, read
from crl.recipes.bank_from_chats.round import item_of

ASKED, ANSWERED = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}


def chats(folder: Path, *records: Any, **settings: Any) -> list[Chat]:
    """What is read of records, each a line."""
    path = folder / "chats.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read(ChatsConfig(data=str(path), **settings))


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [ASKED, ANSWERED]},
        [ASKED, ANSWERED],
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2 + 2?", "completion": "4"},
        {"prompt": [ASKED], "completion": [ANSWERED]},
        {"messages": json.dumps([ASKED, ANSWERED])},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}, ANSWERED]},
        {"messages": [{**ASKED, "tool_calls": None}, {**ANSWERED, "function_call": None}]},
    ],
)
def test_every_form_is_the_same_chat(tmp_path: Path, record: Any) -> None:
    (chat,) = chats(tmp_path, record)
    assert (chat.reason_code, chat.answers, chat.reward, chat.success) == (OK, 1, None, None)
    assert json.loads(chat.messages) == [ASKED, ANSWERED]
    assert (chat.chat_id, chat.location) == ("chats-00001", "chats.jsonl, line 1")


def test_a_named_column_a_table_and_a_list_are_read_too(tmp_path: Path) -> None:
    rows = [{"dialog": [ASKED, ANSWERED], "score": 0.4, "success": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    (tmp_path / "chats.json").write_text(json.dumps(rows))
    for name in ("chats.parquet", "chats.json"):
        (chat,) = read(ChatsConfig(data=str(tmp_path / name), messages="dialog", reward="score", success_at=0.3))
        assert (chat.reason_code, chat.answers, chat.reward, chat.success) == (OK, 1, 0.4, True), name
        assert chat.location == f"{name}, {'row 0' if name.endswith('parquet') else 'record 0, line 1'}"


def test_what_is_shown_of_a_chat(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Use the tool."}
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    (chat,) = chats(tmp_path, {"messages": [system, ASKED, called, tool, ANSWERED], "reward": 1})
    item = item_of(chat)
    assert item.outcome == "success" and item.episode.goal == "Use the tool."
    assert [(turn.observation, turn.output) for turn in item.turns] == [
        ("2 + 2?", '{"name": "add", "arguments": {"a": 2, "b": 2}}'), ("4", "4"),
    ]  # fmt: skip
    assert item.episode.last_observation is None
    lost, unknown = chats(tmp_path, {"messages": [ASKED, ANSWERED, ASKED], "reward": 0.5}, [ASKED, ANSWERED])
    assert item_of(lost).outcome == "failure" and item_of(lost).episode.last_observation == "2 + 2?"
    assert item_of(unknown).outcome == "unknown"


GOOD = [ASKED, ANSWERED]
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x.png"}}]}
KEY = {"role": "user", "content": f"my key is sk-proj-{'a1' * 20}"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"messages": [', "not_json"),
        ("[" * 100_000, "not_json"),
        ({"text": "hello"}, "no_messages"),
        ("7", "no_messages"),
        ({"messages": "hello"}, "no_messages"),
        ({"messages": {"role": "user"}}, "no_messages"),
        ({"messages": ["hello"]}, "bad_message"),
        ({"messages": [{**ANSWERED, "tool_calls": ["add"]}]}, "bad_message"),
        ({"messages": [{**ANSWERED, "tool_calls": 3}]}, "bad_message"),
        ({"messages": [{"role": "narrator", "content": "once"}, ANSWERED]}, "unknown_role"),
        ({"messages": [{"content": "once"}]}, "unknown_role"),
        ({"messages": [{"role": ["user"], "content": "once"}]}, "unknown_role"),
        ({"messages": [IMAGE, ANSWERED]}, "no_text"),
        ({"messages": [{"role": "user", "content": 3}, ANSWERED]}, "no_text"),
        ({"messages": []}, "no_answer"),
        ({"messages": [ASKED]}, "no_answer"),
        ({"messages": [ASKED, {"role": "assistant", "content": " "}]}, "no_answer"),
        ('{"messages": [{"role": "assistant", "content": "4"}], "reward": NaN}', "bad_reward"),
        ({"messages": GOOD, "reward": "high"}, "bad_reward"),
        ({"messages": GOOD, "reward": [1, 0]}, "bad_reward"),
        ({"messages": GOOD, "reward": 10**400}, "bad_reward"),
        ({"messages": GOOD, "success": "yes"}, "bad_success"),
        ({"messages": GOOD, "success": [True]}, "bad_success"),
        ({"messages": [KEY, ANSWERED]}, "secret"),
        ({"messages": [KEY], "reward": "high"}, "secret"),
        ({"messages": GOOD}, "duplicate"),
    ],
)  # fmt: skip
def test_a_bad_record_costs_itself_alone_and_says_where(tmp_path: Path, record: Any, reason: str) -> None:
    found = chats(tmp_path, GOOD, record, [ASKED, {**ANSWERED, "content": "4\ud800"}])
    assert [chat.reason_code for chat in found] == [OK, reason, OK]
    assert found[1].location == "chats.jsonl, line 2" and found[1].detail
    assert "sk-proj" not in found[1].messages, "a secret is not kept"
    (brought,) = ChatsConfig(data=str(tmp_path / "chats.jsonl")).outside_rows()
    assert brought.rows["reason_code"].to_pylist() == [OK, reason, OK]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.jsonl", "", "it is empty"),
        ("asked.jsonl", json.dumps({"messages": [ASKED]}), "line 1: no_answer: no message is the assistant's"),
        ("chats.txt", "hello", "of no known kind"),
        ("broken.json", "{", "no JSON"),
        ("latin.jsonl", b"\xff\xfe\x00", "codec can't decode"),
        ("table.parquet", "no table", "ArrowInvalid"),
    ],
)  # fmt: skip
def test_a_file_without_a_chat_is_refused(tmp_path: Path, name: str, content: str | bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=told):
        list(ChatsConfig(data=str(tmp_path / name)).outside_rows())


def test_great_expectations_sees_what_comes_in(tmp_path: Path) -> None:
    chats(tmp_path, GOOD, {"messages": [ASKED]})
    (brought,) = ChatsConfig(data=str(tmp_path / "chats.jsonl")).outside_rows()
    require_sound(brought)
    twice = type(brought)(Chat, pa.concat_tables([brought.rows, brought.rows]), brought.file, brought.next_step)
    with pytest.raises(BadInput, match="chat_id is unique"):
        require_sound(twice)


def test_a_conversation_that_was_served_is_one_chat_with_its_outcome(tmp_path: Path) -> None:
    more = {"role": "user", "content": "And 3 + 3?"}
    six = {"role": "assistant", "content": "6"}
    said = [
        {"conversation_id": "a", "guided": True, "from": 0, "messages": [ASKED, {**ANSWERED, "content": "5"}]},
        {"conversation_id": "b", "from": 0, "messages": [ASKED, ANSWERED]},
        {"messages": [more, six]},
        {"conversation_id": "a", "from": 0, "messages": [ASKED, ANSWERED]},
        {"conversation_id": "a", "success": False},
        {"conversation_id": "a", "from": 2, "messages": [more, six]},
        '{"conversation_id": "b", "from',
        {"conversation_id": "a", "success": True, "reward": 0.5},
        {"conversation_id": "another's", "messages": [more, ANSWERED]},
        {"conversation_id": "a", "from": 0, "messages": "no list"},
    ]
    found = chats(tmp_path, *said)
    assert [chat.location for chat in found if chat.reason_code == OK] == [
        f"chats.jsonl, line {line}" for line in (3, 9, 1, 2)
    ]
    whole = found[-2]
    assert json.loads(whole.messages) == [ASKED, ANSWERED, more, six]
    assert (whole.success, whole.reward) == (True, 0.5)
    assert found[-1].success is None
    assert [chat.reason_code for chat in found if chat.reason_code != OK] == ["not_json"]


@pytest.mark.parametrize("start", [-3, 10**30, True])
def test_a_conversation_with_a_start_that_cannot_be_costs_no_other(tmp_path: Path, start: Any) -> None:
    line = {"conversation_id": "a", "from": start, "messages": [ASKED, ANSWERED]}
    (chat,) = chats(tmp_path, line)
    assert (chat.reason_code, json.loads(chat.messages)) == (OK, [ASKED, ANSWERED])
