"""Chats of a person's file as rows: who said what, what came of it, and why some are left out.

A record holds a list of messages (`messages`, `conversations` in either of the two forms that are common, or a column
that is named), or a prompt with its completion. A record in which something is wrong costs itself alone: its row says
what and where.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated as A
from typing import Any, ClassVar

from pydantic import Field

from crl.config.base import unset
from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.protocols import FreeText, Start
from crl.records import OutsideRows, Row, Rules, table_of
from crl.text.unicode import valid_text
from crl.worlds.json_files import shown
from crl.worlds.records import records

OK = "ok"
REASONS = (
    OK, "not_json", "no_messages", "bad_message", "unknown_role", "no_text", "no_answer", "bad_reward", "bad_success",
    "secret", "duplicate",
)  # fmt: skip
_CORRECT = "correct the file, or name its columns: --set method.families.0.environment.messages=COLUMN"
_COLUMNS = ("messages", "conversations", "conversation")
_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "environment"), "tool"),
}
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:sk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}"
    r"|gh[opsu]_[A-Za-z0-9]{36}|github_pat_\w{30,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
"""How keys of today's services are written: an experience would carry one on to whoever reads the bank."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Row):
    """One chat of a file that a bank is built from."""

    table: ClassVar[str] = "chats"
    chat_id: A[str, "<family>-<number of the record>; `episode_ids` of the bank name it"]
    round: A[int, "round that reads it"]
    family: A[str, "task family of what is learned from it"]
    location: A[str, "file and line, or row"]
    digest: A[str, "SHA-256 of messages, reward and success"]
    messages: A[str, "JSON: role and content of every message; tool calls are JSON in the content"]
    answers: A[int, "messages of the assistant"]
    reward: A[float | None, "what it earned; null: nobody says"]
    success: A[bool | None, "whether it succeeded; null: nobody says"]
    reason_code: A[str, "ok, or why nothing is learned from it"]
    detail: A[str | None, "what is wrong, in words"]

    rules: ClassVar[Rules] = Rules(
        key=("chat_id",),
        filled=("chat_id", "family", "location"),
        sha256=("digest",),
        sets={"reason_code": REASONS},
        ranges={"answers": (0, None)},
        rows={
            "a reward is finite": "reward IS NULL OR isfinite(reward)",
            "its messages are JSON": "json_valid(messages)",
            "a chat that is used has an answer": "reason_code <> 'ok' OR answers > 0",
            "what is wrong is said in words": "(reason_code = 'ok') = (detail IS NULL)",
            "no chat is used twice": "reason_code <> 'ok' OR "
            "count(*) FILTER (reason_code = 'ok') OVER (PARTITION BY digest) = 1",
        },
    )


class ChatsConfig(EnvironmentConfig):
    """A file of chats. Nothing is played."""

    kind: str = "crl.recipes.bank_from_chats.chats:ChatsConfig"
    data: str = Field(min_length=1, description="A file (.jsonl, .json, .csv, .parquet, .arrow), or a folder of them.")
    split: str | None = Field(None, exclude_if=unset, description="Split, where a folder has several.")
    messages: str | None = Field(
        None,
        exclude_if=unset,
        description="Column of messages; null: messages, conversations, or prompt and completion.",
    )
    reward: str = Field("reward", min_length=1, description="Column of rewards; it may be missing.")
    success: str = Field("success", min_length=1, description="Column that says whether a chat succeeded.")
    success_at: float = Field(
        1.0, ge=-1_000_000, le=1_000_000, description="Without that column: least reward of a success."
    )

    @property
    def path(self) -> Path:
        """Where the chats are. Raises BadInput where nothing is."""
        path = possible_path(self.data, "the file of chats", where="--from", home=True)
        if not path.exists():
            raise BadInput(
                f"there is no file {short(path)} in {Path.cwd()}",
                expected="a file or a folder of chats",
                where="--from",
                next_step="correct the path: it begins in the folder that crl is started in",
            )
        return path

    def data_files(self) -> Mapping[str, Path]:
        """The chats, as they are named."""
        return {self.data: self.path}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """Every chat, those that are left out too. Raises BadInput where none can be used."""
        found = read(self)
        if not any(chat.reason_code == OK for chat in found):
            first = found[0] if found else None
            why = "it is empty" if first is None else f"{first.location}: {first.reason_code}: {first.detail}"
            raise BadInput(
                f"{short(self.data)} has no chat that can be used: {why}",
                expected="records with messages, one of which is the assistant's",
                where="--from",
                next_step=_CORRECT,
            )
        yield OutsideRows(Chat, table_of(Chat, found), self.data, _CORRECT)

    def make(self) -> Any:
        """An environment for the checks before work starts."""
        return _Unplayed()


class _Unplayed:
    """Starts, and goes no further."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return [Start("Learn from chats.", "", FreeText("nothing")) for _ in seeds]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Any]:
        raise BadInput("chats are read, not played", next_step="begin an experiment with their bank: crl bank import")

    def oracle(self, slot: int) -> None:
        """Nothing is known."""

    def close(self) -> None:
        """Nothing is held."""


class _Flaw(Exception):
    """What is wrong with a record: reason code, and words."""


Message = dict[str, str]


def read(config: ChatsConfig, family: str = "chats", round: int = 1) -> list[Chat]:
    """Every record as a row, in order. Raises BadInput where the file cannot be read at all."""
    path = config.path
    found: list[Chat] = []
    used: dict[str, str] = {}
    found_records = conversations(records(path, _refused, split=config.split, broken=True))
    for number, (location, record) in enumerate(found_records, start=1):
        location = valid_text(location.removeprefix(f"{path.parent}/"))
        messages: list[Message] = []
        reward, success, reason, detail = None, None, OK, None
        try:
            messages = _messages(record, config)
            if any(_SECRET.search(each["content"]) for each in messages):
                raise _Flaw("secret", "it holds what looks like a key of a service: take it out")
            if isinstance(record, Mapping):
                reward, success = _reward(record.get(config.reward)), _success(record.get(config.success))
            if not any(each["role"] == "assistant" and each["content"].strip() for each in messages):
                raise _Flaw("no_answer", "no message is the assistant's")
        except _Flaw as flaw:
            reason, detail = flaw.args
        if success is None and reward is not None:
            success = reward >= config.success_at
        text = json.dumps([] if reason == "secret" else messages, ensure_ascii=False)
        digest = hashlib.sha256(json.dumps([messages, reward, success]).encode()).hexdigest()
        if reason == OK and (first := used.setdefault(digest, location)) != location:
            reason, detail = "duplicate", f"it is that of {first}"
        found.append(
            Chat(
                chat_id=f"{family}-{number:05d}", round=round, family=family, location=location, digest=digest,
                messages=text, answers=sum(each["role"] == "assistant" for each in messages), reward=reward,
                success=success, reason_code=reason, detail=detail,
            )
        )  # fmt: skip
    return found


def conversations(records: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Records with their locations; those of a conversation that `crl serve --record` kept are one, behind the others.

    Of such a conversation a line has what follows its first `from` messages, or an outcome; the last one counts.
    """
    whole: dict[str, tuple[str, dict[str, Any]]] = {}
    for location, record in records:
        name = record.get("conversation_id") if isinstance(record, Mapping) else None
        if not isinstance(name, str) or not (name in whole or isinstance(record.get("from"), int)):
            yield location, record
            continue
        _, kept = whole.setdefault(name, (location, {}))
        messages = kept.get("messages")
        if isinstance(start := record.get("from"), int) and isinstance(record.get("messages"), list):
            messages = [*(messages or [])[: max(start, 0)], *record["messages"]]
        kept.update(record)
        kept["messages"] = messages
    yield from whole.values()


def _refused(found: str, expected: str, where: str) -> BadInput:
    return BadInput(
        f"the chats cannot be read: {found}",
        expected=expected,
        where=where,
        next_step="correct the file, or name another with --from",
    )


def _messages(record: Any, config: ChatsConfig) -> list[Message]:
    if isinstance(record, BadInput):
        raise _Flaw("not_json", record.found.removeprefix("the chats cannot be read: "))
    if isinstance(record, list):
        return [_message(each) for each in record]
    if not isinstance(record, Mapping):
        raise _Flaw("no_messages", f"it is {shown(record)}, expected an object")
    names = _COLUMNS if config.messages is None else (config.messages,)
    for name in names:
        if record.get(name) is not None:
            return [_message(each) for each in _listed(record[name], name)]
    if config.messages is None and record.get("prompt") is not None and record.get("completion") is not None:
        sides = (("user", record["prompt"]), ("assistant", record["completion"]))
        return [
            _message(each)
            for role, side in sides
            for each in (side if isinstance(side, list) else [{"role": role, "content": side}])
        ]
    wanted = f"{', '.join(names)}" + (", or prompt and completion" if config.messages is None else "")
    raise _Flaw("no_messages", f"its columns are {shown(list(record))}, expected {wanted}")


def _listed(value: Any, name: str) -> list[Any]:
    """Messages; a table without lists (CSV) holds them as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _Flaw("no_messages", f"{name} is the text {shown(value)}, expected a list of messages") from None
    if not isinstance(value, list):
        raise _Flaw("no_messages", f"{name} is {shown(value)}, expected a list of messages")
    return value


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise _Flaw("bad_message", f"a message is {shown(message)}, expected role and content")
    role = message.get("role", message.get("from"))
    if not isinstance(role, str) or role.lower() not in _ROLES:
        raise _Flaw("unknown_role", f"a message has the role {shown(role)}, expected one of {', '.join(_ROLES)}")
    content = _text(message.get("content", message.get("value")))
    calls = message.get("tool_calls") or message.get("function_call") or []
    texts = [content, *(_call(call) for call in (calls if isinstance(calls, list) else [calls]))]
    return {"role": _ROLES[role.lower()], "content": "\n".join(text for text in texts if text)}


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return valid_text(content)
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type", part) if isinstance(part, Mapping) else part
            raise _Flaw("no_text", f"a message holds {shown(kind)}: text only")
        texts.append(valid_text(text))
    return "\n".join(texts)


def _call(call: Any) -> str:
    """A tool call as the JSON that models write: name and arguments."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _Flaw("bad_message", f"a tool call is {shown(call)}, expected name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # else as it is
            arguments = json.loads(arguments)
    return valid_text(json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False, default=str))


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    with suppress(OverflowError):
        if isinstance(value, int | float) and math.isfinite(reward := float(value)):
            return reward
    raise _Flaw("bad_reward", f"its reward is {shown(value)}, expected a finite number")


def _success(value: Any) -> bool | None:
    if value is None:
        return None
    if value not in (0, 1):
        raise _Flaw("bad_success", f"its success is {shown(value)}, expected true or false")
    return bool(value)
